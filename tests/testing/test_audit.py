"""The audit of a whole model finds the gradient that is wrong, and leaves the model as it was."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
import tf_cg_ops_cli
from tf_cg_ops import _command_line

from ..support.processes import run_python


@cg.custom_gradient
def log1pexp(x):
    e = tf.exp(x)
    return tf.math.log1p(e), lambda dy: dy * e / (1 + e)


@cg.custom_gradient
def twice_too_large(x):
    return tf.sinh(x), lambda dy: 2 * dy * tf.cosh(x)


@cg.custom_gradient
def leaky(x):
    """The mask of its gradient is of the wrong side."""
    return tf.where(x > 0, x, 0.1 * x), lambda dy: tf.where(x < 0, dy, 0.1 * dy)


@cg.custom_gradient
def without_mask(x):
    return tf.nn.relu(x), lambda dy: dy


@cg.custom_gradient
def magnitude(x):
    """Its gradient is nan at zero."""
    return tf.abs(x), lambda dy: dy * x / tf.abs(x)


@tf.custom_gradient
def of_tensorflow(x):
    e = tf.exp(x)
    return tf.math.log1p(e), lambda dy: dy * e / (1 + e) + dy


@pytest.fixture
def x(rng):
    return tf.constant(rng.normal(size=(4, 3)), tf.float32)


def verdicts(report):
    return [(row.function, row.verdict) for row in report.rows]


def weights(rng, *shape):
    return tf.Variable(rng.normal(size=shape) / np.sqrt(shape[0]), dtype=tf.float32)


@pytest.mark.core
def test_a_wrong_factor_in_one_of_twelve_transformer_blocks(rng):
    def gelu(factor):
        @cg.custom_gradient
        def activation(x):
            density = tf.exp(-0.5 * x**2) / np.sqrt(2 * np.pi).astype("f")
            normal = 0.5 * (1 + tf.math.erf(x / np.sqrt(2).astype("f")))
            return x * normal, lambda dy: factor * dy * (normal + x * density)

        return activation

    activations = [gelu(1.5 if block == 7 else 1.0) for block in range(12)]
    parameters = [
        [weights(rng, 8, 8) for _ in range(3)] + [weights(rng, 8, 16), weights(rng, 16, 8)] for _ in range(12)
    ]

    def model(tokens):
        for activation, (query, key, value, up, down) in zip(activations, parameters, strict=True):
            scores = tf.matmul(tokens @ query, tokens @ key, transpose_b=True) / np.sqrt(8).astype("f")
            tokens += tf.nn.softmax(scores) @ (tokens @ value)
            tokens += activation(tokens @ up) @ down
        return tf.reduce_mean(tokens**2)

    report = cg.testing.audit(model, [tf.constant(rng.normal(size=(2, 5, 8)), tf.float32)])
    # In the order of the backward pass, the eighth block is the fifth.
    assert [row.verdict for row in report.rows] == ["right"] * 4 + ["differs"] + ["right"] * 7
    assert report.wrong[0].detail == "The ratio is 1.5 everywhere, so a factor is wrong."
    assert report.wrong[0].line.startswith("test_audit.py:")
    with pytest.raises(AssertionError, match="12 custom gradients, 11 right, 1 differs"):
        report.raise_if_wrong()


@pytest.mark.core
def test_the_norms_are_those_of_the_run(x, rng):
    upstream = rng.normal(size=(4, 3)).astype("f")
    (row,) = cg.testing.audit(lambda x: 3 * log1pexp(x), [x], upstream=upstream).rows
    values = np.float64(x)
    sigmoid = 1 / (1 + np.exp(-values))
    for norm, expected in (
        (row.value_norm, np.log1p(np.exp(values))),
        (row.upstream_norm, 3 * upstream),
        (row.gradient_norm, 3 * upstream * sigmoid),
    ):
        assert norm == pytest.approx(np.linalg.norm(expected), rel=1e-5)
    assert (row.runs, row.checked, row.size) == (1, 12, 12)
    assert (row.input_shapes, row.output_shapes) == (((4, 3),), ((4, 3),))


@pytest.mark.core
def test_a_mask_of_the_wrong_side_in_a_loop(x):
    @tf.function
    def loss(x):
        for _ in tf.range(4):
            x = leaky(log1pexp(x) - 0.7)
        return tf.reduce_sum(x**2)

    report = cg.testing.audit(loss, [x])
    assert verdicts(report) == [("leaky", "differs"), ("log1pexp", "right")]
    assert [row.runs for row in report.rows] == [4, 4]


def test_a_mask_that_is_missing_shows_even_where_the_upstream_of_this_run_is_zero(x):
    report = cg.testing.audit(lambda x: tf.reduce_sum(without_mask(x) ** 2), [x])
    assert verdicts(report) == [("without_mask", "differs")]
    assert report.rows[0].detail == "It is right for the upstream gradient of this run, and wrong for others."


def test_a_kink_is_not_called_right_or_wrong():
    report = cg.testing.audit(lambda x: tf.reduce_sum(without_mask(x)), [tf.zeros([3])])
    assert [(row.verdict, row.detail) for row in report.rows] == [
        ("not checked", "the numeric derivative by input 0 is uncertain: there may be a kink")
    ]


def test_a_conditional_a_called_function_and_a_recomputed_one(x):
    block = cg.recompute_grad(lambda x: tf.sin(twice_too_large(x)))

    def loss(x):
        x = tf.cond(tf.reduce_sum(x) < 100.0, lambda: leaky(x), lambda: x)
        return tf.reduce_sum(block(tf.function(log1pexp)(x)))

    report = cg.testing.audit(loss, [x])
    assert verdicts(report) == [
        ("<lambda>", "not checked"),
        ("twice_too_large", "differs"),
        ("log1pexp", "right"),
        ("leaky", "differs"),
    ]


def test_the_steps_of_a_scan(x):
    report = cg.testing.audit(lambda x: tf.reduce_sum(cg.scan(lambda c, t: (leaky(c) + t, c), x[0], x)[0]), [x])
    assert ("leaky", "differs") in verdicts(report)


@pytest.mark.core
def test_a_nan_is_marked_where_it_was_born(x):
    def loss(x):
        for layer in range(6):
            x = magnitude(x * [[1.0, 0.0, 1.0]]) if layer == 3 else log1pexp(x)
        return tf.reduce_sum(x)

    report = cg.testing.audit(loss, [x])
    assert [row.function for row in report.rows if row.is_first_nonfinite] == ["magnitude"]
    # A rule that only gets nan is checked with other numbers.
    assert [row.verdict for row in report.rows] == ["right", "right", "differs", "right", "right", "right"]
    assert "became infinite or nan for the first time" in str(report)


def test_numbers_that_are_not_finite_are_not_checked():
    report = cg.testing.audit(lambda x: tf.reduce_sum(log1pexp(x)), [tf.constant([np.inf, 1.0])])
    assert [(row.verdict, row.detail) for row in report.rows] == [("not checked", "its value is not finite")]


@cg.custom_gradient
def product(a, b):
    return a * b**2, lambda dy: (dy * b**2, 2 * dy * a * b)


def test_the_same_tensor_twice(x):
    w = tf.Variable(x)
    for a, b in ((x, x), (x, tf.identity(x)), (w, w), (w, tf.identity(w))):
        report = cg.testing.audit(lambda x, a=a, b=b: tf.reduce_sum(product(a, b) * x), [x])
        assert verdicts(report) == [("product", "right")]


@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
def test_a_missing_gradient_is_named(decorator, x):
    w = tf.Variable([[0.5, 1.0], [2.0, -1.0], [0.3, 0.7]])

    @decorator
    def frozen(x, w):
        return x @ w, lambda dy: (dy @ tf.transpose(w), None)

    @decorator
    def frozen_first(w, x):
        return x @ w, lambda dy: (None, dy @ tf.transpose(w))

    for dense, missing in [(frozen, 1), (lambda x, w: frozen_first(w, x), 0)]:
        (row,) = cg.testing.audit(lambda x, dense=dense: tf.reduce_sum(dense(x, tf.identity(w)) ** 2), [x]).rows
        assert row.verdict == "right"
        assert row.detail == f"The rule returns no gradient for input {missing}, on which the value depends."
        assert row.value_norm == pytest.approx(np.linalg.norm(x @ w))


@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
def test_integers_among_the_results(decorator, x):
    @decorator
    def top(x):
        index = tf.argmax(x, -1)
        return (tf.reduce_max(x, -1), index), lambda dy, _: tf.one_hot(index, 3) * dy[:, None]

    assert verdicts(cg.testing.audit(lambda x: tf.reduce_sum(top(x)[0] ** 2), [x])) == [("top", "right")]


def test_rows_of_a_variable(rng):
    table = weights(rng, 5, 3)

    @tf.custom_gradient
    def lookup(indices):
        def grad_fn(dy, variables=None):
            return None, [tf.IndexedSlices(dy, indices, tf.constant([5, 3]))]

        return tf.gather(table, indices), grad_fn

    report = cg.testing.audit(lambda i: tf.reduce_sum(lookup(i) ** 2), [tf.constant([1, 4, 1])])
    assert verdicts(report) == [("lookup", "right")]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_sums_over_a_batch_are_as_exact_as_their_dtype(dtype, rng):
    @cg.custom_gradient
    def add_bias(x, b):
        return x + b, lambda dy: (dy, tf.reduce_sum(dy, 0))

    x = tf.constant(rng.normal(size=(1000, 3)), dtype)
    b = tf.constant(rng.normal(size=3), dtype)
    assert verdicts(cg.testing.audit(lambda x, b: tf.reduce_mean(tf.sigmoid(add_bias(x, b))), [x, b])) == [
        ("add_bias", "right")
    ]


def test_what_is_lost_in_rounding_is_not_called_wrong():
    @cg.custom_gradient
    def cross_entropy(x):
        y = tf.nn.softmax(x)
        return -tf.math.log(y[:, 0]), lambda dy: dy[:, None] * (y - [1.0, 0.0])

    (row,) = cg.testing.audit(lambda x: tf.reduce_sum(cross_entropy(x)), [tf.constant([[18.0, 0.0], [17.0, 0.0]])]).rows
    assert row.verdict == "right"
    assert re.fullmatch(r"Rounding in float32 changes it by \d+ %\.", row.detail)
    report = cg.testing.audit(lambda x: tf.reduce_sum(cross_entropy(x)), [tf.constant([[18.0, 0.0], [0.5, 0.0]])])
    assert verdicts(report) == [("cross_entropy", "right")]


def test_an_upstream_gradient_that_nearly_underflows(x):
    assert verdicts(cg.testing.audit(lambda x: tf.reduce_sum(log1pexp(x)) * 1e-37, [x])) == [("log1pexp", "right")]
    assert verdicts(cg.testing.audit(lambda x: tf.reduce_sum(twice_too_large(x)) * 1e-37, [x])) == [
        ("twice_too_large", "differs")
    ]


def test_the_infinities_of_a_mask_stay(x):
    @cg.custom_gradient
    def softmax(x):
        y = tf.nn.softmax(x)
        return y, lambda dy: 2 * y * (dy - tf.reduce_sum(y * dy, -1, keepdims=True))

    masked = tf.where(tf.constant([[True, True, False]]), x, -np.inf)
    assert verdicts(cg.testing.audit(softmax, [masked])) == [("softmax", "differs")]


def test_a_nan_is_marked_where_the_gradient_cannot_be_checked():
    def vjp(x, dy):
        with np.errstate(divide="ignore"):
            return dy * 0.5 / np.sqrt(x)

    root = cg.numpy_function(lambda x: (np.sqrt(x), x), vjp=vjp)
    report = cg.testing.audit(lambda x: tf.reduce_sum(root(x) + log1pexp(x)), [tf.constant([0.0, 2.0])])
    assert {row.made_by: row.is_first_nonfinite for row in report.rows} == {
        "numpy_function": True,
        "custom_gradient": False,
    }
    with pytest.raises(AssertionError, match="became infinite or nan for the first time"):
        report.raise_if_wrong()


def test_what_a_gradient_writes_is_restored(x):
    count = tf.Variable(0.0)

    @cg.custom_gradient
    def counted(x):
        def grad_fn(dy):
            count.assign_add(1.0)
            return dy * 2 * x

        return x**2, grad_fn

    assert verdicts(cg.testing.audit(lambda x: tf.reduce_sum(counted(x)), [x])) == [("counted", "right")]
    assert count.numpy() == 0


def test_watching_changes_nothing(x):
    seen = []
    report = cg.testing.audit(lambda x: tf.reduce_sum(log1pexp(cg.watch_gradient(x, "x", call=seen.append))), [x])
    assert verdicts(report) == [("log1pexp", "right"), ("watch_gradient", "by design")]
    assert seen == []


@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
@pytest.mark.parametrize(
    ("gradient", "detail"),
    [
        (lambda dy: 2 * tf.reduce_sum(dy, 0), r"ValueError: .* 'scaled' .* shape .*\(3,\)"),
        (lambda dy: {}["mine"], "KeyError: 'mine'"),
    ],
    ids=["shape", "exception"],
)
def test_a_gradient_function_that_fails_has_a_row(decorator, gradient, detail, x):
    @decorator
    def scaled(x):
        return 2 * x, lambda dy: gradient(dy)

    report = cg.testing.audit(lambda x: tf.reduce_sum(log1pexp(scaled(log1pexp(x)))), [x])
    assert verdicts(report) == [("log1pexp", "right"), ("log1pexp", "right"), ("scaled", "differs")]
    assert re.search(f"^Computing its gradient fails: .*{detail}", report.rows[2].detail)


def test_a_solver_that_is_far_off_is_wrong(x):
    def solve(a):
        return tf.sqrt(a)

    def audited(factor):
        def linear_solve(matvec, b):
            return factor * b / (2 * solve(x**2))

        root = cg.implicit_root(lambda y, a: y**2 - a, solve, linear_solve=linear_solve)
        return [row.verdict for row in cg.testing.audit(lambda a: tf.reduce_sum(root(a)), [x**2]).rows]

    assert audited(1.0) == ["right"]
    assert audited(7.0) == ["differs"]


@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_the_gradient_of_a_variable(decorator, factor, x, rng):
    w = weights(rng, 3, 3)

    @decorator
    def dense(x):
        def grad_fn(dy, variables=None):
            return tf.matmul(dy, w, transpose_b=True), [factor * tf.matmul(x, dy, transpose_a=True)]

        return tf.matmul(x, w), grad_fn

    report = cg.testing.audit(lambda x: tf.reduce_sum(tf.tanh(dense(x))), [x])
    assert verdicts(report) == [("dense", "right" if factor == 1 else "differs")]


@pytest.mark.core
def test_what_differs_by_design(x):
    inputs = keras.Input([3])
    features = keras.layers.Dense(4)(inputs)
    embedded = cg.layers.EmbedGradient()([features, 2 * keras.ops.ones_like(features), features])
    outputs = cg.layers.GradientClip(norm=0.1)(cg.layers.StraightThrough(tf.sign)(embedded))
    model = keras.Model(inputs, keras.layers.Dense(1)(cg.layers.GradientReversal(0.5)(outputs)))
    report = cg.testing.audit(model, [x])
    assert [row.verdict for row in report.rows] == ["by design"] * 4
    assert report.rows[0].function.startswith("gradient_reversal")
    report.raise_if_wrong()


@pytest.mark.parametrize(
    ("like", "verdict"),
    [({}, "differs"), ({"without_mask": None}, "by design"), ({"without_mask": lambda x: x}, "right")],
)
def test_what_the_user_declares(like, verdict, x):
    assert verdicts(cg.testing.audit(without_mask, [x], like=like)) == [("without_mask", verdict)]


def test_what_cannot_be_checked_has_a_reason(x):
    def loss(x):
        y = cg.numpy_function(lambda x: (np.sin(x), x), vjp=lambda x, dy: dy * np.cos(x))(x)
        y = cg.custom_gradient(lambda x: (tf.random.gamma([], tf.exp(x)), lambda dy: dy))(y)
        return tf.reduce_sum(y) + tf.cast(tf.argmax(tf.reshape(log1pexp(x), [-1])), tf.float32)

    details = [row.detail for row in cg.testing.audit(loss, [x]).rows]
    assert "draws other random numbers each time" in details[0]
    assert "calls Python code" in details[1]
    assert details[2] == "no gradient arrives here"


@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "by design"), (2.0, "differs")])
def test_what_stop_gradient_holds_constant(decorator, factor, verdict, x):
    """Inside the function, and outside of it in a tensor that the function closes over."""

    def loss(x):
        outside = tf.stop_gradient(tf.sin(x))

        @decorator
        def rounded(x):
            return x + tf.stop_gradient(tf.round(4 * x) / 4 - x), lambda dy: factor * dy

        @decorator
        def scaled(x):
            return x * outside, lambda dy: factor * dy * outside

        return rounded(x) * scaled(x)

    report = cg.testing.audit(loss, [x])
    assert sorted(verdicts(report)) == [("rounded", verdict), ("scaled", verdict)]


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_random_numbers_stay_those_of_the_run(scale, x):
    @cg.custom_gradient
    def dropout(x):
        kept = tf.nn.dropout(tf.ones_like(x), 0.5)
        return x**2 * kept, lambda dy: scale * dy * 2 * x * kept

    assert verdicts(cg.testing.audit(dropout, [x])) == [("dropout", "right" if scale == 1 else "differs")]


def test_one_wrong_element_among_many(rng):
    @cg.custom_gradient
    def wrong_in_one(x):
        return x**2, lambda dy: 2 * dy * x * (1 + tf.one_hot(17, 50_000))

    x = tf.constant(rng.normal(size=50_000), tf.float32)
    (row,) = cg.testing.audit(lambda x: tf.reduce_sum(wrong_in_one(x) ** 2), [x]).rows
    assert (row.verdict, row.checked, row.size) == ("differs", 50_000, 50_000)
    assert row.detail.startswith("input 0 at [17]: got ")


@pytest.mark.parametrize(("factor", "verdict"), [(2, "right"), (3, "differs")])
def test_elements_are_moved_together_where_tensorflow_has_no_gradient(factor, verdict, rng):
    @cg.custom_gradient
    def square_of_positive(x):
        """TensorFlow's gradient is nan for negative numbers."""
        return tf.where(x < 0, 0.0, x * tf.sqrt(x) ** 2), lambda dy: factor * dy * tf.nn.relu(x)

    x = tf.constant(rng.normal(size=5000), tf.float32)
    (row,) = cg.testing.audit(lambda x: tf.reduce_sum(square_of_positive(x) ** 2), [x]).rows
    assert (row.verdict, row.size) == (verdict, 5000)
    if verdict == "right":
        assert (row.checked, row.together) == (0, 5000)
    else:
        assert row.detail == "The ratio is 1.5 everywhere, so a factor is wrong."


