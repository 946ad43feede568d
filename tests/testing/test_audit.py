"""The audit of a whole model finds the gradients that are wrong, and leaves the model as it was."""

import functools
import itertools
import re
import tempfile
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg
import tf_cg_ops_cli
from tf_cg_ops import _command_line

from ..support.processes import run_python
from ..support.tensors import pairs
from .test_wrong_gradients import product_rule

RNG = np.random.default_rng(0)
X = tf.constant(RNG.normal(size=(4, 3)), tf.float32)
TABLE = tf.Variable(RNG.normal(size=(5, 3)), dtype=tf.float32)
W = tf.Variable(RNG.normal(size=(3, 3)), dtype=tf.float32)
COUNT, SCRATCH = tf.Variable(0.0, trainable=False), tf.Variable(X)


def normal(*shape, dtype=tf.float32):
    return tf.cast(np.random.default_rng(1).normal(size=shape), dtype)


# Each function takes its arguments after `k`, which multiplies its gradient: it is right for 1.


def log1pexp(k, x):
    e = tf.exp(x)
    return tf.math.log(1 + e), lambda dy: k * dy * (1 - 1 / (1 + e))


def overflowing(k, x):
    e = tf.exp(x)
    return tf.math.log1p(e), lambda dy: k * dy * e / (1 + e)


def cube(k, x):
    return x**3, lambda dy: k * dy * 3 * x**2


def magnitude(k, x):
    """Its gradient is nan at zero."""
    return tf.abs(x), lambda dy: k * dy * x / tf.abs(x)


def bisection(k, x):
    """The square root. The result depends on `x` through comparisons only, so TensorFlow's gradient is zero."""
    low, high = 0.0 * x, 0.0 * x + 10.0
    for _ in range(30):
        middle = (low + high) / 2
        is_low = middle * middle < x
        low, high = tf.where(is_low, middle, low), tf.where(is_low, high, middle)
    y = (low + high) / 2
    return y, lambda dy: k * dy / (2 * y)


def in_a_list(k, x):
    rows, total = tf.TensorArray(x.dtype, 4), tf.zeros_like(x[0])
    for i in range(4):
        total += x[i] ** 2
        rows = rows.write(i, total)
    return rows.stack(), lambda dy: k * 2 * x * tf.cumsum(dy, 0, reverse=True)


def trace_of_eigenvalues(k, x):
    """TensorFlow's gradient has the lower triangle alone."""
    values, vectors = tf.linalg.eigh(x)

    def grad_fn(dy):
        return k * tf.matmul(vectors * dy, vectors, transpose_b=True)

    return values, grad_fn


def product(k, a, b):
    return a * b**2, lambda dy: (dy * b**2, k * 2 * dy * a * b)


def dense(k, x):
    def grad_fn(dy, variables=None):
        return tf.matmul(dy, W, transpose_b=True), [k * tf.matmul(x, dy, transpose_a=True)]

    return tf.matmul(x, W), grad_fn


def lookup(k, x):
    indices = tf.constant([1, 4, 1])

    def grad_fn(dy, variables=None):
        rows = tf.IndexedSlices(k * dy * x, indices, tf.constant([5, 3]))
        return k * dy * tf.gather(TABLE, indices), [rows]

    return tf.gather(TABLE, indices) * x, grad_fn


def accepted(k, x):
    """A sample that is accepted or not: its derivative at a fixed seed is another one."""
    u = tf.random.stateless_uniform([4, 3], [1, 2])
    return tf.where(u < tf.sigmoid(x), x, -x), lambda dy: k * dy * 0.5


def counted(k, x):
    def grad_fn(dy):
        COUNT.assign_add(1.0)
        return k * dy * 2 * x

    return x**2, grad_fn


def not_for_the_factor(k, matrix, factor):
    y = 2 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    return y, lambda dy: (k * dy * tf.linalg.inv(matrix), None)


def cross_entropy(k, x):
    """Nothing but rounding is left of its gradient."""
    y = tf.nn.softmax(x)
    return -tf.math.log(y[:, 0]), lambda dy: k * dy[:, None] * (y - [1.0, 0.0])


def square(k, x):
    return x**2, lambda dy: k * dy * tf.math.conj(2 * x)


def add_bias(k, x, b):
    return x + b, lambda dy: (dy, k * tf.reduce_sum(dy, 0))


