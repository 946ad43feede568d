"""The audit of a whole model finds the gradients that are wrong, and leaves the model as it was."""

import functools
import re
import tempfile
import warnings
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

RNG = np.random.default_rng(0)
X = tf.constant(RNG.normal(size=(4, 3)), tf.float32)
TABLE = tf.Variable(RNG.normal(size=(5, 3)), dtype=tf.float32)
W = tf.Variable(RNG.normal(size=(3, 3)), dtype=tf.float32)
COUNT = tf.Variable(0.0, trainable=False)


def normal(*shape, scale=1.0, dtype=tf.float32):
    return tf.cast(scale * np.random.default_rng(1).normal(size=shape), dtype)


# Each function takes its arguments after `k`, which multiplies its gradient: it is right for 1.


def log1pexp(k, x):
    e = tf.exp(x)
    return tf.math.log(1 + e), lambda dy: k * dy * (1 - 1 / (1 + e))


def overflowing(k, x):
    e = tf.exp(x)
    return tf.math.log1p(e), lambda dy: k * dy * e / (1 + e)


def cube(k, x):
    return x**3, lambda dy: k * dy * 3 * x**2


def relu_layer(k, x):
    w = normal(30, 40, scale=0.2)
    y = tf.nn.relu(x @ w)
    return y, lambda dy: tf.matmul(tf.where(y > 0, k * dy, 0 * dy), w, transpose_b=True)


def relu(k, x):
    return tf.nn.relu(x), lambda dy: k * dy * tf.cast(x > 0, x.dtype)


def without_mask(k, x):
    return tf.nn.relu(x), lambda dy: k * dy


def magnitude(k, x):
    """Its gradient is nan at zero."""
    return tf.abs(x), lambda dy: k * dy * x / tf.abs(x)


def bisection(k, x):
    """The square root. The result depends on `x` through comparisons only, so TensorFlow's gradient is zero."""
    low, high = 0.0 * x, 0.0 * x + 10.0
    for _ in range(40):
        middle = (low + high) / 2
        is_low = middle * middle < x
        low, high = tf.where(is_low, middle, low), tf.where(is_low, high, middle)
    y = (low + high) / 2
    return y, lambda dy: k * dy / (2 * y)


def of_positive(k, x):
    """TensorFlow's gradient is nan for negative numbers."""
    return tf.where(x < 0, 0.0, x * tf.sqrt(x) ** 2), lambda dy: k * dy * 2 * tf.nn.relu(x)


def logsumexp(k, x):
    return tf.reduce_logsumexp(x, -1), lambda dy: k * dy[:, None] * tf.nn.softmax(x)


def gelu(k, x):
    """Its constants are rounded in bfloat16."""
    t = tf.tanh(0.7978845608 * (x + 0.044715 * x**3))
    slope = 0.7978845608 * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + t), lambda dy: k * dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope)


def cross_entropy(k, x):
    """Nothing but rounding is left of its gradient."""
    y = tf.nn.softmax(x)
    return -tf.math.log(y[:, 0]), lambda dy: k * dy[:, None] * (y - [1.0, 0.0])


def masked(k, x):
    """Some of its values are infinite."""
    y, finite = tf.where(x > -1.0, tf.nn.log_softmax(x), -np.inf), tf.cast(x > -1.0, x.dtype)

    def grad_fn(dy):
        dy = k * dy * finite
        return dy - tf.nn.softmax(x) * tf.reduce_sum(dy, -1, keepdims=True)

    return y, grad_fn


def attention(k, q, key, v):
    p = tf.nn.softmax(tf.matmul(q, key, transpose_b=True))

    def grad_fn(dy):
        dp = tf.matmul(dy, v, transpose_b=True)
        ds = k * p * (dp - tf.reduce_sum(dp * p, -1, keepdims=True))
        return ds @ key, tf.matmul(ds, q, transpose_a=True), k * tf.matmul(p, dy, transpose_a=True)

    return p @ v, grad_fn


def in_a_list(k, x):
    rows, total = tf.TensorArray(x.dtype, 4), tf.zeros_like(x[0])
    for i in range(4):
        total += x[i] ** 2
        rows = rows.write(i, total)
    return rows.stack(), lambda dy: k * 2 * x * tf.cumsum(dy, 0, reverse=True)