@pytest.mark.core
def test_a_model_without_gradients_of_its_own():
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3))
    report = cg.testing.audit(model, [tf.ones([1, 32, 32, 3])])
    assert report.rows == []
    assert "nothing to audit, it has no gradients of its own" in str(report)


def test_the_model_stays_as_it_was(x):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.BatchNormalization()])
    generator = tf.random.Generator.from_seed(1)
    count = tf.Variable(0)
    variables = [*model.variables, generator.state, count]
    before = [np.array(variable) for variable in variables]
    tf.random.set_seed(5)
    expected = tf.random.normal([3]).numpy()

    def loss(x):
        count.assign_add(1)
        return tf.reduce_sum(log1pexp(model(x, training=True)) * generator.normal([4]))

    tf.random.set_seed(5)
    assert verdicts(cg.testing.audit(loss, [x])) == [("log1pexp", "right")]
    np.testing.assert_array_equal(tf.random.normal([3]), expected)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64, tf.complex64, tf.complex128])
def test_other_dtypes(dtype, x):
    @cg.custom_gradient
    def square(x):
        return x**2, lambda dy: dy * tf.math.conj(2 * x)

    @cg.custom_gradient
    def wrong(x):
        return x**2, lambda dy: dy * tf.math.conj(3 * x)

    report = cg.testing.audit(lambda x: square(wrong(x)), [tf.cast(x, dtype)])
    assert verdicts(report) == [("square", "right"), ("wrong", "differs")]