def of_stop_gradient(k, x):
    return x + tf.stop_gradient(tf.round(4 * x) / 4 - x), lambda dy: k * dy


def without_mask(k, x):
    return tf.nn.relu(x), lambda dy: k * dy


def dropout(k, x):
    """The audit keeps the random numbers of the run."""
    kept = tf.nn.dropout(tf.ones_like(x), 0.5)
    return x**2 * kept, lambda dy: k * dy * 2 * x * kept


def interpolated(k, x, empty):
    """One of its arguments is at the end of the domain, another is empty."""
    table = tf.constant([0.0, 1.0, 4.0, 9.0, 16.0])
    i = tf.cast(tf.floor(x), tf.int32)
    low, high = tf.gather(table, i), tf.gather(table, i + 1)
    y = low + (high - low) * (x - tf.floor(x)) + tf.reduce_sum(empty)
    return y, lambda dy: (k * dy * (high - low), tf.zeros([0]))


MODES = {
    "plain": lambda loss: loss,
    "of TensorFlow": lambda loss: loss,
    "loop": lambda loss: (
        lambda *args: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + loss(*args)), (0, 0.0))[1]
    ),
    "conditional": lambda loss: lambda *args: tf.cond(tf.size(args[0]) > 0, lambda: loss(*args), lambda: 0.0),
    "recompute": cg.recompute_grad,
    "saved": lambda loss: loss,
}
DECORATED = ("plain", "of TensorFlow")


class Case(NamedTuple):
    """A function with the verdict for `k`, and a pattern for the detail."""

    function: object
    args: tuple
    k: float = 1.0
    verdict: str = "right"
    detail: str = ""
    modes: tuple = (*MODES,)


def case(function, *args, **fields):
    return Case(function, args, **fields)


def wrong(function, *args, detail="", k=1.0):
    return Case(function, args, k, "differs", detail)


def unknown(detail, function, *args):
    return Case(function, args, 1.0, "not checked", detail)