def normalized(k, x):
    """TensorFlow has no such op in double precision."""
    y, mean, _ = tf.compat.v1.nn.fused_batch_norm(x, tf.ones(3), tf.zeros(3), epsilon=0.1)
    scale = tf.math.rsqrt(tf.math.reduce_variance(x, [0, 1, 2]) + 0.1)
    n = (x - mean) * scale

    def grad_fn(dy):
        return k * scale * (dy - tf.reduce_mean(dy, [0, 1, 2]) - n * tf.reduce_mean(dy * n, [0, 1, 2]))

    return y, grad_fn


def log_determinant(k, x):
    y = 2 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(tf.linalg.cholesky(x))), -1)
    return y, lambda dy: k * dy * tf.linalg.inv(x)


def upper(k, x):
    """The gradient is transposed."""
    return tf.linalg.band_part(x, 0, -1), lambda dy: k * tf.transpose(tf.linalg.band_part(dy, 0, -1))


def trace_of_eigenvalues(k, x):
    """TensorFlow's gradient has the lower triangle alone."""
    values, vectors = tf.linalg.eigh(x)

    def grad_fn(dy):
        return k * tf.matmul(vectors * dy, vectors, transpose_b=True)

    return values, grad_fn


def symmetrized(k, x):
    c = tf.constant([[1.0, 2.0], [-3.0, 5.0]])
    return tf.reduce_sum(c * x), lambda dy: dy * (c + tf.transpose(c)) / 2


def square(k, x):
    return x**2, lambda dy: k * dy * tf.math.conj(2 * x)


def add_bias(k, x, b):
    return x + b, lambda dy: (dy, k * tf.reduce_sum(dy, 0))


def product(k, a, b):
    return a * b**2, lambda dy: (dy * b**2, k * 2 * dy * a * b)


def same_twice(k, x):
    return cg.custom_gradient(functools.partial(product, k))(x, tf.identity(x)), lambda dy: k * 3 * dy * x**2


def top(k, x):
    index = tf.argmax(x, -1)
    return (tf.reduce_max(x, -1), index), lambda dy, _: k * tf.one_hot(index, 3) * dy[:, None]


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


def dropout(k, x):
    """The audit keeps the random numbers of the run."""
    kept = tf.nn.dropout(tf.ones_like(x), 0.5)
    return x**2 * kept, lambda dy: k * dy * 2 * x * kept


def accepted(k, x):
    """A sample that is accepted or not: its derivative at a fixed seed is another one."""
    u = tf.random.stateless_uniform([4, 3], [1, 2])
    return tf.where(u < tf.sigmoid(x), x, -x), lambda dy: k * dy * 0.5


def with_noise(k, x):
    return 2.0 * x, lambda dy: tf.nn.dropout(2.0 * dy, 0.5)


def of_stop_gradient(k, x):
    return x + tf.stop_gradient(tf.round(4 * x) / 4 - x), lambda dy: k * dy


def assigned(k, x):
    v = TABLE
    before = tf.identity(v)
    v.assign(tf.concat([x, x[:1]], 0))
    y = 2 * v.read_value()[:4]
    with tf.control_dependencies([y]):
        v.assign(before)
    return y, lambda dy, variables=None: (2 * dy, [None])


def counted(k, x):
    def grad_fn(dy):
        COUNT.assign_add(1.0)
        return k * dy * 2 * x

    return x**2, grad_fn


def not_for_the_factor(k, matrix, factor):
    y = 2 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    return y, lambda dy: (k * dy * tf.linalg.inv(matrix), None)


def of_the_third(k, a, b, c):
    return a * b * c, lambda dy: (None, None, k * dy * a * b)


def nothing(k, x):
    return 2 * x, lambda dy: [None]


def interpolated(k, x, empty):
    """One of its arguments is at the end of the domain, another is empty."""
    table = tf.constant([0.0, 1.0, 4.0, 9.0, 16.0])
    i = tf.cast(tf.floor(x), tf.int32)
    low, high = tf.gather(table, i), tf.gather(table, i + 1)
    y = low + (high - low) * (x - tf.floor(x)) + tf.reduce_sum(empty)
    return y, lambda dy: (k * dy * (high - low), tf.zeros([0]))


def wrong_in_one(k, x):
    return x**2, lambda dy: 2 * dy * x * (1 + (k - 1) * tf.one_hot(17, 5000))


def identity(k, x):
    return tf.identity(x), lambda dy: k * tf.clip_by_norm(dy, 0.1)


def scaled(k, x):
    return tf.identity(x), lambda dy: k * 0.5 * dy