def test_an_op_without_double_precision(rng):
    @cg.custom_gradient
    def resized(x):
        y = tf.compat.v1.image.resize_bilinear(x, [4, 4])
        return y, lambda dy: tf.raw_ops.ResizeBilinearGrad(grads=dy, original_image=x)

    x = tf.constant(rng.normal(size=(1, 2, 2, 1)), tf.float32)
    assert verdicts(cg.testing.audit(resized, [x])) == [("resized", "right")]


class Saved(tf.Module):
    def __init__(self):
        self.bias = tf.Variable(0.3)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x):
        return tf.cond(tf.reduce_sum(x) < 100.0, lambda: leaky(log1pexp(x + self.bias)), lambda: x)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def of_tensorflow(self, x):
        return of_tensorflow(x)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    model = Saved()
    tf.saved_model.save(model, folder, signatures=model.__call__)
    return folder


LOAD = """
import sys
import tensorflow as tf
import tf_cg_ops as cg

model = tf.saved_model.load(sys.argv[1])
for function in (model, model.of_tensorflow, model.signatures["serving_default"]):
    print(*((row.function, row.verdict) for row in cg.testing.audit(function, {"x": tf.constant([[0.5, -1.0, 2.0]])}).rows))
print(cg.testing.audit(model).rows[0].verdict)
"""