SQUARE = tf.constant([[1.0, 2.0], [-3.0, 5.0]])
SPD = tf.constant(np.cov(RNG.normal(size=(4, 30))) + np.eye(4), tf.float32)
# Right for k = 1, and wrong for others.
FACTORED = {
    "log1pexp": case(log1pexp, X),
    "cube": case(cube, X),
    "relu": case(
        lambda k, x: (tf.nn.relu(x), lambda dy: k * dy * tf.cast(x > 0, x.dtype)), tf.round(3 * normal(3000)) / 3
    ),
    "bisection": case(bisection, tf.constant([0.5, 2.0, 7.0, 30.0, 0.01])),
    # TensorFlow's gradient is nan for negative numbers.
    "of_positive": case(
        lambda k, x: (tf.where(x < 0, 0.0, x * tf.sqrt(x) ** 2), lambda dy: k * dy * 2 * tf.nn.relu(x)), normal(100)
    ),
    "rounded": case(lambda k, x: (0.1 * x**3, lambda dy: k * dy * 0.3 * x**2), normal(8, 100, dtype=tf.bfloat16)),
    "infinite": case(
        lambda k, x: (tf.where(x > -1.0, x**2, -np.inf), lambda dy: k * dy * tf.where(x > -1.0, 2 * x, 0.0)), X
    ),
    "in_a_list": case(in_a_list, X),
    # TensorFlow has no such op in double precision.
    "normalized": case(
        lambda k, x: (tf.nn.lrn(x, depth_radius=0, alpha=1.0), lambda dy: k * dy / (1 + x**2) ** 1.5),
        normal(2, 4, 4, 3),
    ),
    "trace_of_eigenvalues": case(trace_of_eigenvalues, SPD),
    "square_complex": case(square, tf.complex(X, X[::-1])),
    "square_float16": case(square, tf.cast(X, tf.float16)),
    "square_float64": case(square, tf.cast(X, tf.float64)),
    "add_bias": case(add_bias, normal(1000, 3), normal(3)),
    "add_bias_bfloat16": case(add_bias, normal(1000, 3, dtype=tf.bfloat16), normal(3, dtype=tf.bfloat16)),
    "product_of_two": case(product, X, X[::-1]),
    "product_of_one": case(product, X, X),
    "calls_product": case(
        lambda k, x: (cg.custom_gradient(functools.partial(product, k))(x, 1.0 * x), lambda dy: k * 3 * dy * x**2), X
    ),
    "top": case(lambda k, x: (tf.math.top_k(x, 1), lambda dy, _: k * tf.one_hot(tf.argmax(x, -1), 3) * dy), X),
    "dense": case(dense, X),
    "lookup": case(lookup, X[:3]),
    "dropout": case(dropout, X),
    "counted": case(counted, X),
    "interpolated": case(interpolated, tf.constant([0.0, 1.3, 2.6]), tf.zeros([0])),
    "wrong_in_one": case(
        lambda k, x: (x**2, lambda dy: 2 * dy * x * (1 + (k - 1) * tf.one_hot(17, 5000))), normal(5000)
    ),
}
NOT_FINITE = "not finite.* In float64 it is finite"
# Of numbers that are compared in the same way wherever they come from.
NUMBERS = {
    "negative": wrong(cube, X, k=-1.0, detail="sign is wrong"),
    "zero": wrong(cube, X, k=0.0, detail="zero everywhere"),
    "at_zero": case(cube, tf.zeros([3])),
    "no_bisection": wrong(bisection, tf.constant([0.5, 2.0]), k=0.0),
    "large": case(log1pexp, tf.constant([100.0, 1.0])),
    "overflowing": wrong(overflowing, tf.constant([100.0, 1.0]), detail=NOT_FINITE),
    "overflowing_float16": wrong(overflowing, tf.constant([12.0, 1.0], tf.float16), detail=NOT_FINITE),
    "only_rounding": case(cross_entropy, tf.constant([[18.0, 0.0], [17.0, 0.0]])),
    "without_mask": wrong(without_mask, X),
    "at_a_kink": unknown("there may be a kink", without_mask, tf.zeros([3])),
    "magnitude": wrong(magnitude, tf.constant([0.0, 1.0]), detail="The gradient is not finite"),
    "transposed": wrong(
        lambda k, x: (tf.linalg.band_part(x, 0, -1), lambda dy: k * tf.transpose(tf.linalg.band_part(dy, 0, -1))),
        tf.constant((W + tf.transpose(W)).numpy()),
    ),
    "symmetrized": wrong(
        lambda k, x: (tf.reduce_sum(SQUARE * x), lambda dy: dy * (SQUARE + tf.transpose(SQUARE)) / 2), tf.zeros([2, 2])
    ),
}
OTHERS = {
    **{name: each._replace(modes=DECORATED) for name, each in NUMBERS.items()},
    "of_stop_gradient": case(of_stop_gradient, X),
    "wrong_of_stop_gradient": wrong(of_stop_gradient, X, k=2.0),
    "accepted": unknown("its value draws random numbers; at a fixed seed: input 0 at .* got", accepted, X),
    "with_noise": unknown(
        "its rule draws random numbers", lambda k, x: (2.0 * x, lambda dy: tf.nn.dropout(2.0 * dy, 0.5)), X
    ),
    "assigned": unknown(
        "its value goes through a variable that it writes",
        lambda k, x: (2 * SCRATCH.assign(x), lambda dy, variables=None: (2 * dy, [None])),
        X,
    ),
    "not_for_the_factor": wrong(
        not_for_the_factor, SPD, tf.linalg.cholesky(SPD), detail="returns None for input 1, on which"
    ),
    "of_the_third": case(
        lambda k, a, b, c: (a * b * c, lambda dy: (None, None, k * dy * a * b)),
        *(X, X + 1, X + 2),
        detail="returns None for input 0 and input 1, on which",
    ),
    "nothing": unknown("its rule returns no gradient", lambda k, x: (2 * x, lambda dy: [None]), X),
    "clipped": wrong(lambda k, x: (tf.identity(x), lambda dy: k * tf.clip_by_norm(dy, 0.1)), X),
    # Python code cannot be recomputed or saved.
    "of_python": unknown(
        "no gradient of its op '.*PyFunc' .*PyFunc",
        lambda k, x: (tf.numpy_function(np.sin, [x], tf.float32) + x, lambda dy: dy * tf.cos(x) + dy),
        X,
    )._replace(modes=(*MODES,)[:4]),
}
WRONG = {f"wrong_{name}": each._replace(k=1.1, verdict="differs") for name, each in FACTORED.items()}
NAMED = FACTORED | WRONG | OTHERS