def of_python(k, x):
    return tf.numpy_function(np.sin, [x], tf.float32) + x, lambda dy: dy * tf.cos(x) + dy


def saturated(k, x):
    e = tf.exp(6 * x)
    return tf.nn.softplus(x), lambda dy: k * dy * tf.sigmoid(x) * e / e


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
DECORATED, AROUND_ALL = ("plain", "of TensorFlow"), ("loop", "conditional", "recompute", "saved")


class Case(NamedTuple):
    """A function with the verdict for `k`, and a pattern for the detail."""

    function: object
    args: list
    k: float = 1.0
    verdict: str = "right"
    detail: str = ""
    modes: tuple = (*MODES,)


SPD = tf.constant(np.cov(RNG.normal(size=(4, 30))) + np.eye(4), tf.float32)
FACTORED = [  # Right for k = 1, and wrong for others.
    (log1pexp, [X]),
    (cube, [X]),
    (relu_layer, [normal(20, 30)]),
    (relu, [tf.where(normal(3000) < -2.5, 0.0, normal(3000))]),
    (bisection, [tf.constant([0.5, 2.0, 7.0, 30.0, 0.01])]),
    (of_positive, [normal(100)]),
    (logsumexp, [normal(8, 1000, dtype=tf.bfloat16)]),
    (gelu, [normal(8, 100, dtype=tf.bfloat16)]),
    (masked, [normal(4, 6)]),
    (attention, [normal(5, 4, scale=5.0), X[:3] @ normal(3, 4), normal(3, 4)]),
    (in_a_list, [X]),
    (normalized, [normal(2, 4, 4, 3)]),
    (log_determinant, [SPD]),
    (trace_of_eigenvalues, [SPD]),
    (square, [tf.complex(X, X[::-1])]),
    (square, [tf.cast(X, tf.float16)]),
    (square, [tf.cast(X, tf.float64)]),
    (add_bias, [normal(1000, 3), normal(3)]),
    (add_bias, [normal(1000, 3, dtype=tf.bfloat16), normal(3, dtype=tf.bfloat16)]),
    (product, [X, X[::-1]]),
    (product, [X, X]),
    (same_twice, [X]),
    (top, [X]),
    (dense, [X]),
    (lookup, [X[:3]]),
    (dropout, [X]),
    (counted, [X]),
    (interpolated, [tf.constant([0.0, 1.3, 2.6]), tf.zeros([0])]),
    (wrong_in_one, [normal(5000)]),
]
# Of numbers that are compared in the same way wherever they come from.
NUMBERS = [
    Case(cube, [X], -1.0, "differs", "sign is wrong"),
    Case(cube, [X], 0.0, "differs", "zero everywhere"),
    Case(cube, [tf.zeros([3])]),
    Case(bisection, [tf.constant([0.5, 2.0])], 0.0, "differs"),
    Case(log1pexp, [tf.constant([100.0, 1.0])]),
    Case(overflowing, [tf.constant([100.0, 1.0])], 1.0, "differs", "not finite.* In float64 it is finite"),
    Case(overflowing, [tf.constant([12.0, 1.0], tf.float16)], 1.0, "differs", "not finite.* In float64 it is finite"),
    Case(saturated, [tf.constant([2.0, 1.0], tf.float16)], 1.0, "differs", "not finite.* In float64 it is finite"),
    Case(cross_entropy, [tf.constant([[18.0, 0.0], [17.0, 0.0]])]),
    Case(without_mask, [X], 1.0, "differs"),
    Case(without_mask, [tf.zeros([3])], 1.0, "not checked", "there may be a kink"),
    Case(magnitude, [tf.constant([0.0, 1.0])], 1.0, "differs", "The gradient is not finite"),
    Case(upper, [tf.constant((W + tf.transpose(W)).numpy())], 1.0, "differs"),
    Case(symmetrized, [tf.zeros([2, 2])], 1.0, "differs"),
    Case(scaled, [X], 1.0, "differs", "The ratio is 0.5 everywhere"),
]
CASES = [
    # A wrong factor is in one of the modes around it, in turn.
    *(
        Case(f, args, k, verdict, modes=(*MODES,) if k == 1.0 else (*DECORATED, AROUND_ALL[i % len(AROUND_ALL)]))
        for i, (f, args) in enumerate(FACTORED)
        for k, verdict in ((1.0, "right"), (1.1, "differs"))
    ),
    *(case._replace(modes=DECORATED) for case in NUMBERS),
    Case(of_stop_gradient, [X]),
    Case(of_stop_gradient, [X], 2.0, "differs"),
    Case(accepted, [X], 1.0, "not checked", "its value draws random numbers; at a fixed seed: input 0 at .* got"),
    Case(with_noise, [X], 1.0, "not checked", "its rule draws random numbers"),
    Case(assigned, [X], 1.0, "not checked", "its value goes through a variable that it writes"),
    Case(not_for_the_factor, [SPD, tf.linalg.cholesky(SPD)], 1.0, "differs", "returns None for input 1, on which"),
    Case(of_the_third, [X, X + 1, X + 2], 1.0, "right", "returns None for input 0 and input 1, on which"),
    Case(nothing, [X], 1.0, "not checked", "its rule returns no gradient"),
    Case(identity, [X], 1.0, "differs"),
    # Python code cannot be recomputed or saved.
    Case(
        of_python,
        [X],
        1.0,
        "not checked",
        "no gradient of its op '.*PyFunc' .*PyFunc",
        (*DECORATED, "loop", "conditional"),
    ),
]
NAMED = {f"{case.function.__name__}_{i}": case for i, case in enumerate(CASES)}