@pytest.mark.core
def test_a_saved_model_in_a_fresh_process(saved, tmp_path):
    of_cond = "('leaky', 'differs') ('log1pexp', 'right')"
    printed = run_python(LOAD, saved, cwd=tmp_path).stdout
    assert printed.splitlines() == [of_cond, "('IdentityN', 'differs')", of_cond, "differs"]


def test_a_model_of_tensorflows_decorator_before_and_after_it_is_adopted(saved, tmp_path, x):
    cg.saved_model.adopt(saved, tmp_path / "adopted")
    (before,) = cg.testing.audit(Saved().of_tensorflow, [x]).rows
    (after,) = cg.testing.audit(tf.saved_model.load(str(tmp_path / "adopted")).of_tensorflow, [x]).rows
    assert (before.function, before.made_by, before.verdict) == ("of_tensorflow", "tf.custom_gradient", "differs")
    assert (after.verdict, after.detail) == ("differs", before.detail)
    assert after.gradient_norm == pytest.approx(before.gradient_norm)


def main(*arguments):
    return _command_line.run(tf_cg_ops_cli.parse(["audit", *map(str, arguments)]))


@pytest.mark.core
def test_the_command(saved, tmp_path, capsys):
    np.savez(tmp_path / "inputs.npz", x=np.array([[0.5, -1.0, 2.0]], "f"))
    page = tmp_path / "page.html"
    assert main(saved, "--inputs", tmp_path / "inputs.npz", "--html", page) == 1
    out, err = capsys.readouterr()
    assert out.startswith("'loaded model': 2 custom gradients, 1 right, 1 differs.\n")
    assert max(map(len, out.splitlines())) <= 100
    assert err == "2 custom gradients\n"
    text = page.read_text()
    assert text.count("<tr") == 3
    assert "http" not in text
    assert main(saved) == 1
    assert capsys.readouterr().err.startswith("args are random numbers that fit the signature")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--signature", "train"], "audit: --signature must name a signature of"),
        (["--inputs", "y.npz"], "audit: 'loaded model' must get arguments that fit its signature: missing"),
        (
            ["--inputs", "shape.npz"],
            "audit: 'loaded model' must get arguments that fit its signature: Can not cast",
        ),
        (["--inputs", "none.npz"], "audit: 'none.npz'"),
    ],
    ids=["signature", "name", "shape", "file"],
)
def test_wrong_uses_of_the_command(arguments, message, saved, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("y.npz", y=np.ones([2, 3], "f"))
    np.savez("shape.npz", x=np.ones([3], "f"))
    assert main(saved, *arguments) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("audit:")]
    assert line.startswith(message)