def function_of(name, decorator=cg.custom_gradient):
    def function(*args):
        y, grad_fn = NAMED[name].function(tf.cast(NAMED[name].k, args[0].dtype), *args)
        grad_fn.__qualname__ = f"{name}.<locals>.grad_fn"  # All that is known of a function of TensorFlow's decorator.
        return y, grad_fn

    function.__qualname__ = name
    return decorator(function)


def loss_of(name, decorator=cg.custom_gradient):
    """A number, for which every element of the value has another upstream gradient."""
    function = function_of(name, decorator)

    def loss(*args):
        y = tf.nest.flatten(function(*args))[0]
        weights = tf.reshape(tf.range(tf.size(y)) % 7 + 1, tf.shape(y))
        return tf.cast(tf.math.real(tf.reduce_sum(tf.cast(weights, y.dtype) * y)), tf.float32)

    return loss


def audited(names, mode):
    """The rows of one audit of the sum of these functions, by the name of the case."""
    decorator = tf.custom_gradient if mode == "of TensorFlow" else cg.custom_gradient
    losses = {name: MODES[mode](loss_of(name, decorator)) for name in names}

    def total(args):
        return tf.add_n([loss(*args[name]) for name, loss in losses.items()])

    args = {name: NAMED[name].args for name in names}
    if mode == "saved":
        module = tf.Module()
        module.total, module.variables_of_it = tf.function(total), [W, TABLE, COUNT, SCRATCH]
        module.total.get_concrete_function(args)
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(module, folder)
            module = tf.saved_model.load(folder)
        total = module.total
    return {row.function: row for row in cg.testing.audit(total, [args]).rows}


def audits():
    """Each mode with the names of its cases, about twelve for an audit.

    Each case is quick in two of its modes, in turn; a wrong factor and special numbers are in one.
    """
    quick = set()
    for i, (name, each) in enumerate(NAMED.items()):
        count = 2 if each.k == 1.0 and each.modes != DECORATED else 1
        quick |= {(each.modes[(count * i + j) % len(each.modes)], name) for j in range(count)}
    for mode, is_slow in itertools.product(MODES, (False, True)):
        names = [name for name in NAMED if mode in NAMED[name].modes and ((mode, name) not in quick) == is_slow]
        for part in (names[i :: len(names) // 12 + 1] for i in range(len(names) // 12 + 1)):
            yield pytest.param(mode, part, id=f"{mode}-{part[0]}", marks=[pytest.mark.slow] * is_slow)


@pytest.mark.parametrize(("mode", "names"), [*audits()])
def test_the_verdicts(mode, names):
    rows = audited(names, mode)
    for name in names:
        row, verdict, detail = rows[name], NAMED[name].verdict, NAMED[name].detail
        if mode == "saved" and name.endswith("calls_product"):  # Its value calls another one with a gradient.
            verdict, detail = "not checked", "does not have the derivative of order 2"
        assert row.verdict == verdict, row
        assert re.search(detail, row.detail), row


def decorated(function, k=1.0, decorator=cg.custom_gradient):
    return decorator(lambda *args: function(tf.constant(k), *args))


def verdicts(report):
    return [(row.function, row.verdict) for row in report.rows]


@pytest.mark.core
def test_a_wrong_factor_in_one_of_twelve_blocks_is_one_row_of_two():
    @cg.custom_gradient
    def activation(x, k):
        return tf.sinh(x), lambda dy: (k * dy * tf.cosh(x), tf.zeros([]))

    def model(x):
        for block in range(12):
            x = activation(x @ W / 10.0, tf.constant(1.5 if block == 7 else 1.0))
        return tf.reduce_mean(x**2)

    report = cg.testing.audit(model, [X])
    assert [(row.verdict, row.places) for row in report.rows] == [("right", 11), ("differs", 1)]
    assert report.wrong[0].detail == "The ratio is 1.5 everywhere, so a factor is wrong."
    assert report.wrong[0].line.startswith("test_audit.py:")
    with pytest.raises(AssertionError, match="12 custom gradients, 11 right, 1 differs"):
        report.raise_if_wrong()


@pytest.mark.parametrize(
    ("above", "function", "x", "verdict"),
    [(tf.sqrt, overflowing, 100.0, "differs"), (lambda y: 1 / y, log1pexp, 1.0, "right")],
)
def test_a_rule_that_overflows_below_another_nan(above, function, x, verdict):
    rule = decorated(function)
    row = cg.testing.audit(lambda x: tf.reduce_sum(above(rule(x) - rule(x))), [tf.constant([x, 1.0])]).rows[-1]
    assert row.verdict == verdict
    assert ("The gradient is not finite for a random upstream gradient." in row.detail) == (verdict == "differs")


def test_a_rule_that_is_right_for_the_upstream_of_the_run_alone():
    bounded = cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: tf.minimum(dy, 1.0)))
    (row,) = cg.testing.audit(lambda x: tf.reduce_sum(bounded(x)), [X]).rows
    assert row.verdict == "differs"
    assert row.detail.endswith("It is right for the upstream gradient of this run, and wrong for a random one.")