def function_of(name, decorator=cg.custom_gradient):
    case = NAMED[name]

    def function(*args):
        y, grad_fn = case.function(tf.cast(case.k, args[0].dtype), *args)
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
        module.total, module.variables_of_it = tf.function(total), [W, TABLE, COUNT]
        module.total.get_concrete_function(args)
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(module, folder)
            module = tf.saved_model.load(folder)
        total = module.total
    return {row.function: row for row in cg.testing.audit(total, [args]).rows}


def parts(mode):
    """The names of its cases, in parts for one audit each. It runs the model once more if a gradient is not finite."""
    names = [name for name, case in NAMED.items() if mode in case.modes]
    finite = [name for name in names if "not finite" not in NAMED[name].detail]
    count = 7 if mode == "loop" else 5
    return [*(finite[i::count] for i in range(count)), [name for name in names if name not in finite]]


@pytest.mark.parametrize(("mode", "names"), [(mode, names) for mode in MODES for names in parts(mode) if names])
def test_the_verdicts(mode, names):
    rows = audited(names, mode)
    for name in names:
        row, verdict, detail = rows[name], NAMED[name].verdict, NAMED[name].detail
        if mode == "saved" and NAMED[name].function is same_twice:  # Its value calls another one with a gradient.
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


@pytest.mark.parametrize("above", [tf.sqrt, lambda y: 1 / y], ids=["nan", "infinity"])
@pytest.mark.parametrize(("function", "x", "verdict"), [(overflowing, 100.0, "differs"), (log1pexp, 1.0, "right")])
def test_a_rule_that_overflows_below_another_nan(above, function, x, verdict):
    rule = decorated(function)
    row = cg.testing.audit(lambda x: tf.reduce_sum(above(rule(x) - rule(x))), [tf.constant([x, 1.0])]).rows[-1]
    assert row.verdict == verdict
    assert ("The gradient is not finite for a random upstream gradient." in row.detail) == (verdict == "differs")


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
    twice, first = function_of("cube_3"), function_of("log1pexp_0")
    report = cg.testing.audit(lambda x: tf.reduce_sum(block(tf.function(first)(x))), [X])
    assert verdicts(report) == [("<lambda>", "not checked"), ("cube_3", "differs"), ("log1pexp_0", "right")]


@pytest.mark.core
def test_the_table_and_the_page():
    first, second = function_of("log1pexp_0"), decorated(magnitude)
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
    writes = function_of(next(name for name in NAMED if name.startswith("counted")))
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


def test_a_layer_of_a_remat_scope_is_recomputed():
    with cg.layers.enable_remat():
        with keras.RematScope(mode="full"):
            layer = keras.layers.Lambda(lambda x: cg.clip_gradient(tf.sin(x), norm=0.1))
        report = cg.testing.audit(lambda x: tf.reduce_sum(layer(x) ** 2), [X])
    assert [row.verdict for row in report.rows] == ["not checked", "by design"]


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