def test_a_value_without_a_gradient(x):
    with pytest.raises(ValueError, match="must return floating-point or complex numbers, which have gradients"):
        cg.testing.audit(lambda x: tf.argmax(log1pexp(x)), [x])


def test_a_name_in_like_that_is_not_there(x):
    with pytest.raises(ValueError, match=r"got 'relu'\. These are there: 'log1pexp'"):
        cg.testing.audit(log1pexp, [x], like={"relu": None})


def test_the_page_marks_the_place_and_has_a_bar_for_each_norm(x):
    report = cg.testing.audit(lambda x: tf.reduce_sum(magnitude(x * [[1.0, 0.0, 1.0]]) + twice_too_large(x)), [x])
    text = report.to_html()
    assert text.count('class="wrong" id="first-nonfinite"') == 1
    assert text.count('class="bar') == 4


# Gradients that are right, and that look wrong to a coarse comparison; and wrong ones that look right.


def relu_layer(factor, dtype=tf.float32):
    w = tf.constant(np.random.default_rng(5).normal(size=(300, 400)) / 17, dtype)

    def layer(x):
        y = tf.nn.relu(x @ w)
        return y, lambda dy: tf.matmul(tf.where(y > 0, factor * dy, 0 * dy), w, transpose_b=True)

    return layer