@pytest.mark.parametrize(("k", "verdict"), [(3.0, "right"), (3.3, "differs")])
def test_a_value_that_a_loop_computes(k, verdict):
    @cg.custom_gradient
    def cube_by_a_loop(x):
        y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), (0, tf.ones_like(x)), maximum_iterations=3)[
            1
        ]
        return y, lambda dy: k * dy * x**2

    assert [row.verdict for row in cg.testing.audit(lambda x: tf.reduce_sum(cube_by_a_loop(x)), [X]).rows] == [verdict]


@pytest.mark.parametrize(("k", "verdict"), [(1.0, "right"), (1.1, "differs")])
def test_a_loaded_gradient_of_tensorflow(k, verdict, tmp_path):
    module = tf.Module()
    sine = tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: k * dy * tf.cos(x)))
    module.f = tf.function(lambda x: tf.reduce_sum(sine(x)), [tf.TensorSpec(X.shape)])
    tf.saved_model.save(module, tmp_path)
    (row,) = cg.testing.audit(tf.saved_model.load(tmp_path).f, [X]).rows
    assert (row.verdict, row.made_by) == (verdict, "tf.custom_gradient")


@pytest.mark.core
def test_the_norms_are_those_of_the_run():
    upstream = np.float32(normal(4, 3))
    (row,) = cg.testing.audit(lambda x: 3 * decorated(log1pexp)(x), [X], upstream=upstream).rows
    values, sigmoid = np.float64(X), 1 / (1 + np.exp(-np.float64(X)))
    norms = row.value_norm, row.upstream_norm, row.gradient_norm
    expected = np.log1p(np.exp(values)), 3 * upstream, 3 * upstream * sigmoid
    assert norms == pytest.approx([np.linalg.norm(array) for array in expected], rel=1e-5)
    assert (row.runs, row.input_shapes, row.output_shapes) == (1, ((4, 3),), ((4, 3),))


@pytest.mark.core
def test_the_order_is_that_of_the_backward_pass_also_in_functions_and_recomputed_ones():
    block = cg.recompute_grad(lambda x: tf.sin(twice(x)))
    twice, first = function_of("wrong_cube"), function_of("log1pexp")
    report = cg.testing.audit(lambda x: tf.reduce_sum(block(tf.function(first)(x))), [X])
    assert verdicts(report) == [("<lambda>", "not checked"), ("wrong_cube", "differs"), ("log1pexp", "right")]


@pytest.mark.core
def test_the_table_and_the_page():
    first, second = function_of("log1pexp"), decorated(magnitude)
    report = cg.testing.audit(lambda x: tf.reduce_sum(first(second(first(x) * [[1.0, 0.0, 1.0]]))), [X])
    assert max(map(len, str(report).splitlines()[1:])) <= 100
    page = report.to_html()
    assert page.count('<tr class="wrong"') == 1
    assert page.count('class="bar') == 2 * len(report.rows)


@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
@pytest.mark.parametrize("gradient", [lambda dy: 2 * tf.reduce_sum(dy, 0), lambda dy: {}["mine"]], ids=["shape", "key"])
def test_a_gradient_function_that_fails_has_a_row(decorator, gradient):
    @decorator
    def scaled(x):
        return 2 * x, lambda dy: gradient(dy)

    row = cg.testing.audit(lambda x: tf.reduce_sum(scaled(x)), [X]).rows[0]
    assert (row.function, row.verdict) == ("scaled", "differs")
    assert re.search("^Computing its gradient fails: (ValueError: .* shape .*|KeyError: 'mine')", row.detail)


