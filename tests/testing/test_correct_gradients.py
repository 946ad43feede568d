"""check_gradient passes right gradients in all modes: this library's, TensorFlow's, and those that differ on purpose."""

import typing

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

from ..support.tensors import pairs
from .test_wrong_gradients import product_rule

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=[3]), RNG.normal(size=[3])
RAGGED = tf.RaggedTensor.from_row_lengths(tf.constant(X), [1, 2])
MATRIX, BATCH = RNG.normal(size=[2, 3]), RNG.normal(size=[2, 3])
Z = RNG.normal(size=[3]) + 1j * RNG.normal(size=[3])


@cg.custom_gradient
def log1pexp(x):
    y = tf.maximum(x, 0.0) + tf.math.log1p(tf.exp(-tf.abs(x)))
    return y, lambda dy: dy * tf.sigmoid(x)


jvp = cg.custom_jvp(lambda x, y: x * tf.sin(y))
jvp.defjvp(lambda p, t: (jvp(*p), t[0] * tf.sin(p[1]) + p[0] * tf.cos(p[1]) * t[1]))


class Pair(typing.NamedTuple):
    first: tf.Tensor
    second: dict


@cg.custom_gradient
def nested(tree, *, factor):
    a, b = tree["a"], tree["b"][0]

    def grad_fn(dfirst, dsecond):
        return {"a": dfirst * b, "b": [dfirst * a + 2 * b * dsecond * factor]}, tf.reduce_sum(dsecond * b**2)

    return Pair(a * b, {"c": b**2 * factor}), grad_fn


def mixed(x, n, flag, text, nothing):
    """Arguments without a derivative are passed on unchanged, and outputs without one are compared, too."""
    assert isinstance(n, int)
    assert flag is True
    assert (text, nothing) == ("text", None)
    return {"y": x**n, "which": tf.argmax(x), "sign": x > 0}


SECOND, FORWARD = {"second_order": True}, {"forward_mode": True}
# A function, its arguments and the options of the check.
RIGHT = {
    "pairs": (lambda x, y: cg.embed_gradient(x * tf.exp(y), [tf.exp(y), x * tf.exp(y)], [x, y]), [X, Y], FORWARD),
    "holomorphic": (lambda z: cg.embed_gradient(z**3, 3 * z**2, z), [Z], FORWARD),
    "custom_gradient": (log1pexp, [X], SECOND),
    "far from 0": (log1pexp, [np.array([0.0, 100.0, 1000.0, -1000.0])], SECOND),
    "custom_vjp": (product_rule(lambda dx, dy, *_: (dx, dy), materialize_grads=False), [X, Y], SECOND),
    "custom_jvp": (jvp, [X, Y], SECOND),
    "recompute_grad": (cg.recompute_grad(lambda x: tf.sin(x) ** 2), [X], SECOND),
    "complex": (cg.custom_gradient(lambda z: (z * z, lambda dy: 2.0 * dy * tf.math.conj(z))), [Z], SECOND),
    "structures": (nested, [{"a": X, "b": [Y]}], {"kwargs": {"factor": 0.7}, **SECOND}),
    "softmax": (tf.nn.softmax, [BATCH], {"kwargs": {"axis": 0}, **SECOND}),
    "real_of_complex": (tf.abs, [Z], SECOND),
    "complex_of_real": (tf.complex, [X, Y], SECOND),
    "not_differentiable": (mixed, [X, 3, True, "text", None], SECOND),
    "ragged": (lambda r: tf.reduce_sum(r**2, 1), [RAGGED], SECOND),
    "variable": (tf.sin, [tf.Variable(X, dtype=tf.float32)], SECOND),
    "empty": (tf.sin, [np.zeros([0, 3])], SECOND),
}


# In addition to eager mode.
OTHER_MODES = ("function", "xla", "vectorized")


@pytest.mark.parametrize(("name", "mode"), pairs(RIGHT, OTHER_MODES))
def test_right_gradients_pass(name, mode):
    function, args, options = RIGHT[name]
    report = check_gradient(function, args, modes=["eager", mode], **options)
    assert not report.failures
    assert {comparison.mode for comparison in report.comparisons} == {"eager", mode}
    orders = {"value", "first", *(["second"] if "second_order" in options else [])}
    orders |= {"tangent"} if "forward_mode" in options or name == "custom_jvp" else set()
    assert {comparison.order for comparison in report.comparisons} == orders
    if "second_order" in options:
        assert any(c.name.startswith("upstream") for c in report.comparisons if c.order == "second")
    for c in report.comparisons:
        if c.order == "first" and "batch" not in c.name:
            assert c.error < 1e-8 * max(abs(c.numeric), 1.0 if "second_order" in options else 1e-3)


def control_flow(x):
    return x * x if tf.reduce_sum(x) > 0 else -x  # AutoGraph turns this into a conditional.


@pytest.mark.core
def test_autograph_converts_the_function_where_tf_function_does():
    """tf.vectorized_map does not."""
    modes = ["eager", "function", "xla"]
    assert not check_gradient(control_flow, [np.abs(X)], modes=modes, second_order=True, forward_mode=True).failures
    with pytest.raises(AssertionError, match="could not be computed in mode 'vectorized': Operator"):
        check_gradient(control_flow, [np.abs(X)])