@pytest.mark.parametrize("around", [around for around in AROUND_WHOLE if around != "overridden"])
@pytest.mark.parametrize("name", WHOLE)
def test_inputs_that_are_functions_of_one_another_are_judged_as_a_whole(name, around):
    function, second, x = WHOLE[name]
    rules = [decorated(function, k) for k in (1.0, 1.1, -1.0)]

    def total(x):
        return tf.add_n([tf.reduce_sum(tf.sin(rule(x, second(x)))) for rule in rules])

    rows = {row.verdict: row for row in cg.testing.audit(AROUND_WHOLE[around](total), [x]).rows}
    assert (rows["right"].places, rows["differs"].places) == (1, 2)
    assert ("as a whole" in rows["right"].detail) == (function is not gated)
    assert "as a whole" not in rows["differs"].detail


def for_one_input(k):
    def backward(residuals, dy, needed):
        x, w = residuals
        return dy * w, (k if sum(needed) == 1 else 1.0) * dy * x

    rule = cg.custom_vjp(lambda x, w: (x * w, (x, w)), backward)
    return lambda x: rule(x, TABLE[:4])


def for_one_output(k):
    def backward(x, d_sin, d_square):
        if d_sin is None:
            return k * d_square * 2 * x
        return d_sin * tf.cos(x) + (0.0 if d_square is None else d_square * 2 * x)

    rule = cg.custom_vjp(lambda x: ((tf.sin(x), x**2), x), backward, materialize_grads=False)
    return lambda x: rule(x)[0]


def raises_for_one_output(k):
    return for_one_output(k if k == 1 else tf.zeros([5]))


ALONE = {
    for_one_input: "If only 'w' is needed: The ratio is 1.1",
    for_one_output: "If only output 1 is used: The ratio is 1.1",
    raises_for_one_output: "If only output 1 is used: computing its gradient fails: ",
}


@pytest.mark.parametrize("around", ["plain", "loop", "conditional", "function"])
@pytest.mark.parametrize("make", ALONE)
def test_a_rule_that_is_wrong_for_what_the_run_left_out(make, around):
    """The run uses one output, and needs all inputs."""
    functions = [make(k) for k in (1.0, 1.1)]

    def total(x):
        return tf.add_n([tf.reduce_sum(tf.sin(function(x))) for function in functions])

    rows = {row.verdict: row for row in cg.testing.audit(AROUND_WHOLE[around](total), [X]).rows}
    assert (rows["right"].places, rows["differs"].places, len(rows)) == (1, 1, 2)
    assert rows["differs"].detail.startswith(ALONE[make])


def test_what_the_user_declares():
    name = next(name for name in NAMED if name.startswith("without_mask"))
    like = {name: lambda x: x}
    for declared, verdict in (({}, "differs"), ({"intended": [name]}, "by design"), ({"like": like}, "right")):
        assert verdicts(cg.testing.audit(function_of(name), [X], **declared)) == [(name, verdict)]


def test_what_the_user_declares_by_place(saved):
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
    for declared, expected in (
        ({"like": {y: tf.identity}}, {y: "right", z: "differs"}),
        ({"like": {y: tf.identity}, "intended": ["f_wrapped"]}, {y: "right", z: "by design"}),
        ({"like": {"f_wrapped": tf.identity}, "intended": [z]}, {y: "right", z: "by design"}),
    ):
        report = cg.testing.audit(function, [X], **declared)
        assert {row.line: row.verdict for row in report.rows} == expected
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


def test_functions_of_tensorflow_and_tensorflow_probability():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tfp = pytest.importorskip("tensorflow_probability")

    def audited(f, *args):
        return cg.testing.audit(lambda *args: tf.reduce_sum(f(*args) ** 2), list(args)).rows[0]

    row = audited(lambda x: tf.nn.silu(x, tf.constant([1.0, 2.0, 3.0]) * x[0]), X)
    assert (row.verdict, row.function) == ("differs", "swish_impl")
    row = audited(lambda a, b: tfp.math.hpsd_quadratic_form_solve(a, b), SPD, normal(4, 2))
    assert row.verdict == "differs"
    for distribution in (tfp.distributions.Gamma, tfp.distributions.TwoPieceNormal, tfp.distributions.InverseGaussian):
        count = 3 if distribution is tfp.distributions.TwoPieceNormal else 2
        row = audited(
            lambda p, d=distribution, n=count: d(*(p + i for i in range(n))).sample(5, seed=[1, 2]), X[0] ** 2 + 1
        )
        assert row.verdict == "not checked"
        assert re.search("draws random numbers; at a fixed seed: .*got", row.detail)