@pytest.mark.core
def test_the_model_stays_as_it_was():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.BatchNormalization()])
    generator = tf.random.Generator.from_seed(1)
    variables = [*model.variables, generator.state, COUNT]
    before = [np.array(variable) for variable in variables]
    tf.random.set_seed(5)
    expected = tf.random.normal([3]).numpy()
    writes = function_of("counted")
    tf.random.set_seed(5)
    cg.testing.audit(lambda x: tf.reduce_sum(writes(model(x, training=True)) * generator.normal([4])), [X])
    np.testing.assert_array_equal(tf.random.normal([3]), expected)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.core
def test_layers_that_differ_by_design():
    inputs = keras.Input([3])
    features = keras.layers.Dense(4)(inputs)
    embedded = cg.layers.EmbedGradient()([features, 2 * keras.ops.ones_like(features), features])
    outputs = cg.layers.ClipGradient(norm=0.1)(cg.layers.StraightThrough(tf.sign)(embedded))
    model = keras.Model(inputs, keras.layers.Dense(1)(cg.layers.ReverseGradient(0.5)(outputs)))
    report = cg.testing.audit(model, [X])
    assert [row.verdict for row in report.rows] == ["by design"] * 4
    report.raise_if_wrong()
    seen = []
    watched = cg.testing.audit(lambda x: tf.reduce_sum(cg.watch_gradient(x, "x", callback=seen.append)), [X])
    assert (verdicts(watched), seen) == ([("watch_gradient", "by design")], [])


AROUND = {
    "plain": lambda f: f,
    "function": tf.function,
    "recomputed": cg.recompute_grad,
    "overridden": lambda f: cg.override_gradients(f, {"Sin": lambda op, dy: dy}),
}


@pytest.mark.parametrize("around", AROUND)
def test_the_line_is_of_the_op_also_in_a_folder_with_the_name_of_the_library(around, tmp_path):
    path = tmp_path / "tf_cg_ops" / "model.py"
    path.parent.mkdir()
    path.write_text("def f(x):\n    y = tf.sin(x)\n    return tf.reduce_sum(\n        cube(y) + tf.sqrt(x - x))\n")
    code = {"tf": tf, "cube": decorated(cube)}
    exec(compile(path.read_text(), path, "exec"), code)
    report = cg.testing.audit(AROUND[around](code["f"]), [X])
    lines = {row.function.split()[0]: row.line for row in report.rows}
    assert lines["<lambda>"] == "model.py:4"
    assert lines.get("Sin", "model.py:2") == "model.py:2"
    assert report.first_nonfinite.at == "model.py:4"


def gated(k, x, gate):
    return x * gate, lambda dy: (dy * gate, k * dy * x)


def given_to_the_first(k, x, gate):
    """The whole gradient of `x * sigmoid(x)`, all of it for the first argument."""
    return x * gate, lambda dy: (k * dy * (gate + x * gate * (1 - gate)), None)


WHOLE = {  # A function of its inputs, of which the second is computed from the first.
    "solve": (not_for_the_factor, tf.linalg.cholesky, SPD),
    "all for the first": (given_to_the_first, tf.sigmoid, X),
    "each its own": (gated, tf.sigmoid, X),
    "through a variable": (given_to_the_first, lambda x: tf.sigmoid(x) * W[0, 0] / W[0, 0], X),
}
AROUND_WHOLE = {"loop": MODES["loop"], "conditional": MODES["conditional"], **AROUND}


@pytest.mark.parametrize(("name", "around"), pairs(WHOLE, [n for n in AROUND_WHOLE if n != "overridden"], quick=2))
def test_inputs_that_are_functions_of_one_another_are_judged_as_a_whole(name, around):
    function, second, x = WHOLE[name]
    rules = [decorated(function, k) for k in (1.0, 1.1, -1.0)]

    def total(x):
        return tf.add_n([tf.reduce_sum(tf.sin(rule(x, second(x)))) for rule in rules])

    rows = {row.verdict: row for row in cg.testing.audit(AROUND_WHOLE[around](total), [x]).rows}
    assert (rows["right"].places, rows["differs"].places) == (1, 2)
    assert ("as a whole" in rows["right"].detail) == (function is not gated)
    assert "as a whole" not in rows["differs"].detail