@pytest.mark.core
def test_keras_must_compute_in_float64_or_get_tolerances():
    """A functional model casts its inputs to their dtypes, and any other layer to its own."""
    single, double = (keras.layers.Dense(3, "gelu", dtype=dtype) for dtype in ("float32", "float64"))
    cast = keras.Sequential([keras.Input([3], dtype="float32"), double])
    for function in (single, cast):
        with pytest.raises(ValueError, match="with a tolerance of 1e-06, because it computes in float32"):
            check_gradient(function, [BATCH], modes=["eager"])
        assert not check_gradient(function, [BATCH], modes=["eager"], rtol=1e-3, step=0.1).failures
    for function in (double, keras.Sequential([keras.Input([3], dtype="float64"), double])):
        assert not check_gradient(function, [BATCH], modes=["eager"]).failures


@pytest.mark.core
def test_the_names_are_those_of_the_signature():
    report = check_gradient(nested, [], kwargs={"factor": 0.7, "tree": {"a": X, "b": [Y]}}, modes=["eager"])
    assert [c.name for c in report.comparisons] == ["value[0]", "value[1]", "tree['a']", "tree['b'][0]", "factor"]


@pytest.mark.core
def test_like_and_intended_gradient_declare_a_gradient():
    clip = cg.custom_vjp(lambda x: (tf.sign(x), x), lambda x, dy: dy * tf.cast(tf.abs(x) <= 1, x.dtype))
    modes = ["eager", "xla"]
    check_gradient(clip, [3 * X], like=lambda x: tf.clip_by_value(x, -1, 1), second_order=True, modes=modes)

    @cg.custom_gradient
    def clipped_gradient(x, y):
        return x * y, lambda dy: (tf.clip_by_norm(dy * y, 0.5), None)

    def intended(dy, x, y):
        gradient = dy * y
        return gradient * min(1.0, 0.5 / np.linalg.norm(gradient)), None

    report = check_gradient(clipped_gradient, [X, Y], intended_gradient=intended, second_order=True, modes=modes)
    assert not report.failures
    assert [c.is_none for c in report.comparisons if c.order == "first" and c.mode == "xla"] == [False, True]


def test_other_arguments_stay_in_the_domain():
    """The arguments of a batch are near the given ones, and not nearer to the ends of the domain."""
    check_gradient(tf.asin, [np.array([-0.99, 0.3, 0.98])], modes=["vectorized"])
    check_gradient(tf.math.log, [np.array([1e-9, 0.3, 1e9])], modes=["vectorized"])


def test_empty_arguments_are_reported_as_equal():
    for c in check_gradient(tf.sin, [np.zeros([0])], modes=["eager", "function"]).comparisons:
        assert (c.analytic, c.numeric, c.ratio, c.checked) == (0.0, 0.0, 1.0, 0)


# Modes that wrap the function: in a loop, a SavedModel, a Keras model.
WRAPPED = ["while_loop", "cond", "saved_model", "functional"]
# In half precision: the dtype, a factor that passes for rounding, and one that does not.
HALF = {"mixed_float16": (tf.float16, 1.005, 1.02), "mixed_bfloat16": (tf.bfloat16, 1.03, 1.1)}
WEIGHT = tf.Variable([2.0, 3.0, 4.0], dtype=tf.float64)


@cg.custom_gradient
def weighted(x, n):
    def grad_fn(_, dy, variables):
        return (dy * WEIGHT * n, None), [dy * x * n]

    return {"y": WEIGHT * x * n, "which": tf.argmax(x)}, grad_fn


@cg.custom_gradient
def scaled(x, n):
    return {"y": x * n, "which": tf.argmax(x)}, lambda _, dy: (dy * n, None)


@pytest.mark.parametrize("mode", WRAPPED)
def test_a_right_gradient_passes(mode):
    report = check_gradient(log1pexp, [X], modes=[mode], second_order=True)
    assert {(c.mode, c.order) for c in report.comparisons} == {(mode, order) for order in ("value", "first", "second")}
    function = weighted if mode != "functional" else scaled  # Such a model refuses functions that read variables.
    assert not check_gradient(function, [X, 3], modes=[mode]).failures


@pytest.mark.parametrize("mode", HALF)
def test_half_precision_allows_16_roundings(mode):
    dtype, small, large = HALF[mode]
    dtypes = set()

    def product(factor):
        def rule(x, y):
            dtypes.add(x.dtype)
            return x * y, lambda dy: (dy * y * (1.0 if x.dtype == tf.float64 else factor), dy * x)

        return cg.custom_gradient(rule)

    assert not check_gradient(product(small), [X, 2 * X], modes=[mode]).failures
    assert dtypes == {dtype, tf.float64}  # The reference is computed in float64.
    for factor in (large, 0.8, -1.0):
        with pytest.raises(AssertionError, match=f"gradient of 'rule' with respect to 'x' is wrong in mode '{mode}'"):
            check_gradient(product(factor), [X, 2 * X], modes=["eager", mode])
    assert not check_gradient(log1pexp, [X], modes=[mode], second_order=True).failures
    assert not check_gradient(tf.math.conj, [X + 1j], modes=[mode]).failures  # Keras does not cast complex numbers.


def test_functions_of_keras_pass_in_a_functional_model():
    assert not check_gradient(lambda x: keras.ops.tanh(x) * 2.0, [X], modes=["functional"]).failures