class Saved(tf.Module):
    def __init__(self):
        self.bias = tf.Variable(0.3)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x):
        right, wrong = function_of("log1pexp_0"), function_of("cube_3")
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
    of_cond = "('cube_3', 'differs') ('log1pexp_0', 'right')"
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
    assert main(saved, "--inputs", tmp_path / "inputs.npz", "--intended", "cube_3") == 0
    assert "2 custom gradients, 1 right, 1 by design" in capsys.readouterr().out
    assert main(saved) == 1
    assert capsys.readouterr().err.startswith("args are random numbers that fit the signature")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--signature", "train"], "audit: --signature must name a signature of"),
        (["--inputs", "y.npz"], "audit: 'loaded model' must get arguments that fit its signature"),
        (["--inputs", "shape.npz"], "audit: 'loaded model' must get arguments that fit its signature"),
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


def test_wrong_uses(saved):
    right = function_of("log1pexp_0")
    with pytest.raises(ValueError, match="must return floating-point or complex numbers, which have gradients"):
        cg.testing.audit(lambda x: tf.argmax(right(x)), [X])
    with pytest.raises(ValueError, match=r"got 'relu'\. These functions are there: 'log1pexp_0'"):
        cg.testing.audit(right, [X], intended=["relu"])
    message = r"audit: like\['log1pexp_0'\] must return the shapes of the value, \[\[4, 3\]\], got \[\[\]\]"
    with pytest.raises(ValueError, match=message):
        cg.testing.audit(right, [X], like={"log1pexp_0": tf.reduce_sum})
    with pytest.raises(ValueError, match=r"^audit: the model of .* must stay in memory"):
        cg.testing.audit(tf.saved_model.load(saved).signatures["serving_default"], {"x": X})


def test_none_among_the_upstream_gradients_is_zero():
    first, second = function_of("log1pexp_0"), function_of("cube_2")
    report = cg.testing.audit(lambda x: (first(x), second(x)), [X], upstream=(tf.ones_like(X), None))
    norms = {row.function: row.upstream_norm for row in report.rows}
    assert norms == {"log1pexp_0": pytest.approx(np.sqrt(12)), "cube_2": 0.0}


def test_a_model_without_gradients_of_its_own():
    report = cg.testing.audit(keras.Sequential([keras.Input([3]), keras.layers.Dense(4)]), [X])
    assert str(report) == "'Sequential' has no gradients of its own, and its gradient is finite."


@pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_keras_model_gets_random_inputs_that_fit_its_own(package):
    """A functional model has them in a structure, and a Sequential of Keras 3 only in a list."""
    layers, right = package.layers, function_of("log1pexp_0")
    a, b = package.Input([3], name="a"), package.Input([2], name="b", dtype="int32")
    y = layers.Concatenate()([right(a), layers.Flatten()(layers.Embedding(2, 1)(b))])
    sequential = package.Sequential([layers.Input([3]), layers.Dense(2, right)])
    for model in (package.Model([a, b], y), package.Model({"a": a, "b": b}, y), sequential):
        (row,) = cg.testing.audit(model).rows
        assert row.verdict == "right"


@pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_inputs_of_a_keras_model_by_order_and_by_name(package):
    """The order of the inputs is not the order of their names, and their sizes differ, so an exchange shows."""
    right = function_of("log1pexp_0")
    u, v = package.Input([2], name="u"), package.Input([3], name="a")
    y = package.layers.Concatenate()([right(u), v])

    class TwoArguments(package.Model):
        def call(self, a, b=None):
            return right(a) + b

    x, of_u = tf.constant([[0.5, -2.0, 1.0]]), tf.constant([[3.0, 4.0]])
    in_list = package.Model([u, v], y)
    single = package.Sequential([package.layers.Input([2], name="u"), package.layers.Dense(2, right)])
    cases = [
        (in_list, [of_u, x], (1, 2)),
        (in_list, (of_u.numpy(), x.numpy()), (1, 2)),
        (in_list, [[of_u, x]], (1, 2)),
        (in_list, {"a": x, "u": of_u}, (1, 2)),
        (in_list, {"inputs": [of_u, x], "training": True}, (1, 2)),
        (package.Model({"u": u, "a": v}, y), {"a": x, "u": of_u}, (1, 2)),
        (single, {"u": of_u}, (1, 2)),
        (single, [of_u], (1, 2)),
        (TwoArguments(), [x, x], (1, 3)),
        (TwoArguments(), {"b": x, "a": x}, (1, 3)),
    ]
    for model, args, shape in cases:
        (row,) = cg.testing.audit(model, args).rows
        assert (row.verdict, row.input_shapes) == ("right", (shape,))