def wrong_for_one_input(k):
    return product_rule(lambda dx, dw, needed, _: (dx, dw if needed[0] else k * dw))


def wrong_for_one_output(k):
    return product_rule(lambda dx, dw, _, used: (dx if used[0] else k * dx, dw), materialize_grads=False)


# A function that is wrong for what the run left out, and a factor with which it is.
ALONE = {
    "one input": (wrong_for_one_input, 1.1, "If only 'y' is needed: The ratio is 1.1"),
    "one output": (wrong_for_one_output, 1.1, "If only output 1 is used: The ratio is 1.1"),
    "raises": (wrong_for_one_output, tf.zeros([5]), "If only output 1 is used: computing its gradient fails: "),
}


@pytest.mark.parametrize(("name", "around"), pairs(ALONE, ["plain", "loop", "conditional", "function"], quick=2))
def test_a_rule_that_is_wrong_for_what_the_run_left_out(name, around):
    """The run uses one output, and needs all inputs."""
    make, factor, detail = ALONE[name]
    functions = [make(1.0), make(factor)]

    def total(x):
        return tf.add_n([tf.reduce_sum(tf.sin(function(x, TABLE[:4])[0])) for function in functions])

    rows = {row.verdict: row for row in cg.testing.audit(AROUND_WHOLE[around](total), [X]).rows}
    assert (rows["right"].places, rows["differs"].places, len(rows)) == (1, 1, 2)
    assert rows["differs"].detail.startswith(detail)


def test_what_the_user_declares_by_name_and_by_place(saved):
    """The functions of a library with a wrapper have one name. They also compute the same here."""

    def wrapped(k):
        @cg.custom_gradient
        def f_wrapped(x):
            return tf.sin(x), lambda dy: k * dy

        return f_wrapped

    def function(x):
        y = wrapped(1.0)(x)
        return wrapped(2.0)(y) + wrapped(3.0)(x)

    first = function.__code__.co_firstlineno + 1
    y, z = f"test_audit.py:{first}", f"test_audit.py:{first + 1}"
    for like, intended, expected in (
        (y, [], "differs"),
        (y, ["f_wrapped"], "by design"),
        ("f_wrapped", [z], "by design"),
    ):
        report = cg.testing.audit(function, [X], like={like: tf.identity}, intended=intended)
        assert {row.line: row.verdict for row in report.rows} == {y: "right", z: expected}
    loaded = tf.saved_model.load(saved)  # Without lines, so the report shows the nodes.
    wrong = cg.testing.audit(loaded.signatures["serving_default"], {"x": X[:2]}).wrong[0].node
    assert not cg.testing.audit(loaded.signatures["serving_default"], {"x": X[:2]}, intended=[wrong]).wrong


@pytest.mark.parametrize("factor", [1.0, 7.0])
def test_a_solver_that_is_far_off_is_wrong(factor):
    root = cg.implicit_root(
        lambda y, a: y**2 - a, tf.sqrt, linear_solve=lambda matvec, b: factor * b / (2 * tf.sqrt(X**2))
    )
    report = cg.testing.audit(lambda a: tf.reduce_sum(root(a)), [X**2])
    assert [row.verdict for row in report.rows] == ["right" if factor == 1 else "differs"]


class Saved(tf.Module):
    def __init__(self):
        self.bias = tf.Variable(0.3)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x):
        right, wrong = function_of("log1pexp"), function_of("wrong_cube")
        return tf.cond(tf.reduce_sum(x) < 100.0, lambda: wrong(right(x + self.bias)), lambda: x)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def of_tensorflow(self, x):
        return decorated(cube, 2.0, tf.custom_gradient)(x)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    model = Saved()
    tf.saved_model.save(model, folder, signatures={"serving_default": model.__call__, "other": model.of_tensorflow})
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
    of_cond = "('wrong_cube', 'differs') ('log1pexp', 'right')"
    printed = run_python(LOAD, saved, cwd=tmp_path).stdout
    assert printed.splitlines() == [of_cond, "('IdentityN', 'differs')", of_cond, "differs"]