def bisection(factor):
    """The square root. The result depends on `x` through comparisons only."""

    def root(x):
        low, high = 0.0 * x, 0.0 * x + 10.0
        for _ in range(40):
            middle = (low + high) / 2
            is_low = middle * middle < x
            low, high = tf.where(is_low, middle, low), tf.where(is_low, high, middle)
        y = (low + high) / 2
        return y, lambda dy: factor * dy / (2 * y)

    return root


def logsumexp(factor):
    return lambda x: (tf.reduce_logsumexp(x, -1), lambda dy: factor * dy[:, None] * tf.nn.softmax(x))


def loss_in_float32(factor):
    def squares(x):
        z = tf.cast(x, tf.float32)
        return tf.reduce_mean(z**2, -1), lambda dy: tf.cast(factor * dy[:, None] * 2 * z / 1000, x.dtype)

    return squares


def masked(factor):
    def log_probabilities(x):
        y = tf.where(x > -1.0, tf.nn.log_softmax(x), -np.inf)
        finite = tf.cast(x > -1.0, x.dtype)

        def grad_fn(dy):
            dy = factor * dy * finite
            return dy - tf.nn.softmax(x) * tf.reduce_sum(dy, -1, keepdims=True)

        return y, grad_fn

    return log_probabilities


def attention(factor):
    def attend(x):
        p = tf.nn.softmax(tf.matmul(x, x[::-1], transpose_b=True))

        def grad_fn(dy):
            dp = tf.matmul(factor * dy, x, transpose_b=True)
            ds = p * (dp - tf.reduce_sum(dp * p, -1, keepdims=True))
            return (
                ds @ x[::-1] + (tf.matmul(ds, x, transpose_a=True))[::-1] + tf.matmul(factor * p, dy, transpose_a=True)
            )

        return p @ x, grad_fn

    return attend


def in_a_list(factor):
    def cumulative(x):
        rows = tf.TensorArray(x.dtype, 4)
        total = tf.zeros_like(x[0])
        for i in range(4):
            total += x[i] ** 2
            rows = rows.write(i, total)
        return rows.stack(), lambda dy: factor * 2 * x * tf.cumsum(dy, 0, reverse=True)

    return cumulative


def normalized(factor):
    def block(x):
        y, mean, _ = tf.compat.v1.nn.fused_batch_norm(x, tf.ones(3), tf.zeros(3), epsilon=0.1)
        variance = tf.math.reduce_variance(x, [0, 1, 2])
        n = (x - mean) / tf.sqrt(variance + 0.1)

        def grad_fn(dy):
            centered = dy - tf.reduce_mean(dy, [0, 1, 2]) - n * tf.reduce_mean(dy * n, [0, 1, 2])
            return factor * centered / tf.sqrt(variance + 0.1)

        return y, grad_fn

    return block


def log_determinant(factor):
    def of_covariance(x):
        root = tf.linalg.cholesky(x)
        y = 2 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(root)), -1)
        return y, lambda dy: factor * dy[:, None, None] * tf.linalg.inv(x)

    return of_covariance


def gelu(factor):
    """Its constants are rounded in bfloat16."""

    def approximate(x):
        t = tf.tanh(0.7978845608 * (x + 0.044715 * x**3))

        def grad_fn(dy):
            slope = 0.7978845608 * (1 + 3 * 0.044715 * x**2)
            return factor * dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope)

        return 0.5 * x * (1 + t), grad_fn

    return approximate


def error_function(factor):
    """The constant of its derivative, 2 / sqrt(pi), is 1.125 in bfloat16."""
    return lambda x: (tf.math.erf(x), lambda dy: factor * dy * tf.constant(2 / np.pi**0.5, x.dtype) * tf.exp(-(x**2)))


COVARIANCES = np.cov(np.random.default_rng(3).normal(size=(6, 40)))[None] + np.eye(6)
HARD = {
    "kinks everywhere": (relu_layer, tf.float32, (50, 300), 1.0),
    "comparisons": (bisection, tf.float32, (5,), None),
    "half precision": (logsumexp, tf.bfloat16, (8, 1000), 1.0),
    "rounded constants": (gelu, tf.bfloat16, (8, 100), 1.0),
    "a constant that looks exact": (error_function, tf.bfloat16, (8, 100), 1.0),
    "a loss in float32": (loss_in_float32, tf.bfloat16, (8, 1000), 1.0),
    "infinite values": (masked, tf.float32, (4, 6), 1.0),
    "saturated": (attention, tf.float32, (5, 4), 5.0),
    "a list": (in_a_list, tf.float32, (4, 3), 1.0),
    "an op without double precision": (normalized, tf.float32, (2, 4, 4, 3), 1.0),
    "a symmetric matrix": (log_determinant, tf.float32, (1, 6, 6), COVARIANCES),
}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
def test_hard_cases_are_neither_called_wrong_nor_right_by_mistake(decorator, case, rng):
    make, dtype, shape, scale = HARD[case]
    if scale is None:
        x = tf.constant([0.5, 2.0, 7.0, 30.0, 0.01], dtype)
    else:
        x = tf.cast(scale if isinstance(scale, np.ndarray) else scale * rng.normal(size=shape), dtype)
    for factor, verdict in ((1.0, "right"), (0.0, "differs"), (1.1, "differs")):
        function = decorator(make(tf.constant(factor, tf.float32 if case == "a loss in float32" else dtype)))
        (row,) = cg.testing.audit(function, [x]).rows
        assert row.verdict == verdict, (factor, row)


def test_inputs_that_differ_at_other_elements(x):
    """One has a kink where the other has none."""

    @tf.custom_gradient
    def absolute_product(a, b):
        return tf.abs(a) * b, lambda dy: (2 * dy * tf.sign(a) * b, 2 * dy * tf.abs(a))

    arguments = [tf.constant([0.0, 1.3, -2.0]), tf.constant([1.0, 0.7, -2.0])]
    (row,) = cg.testing.audit(lambda a, b: tf.reduce_sum(absolute_product(a, b) ** 2), arguments).rows
    assert (row.verdict, row.detail) == ("differs", "The ratio is 2 everywhere, so a factor is wrong.")


def test_a_loss_that_calls_functions_of_tensorflow_1(rng):
    labels, logits = tf.constant([[1, 2, 1], [2, 2, 3]]), tf.constant(rng.normal(size=(2, 8, 5)), tf.float32)

    def loss(logits):
        return tf.reduce_sum(tf.nn.ctc_loss(labels, logits, [3, 3], [8, 7], logits_time_major=False, blank_index=0))

    assert [row.verdict for row in cg.testing.audit(loss, [logits]).rows] == ["right"]


@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
def test_a_gradient_of_an_identity_is_different_by_design(decorator, x):
    reversed_features = decorator(lambda x: (tf.identity(x), lambda dy: -0.5 * dy))
    clipped = decorator(lambda x: (tf.identity(x), lambda dy: tf.clip_by_norm(dy, 0.1)))
    report = cg.testing.audit(lambda x: tf.reduce_sum(clipped(reversed_features(x) ** 2)), [x])
    assert [row.verdict for row in report.rows] == ["by design"] * 2


def test_an_infinity_from_a_plain_operation_is_not_the_fault_of_a_rule(x):
    report = cg.testing.audit(lambda x: tf.reduce_sum(log1pexp(tf.sqrt(0.0 * log1pexp(x)))), [x])
    assert [row.is_first_nonfinite for row in report.rows] == [False, False]
    assert report.rows[1].detail.startswith("The upstream gradient is not finite: operations without a custom gradient")


def test_none_among_the_upstream_gradients_is_zero(x):
    report = cg.testing.audit(lambda x: (log1pexp(x), twice_too_large(x)), [x], upstream=(tf.ones_like(x), None))
    assert {row.function: row.upstream_norm for row in report.rows} == {
        "log1pexp": pytest.approx(np.sqrt(12)),
        "twice_too_large": 0.0,
    }


def test_a_function_in_like_of_another_shape_is_an_error(x):
    message = r"audit: like\['without_mask'\] must return the shapes of the value, \[\[4, 3\]\], got \[\[\]\]"
    with pytest.raises(ValueError, match=message):
        cg.testing.audit(without_mask, [x], like={"without_mask": tf.reduce_sum})


def test_a_model_that_is_gone_is_named(saved, x):
    with pytest.raises(ValueError, match=r"^audit: the model of .* must stay in memory"):
        cg.testing.audit(tf.saved_model.load(saved).signatures["serving_default"], {"x": x})
    assert cg.testing.audit(tf.saved_model.load(saved), [x]).rows[0].verdict == "differs"


def test_the_command_takes_names_of_the_default_signature_and_intended_gradients(tmp_path, capsys):
    model = Saved()
    signatures = {"serving_default": model.__call__, "other": model.of_tensorflow}
    tf.saved_model.save(model, tmp_path / "model", signatures=signatures)
    np.savez(tmp_path / "inputs.npz", x=np.array([[0.5, -1.0, 2.0]], "f"))
    assert main(tmp_path / "model", "--inputs", tmp_path / "inputs.npz", "--intended", "leaky") == 0
    assert "2 custom gradients, 1 right, 1 by design" in capsys.readouterr().out