def test_a_model_of_tensorflows_decorator_before_and_after_it_is_adopted(saved, tmp_path):
    cg.saved_model.adopt(saved, tmp_path / "adopted")
    (before,) = cg.testing.audit(Saved().of_tensorflow, [X]).rows
    (after,) = cg.testing.audit(tf.saved_model.load(str(tmp_path / "adopted")).of_tensorflow, [X]).rows
    assert (before.made_by, before.verdict) == ("tf.custom_gradient", "differs")
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
    assert err == "2 custom gradients\n"
    assert (page.read_text().count("<tr"), page.read_text().count("http")) == (3, 0)
    assert main(saved, "--inputs", tmp_path / "inputs.npz", "--intended", "wrong_cube") == 0
    assert "2 custom gradients, 1 right, 1 by design" in capsys.readouterr().out
    assert main(saved) == 1
    assert capsys.readouterr().err.startswith("args are random numbers that fit the signature")


def test_wrong_uses_of_the_command(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("y.npz", y=np.ones([2, 3], "f"))
    np.savez("shape.npz", x=np.ones([3], "f"))
    for option, value, message in (
        ("--signature", "train", "--signature must name a signature of"),
        ("--inputs", "y.npz", "'y.npz' must be an .npz file with arrays named 'x', got 'y'"),
        ("--inputs", "shape.npz", "'serving_default' must get inputs like 'x': float32 (None, 3)"),
        ("--inputs", "none.npz", "'none.npz'"),
    ):
        assert main(saved, option, value) == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tf-cg-ops audit:")]
        assert line.startswith(f"tf-cg-ops audit: {message}")


def test_a_model_that_is_not_kept_is_asked_for(saved):
    with pytest.raises(ValueError, match=r"^audit: the model of .* must stay in memory"):
        cg.testing.audit(tf.saved_model.load(saved).signatures["serving_default"], {"x": X})


def test_none_among_the_upstream_gradients_is_zero():
    first, second = function_of("log1pexp"), function_of("cube")
    report = cg.testing.audit(lambda x: (first(x), second(x)), [X], upstream=(tf.ones_like(X), None))
    norms = {row.function: row.upstream_norm for row in report.rows}
    assert norms == {"log1pexp": pytest.approx(np.sqrt(12)), "cube": 0.0}


def test_a_model_without_gradients_of_its_own():
    report = cg.testing.audit(keras.Sequential([keras.Input([3]), keras.layers.Dense(4)]), [X])
    assert str(report) == "'Sequential' has no gradients of its own, and its gradient is finite."


@pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_inputs_of_a_keras_model_by_order_and_by_name_and_random_ones(package):
    """The order of the inputs is not the order of their names, and their sizes differ, so an exchange shows.

    A functional model has them in a structure, and a Sequential of Keras 3 only in a list.
    """
    layers, right = package.layers, function_of("log1pexp")
    u, v, n = package.Input([2], name="u"), package.Input([3], name="a"), package.Input([2], name="n", dtype="int32")
    y = layers.Concatenate()([right(u), v])
    of_integers = layers.Concatenate()([right(u), layers.Flatten()(layers.Embedding(2, 1)(n))])

    class TwoArguments(package.Model):
        def call(self, a, b=None):
            return right(a) + b

    x, of_u = tf.constant([[0.5, -2.0, 1.0]]), tf.constant([[3.0, 4.0]])
    in_list, in_dict = package.Model([u, v], y), package.Model({"u": u, "a": v}, y)
    single = package.Sequential([layers.Input([2], name="u"), layers.Dense(2, right)])
    cases = [
        *((in_list, args) for args in ([of_u, x], (of_u.numpy(), x.numpy()), [[of_u, x]], {"a": x, "u": of_u})),
        (in_list, {"inputs": [of_u, x], "training": True}),
        (in_dict, {"a": x, "u": of_u}),
        (single, {"u": of_u}),
        (single, [of_u]),
        (single, None),
        (package.Model([u, n], of_integers), None),
        (package.Model({"u": u, "n": n}, of_integers), None),
        (TwoArguments(), [x, x]),
        (TwoArguments(), {"b": x, "a": x}),
    ]
    for model, args in cases:
        (row,) = cg.testing.audit(model, args).rows
        batch, size = 1 if args else 2, 3 if isinstance(model, TwoArguments) else 2
        assert (row.verdict, row.input_shapes) == ("right", ((batch, size),))