@pytest.mark.parametrize(
    "around", [cg.recompute_grad, lambda f: lambda x: cg.scan(lambda c, _: (f(c), None), x, length=2)[0]]
)
def test_functions_of_tensorflow_are_checked_inside_recomputed_ones(around, x):
    def loss(x):
        return tf.reduce_sum(around(lambda x: 0.5 * of_tensorflow(x))(x) ** 2)

    rows = {row.made_by: row for row in cg.testing.audit(loss, [x]).rows}
    row = rows["tf.custom_gradient"]
    assert (row.function, row.verdict) == ("of_tensorflow", "differs")


def test_a_symmetric_matrix_whose_triangles_are_both_read_is_moved_as_any_other():
    """TensorFlow's own gradient of this function is zero at the identity matrix, and wrong."""

    @cg.custom_gradient
    def orthogonal_part(x):
        _, left, right = tf.linalg.svd(x)
        return tf.matmul(left, right, transpose_b=True), tf.zeros_like

    assert verdicts(cg.testing.audit(orthogonal_part, [tf.eye(4)])) == [("orthogonal_part", "differs")]


def test_random_ops_of_any_name_are_not_computed_again(x):
    @cg.custom_gradient
    def sampled(x):
        chosen = tf.one_hot(tf.random.categorical(x, 1)[:, 0], 3)
        return x * chosen, lambda dy: dy * chosen

    @cg.custom_gradient
    def with_noise(x):
        return 2.0 * x, lambda dy: tf.nn.dropout(2.0 * dy, 0.5)

    report = cg.testing.audit(lambda x: sampled(with_noise(x)), [x])
    assert [row.verdict for row in report.rows] == ["not checked"] * 2
    assert "draws other random numbers each time" in report.rows[0].detail
    assert report.rows[1].detail == "its rule draws random numbers"


def test_what_cannot_be_computed_again_does_not_end_the_audit(x):
    @cg.custom_gradient
    def pooled(x):
        """TensorFlow has no kernel of this op for double precision."""
        y = tf.nn.avg_pool3d(tf.reshape(x, [1, 4, 3, 1, 1]), [2, 1, 1], [2, 1, 1], "VALID")
        return y, lambda dy: tf.reshape(tf.repeat(dy, 2, 1) / 2.0, [4, 3])

    report = cg.testing.audit(lambda x: tf.reduce_sum(pooled(log1pexp(x)) ** 2), [x])
    assert verdicts(report) == [("pooled", "not checked"), ("log1pexp", "right")]
    assert report.rows[0].detail.startswith("computing it again in float64 fails: ")


def test_an_input_at_the_end_of_its_domain_and_an_empty_one():
    table = tf.constant([0.0, 1.0, 4.0, 9.0, 16.0])

    @cg.custom_gradient
    def interpolated(x, empty):
        i = tf.cast(tf.floor(x), tf.int32)
        low, high = tf.gather(table, i), tf.gather(table, i + 1)
        y = low + (high - low) * (x - tf.floor(x))
        return y + tf.reduce_sum(empty), lambda dy: (dy * (high - low), tf.zeros([0]))

    arguments = [tf.constant([0.0, 1.3, 2.6]), tf.zeros([0])]
    assert verdicts(cg.testing.audit(interpolated, arguments)) == [("interpolated", "right")]


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "right"), (1.001, "differs")])
def test_a_few_kinks_among_many_elements(factor, verdict, rng):
    x = rng.normal(size=200_000)
    x[[3, 70_000]] = 0.0
    relu = cg.custom_gradient(lambda x: (tf.nn.relu(x), lambda dy: factor * dy * tf.cast(x > 0, x.dtype)))
    assert [row.verdict for row in cg.testing.audit(relu, [tf.constant(x, tf.float32)]).rows] == [verdict]


def test_a_derivative_that_vanishes_is_no_kink():
    square = cg.custom_gradient(lambda x: (x * x, lambda dy: 2.0 * dy * x))
    (row,) = cg.testing.audit(square, [tf.zeros([3])]).rows
    assert (row.verdict, row.checked) == ("right", 3)


def test_what_only_holds_in_single_precision_is_not_called_wrong(rng):
    """NumPy computes in float32 here, so a float64 copy of the rule finds no element that equals the largest one."""

    @cg.custom_gradient
    def row_maximum(x):
        h = tf.sin(x) / 3

        def grad_fn(dy):
            mask = tf.cast(tf.equal(h, tf.numpy_function(lambda h: h.max(-1, keepdims=True), [h], tf.float32)), x.dtype)
            return dy[:, None] * mask * tf.cos(x) / 3

        return tf.reduce_max(h, -1), grad_fn

    (row,) = cg.testing.audit(row_maximum, [tf.constant(rng.normal(size=(4, 5)), tf.float32)]).rows
    assert row.verdict == "not checked"
    assert row.detail.startswith("computed in float64, its gradient is another one")
