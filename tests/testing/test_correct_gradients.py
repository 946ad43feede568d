"""check_gradient on right gradients: of this library, of TensorFlow, and such that deliberately differ."""

import typing

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

pytestmark = pytest.mark.core

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=[3]), RNG.normal(size=[3])
MATRIX = RNG.normal(size=[2, 3])
BATCH = RNG.normal(size=[2, 3])
Z = RNG.normal(size=[3]) + 1j * RNG.normal(size=[3])


def elementwise(x):
    return cg.embed_gradient(fx=tf.sin(x), gx=tf.cos(x), x=x)


def shared_scalar(x):
    """[n], [], [n]."""
    weights = tf.constant(Y)
    return cg.embed_gradient(fx=tf.exp(weights * x), gx=weights * tf.exp(weights * x), x=x)


def over_the_batch(x):
    """[B, n], [n], [B, n]."""
    return cg.embed_gradient(fx=tf.sin(x * BATCH), gx=BATCH * tf.cos(x * BATCH), x=x)


def axis(x):
    """[B], [B, D], [B, D]."""
    return cg.embed_gradient(fx=tf.reduce_sum(x**3, -1), gx=3 * x**2, x=x, axis=-1)


def axis_with_one_number(x):
    """[B], [B, D], [B]."""
    total = tf.reduce_sum(x, -1)
    return cg.embed_gradient(fx=tf.sin(total), gx=tf.cos(total), x=x, axis=-1)


def scalar_of_all(x):
    return cg.embed_gradient(fx=tf.reduce_sum(x**2), gx=2 * x, x=x, axis=None)


def jacobian(x):
    """[n], [m], [n, m]."""
    return cg.embed_gradient(fx=tf.linalg.matvec(MATRIX, tf.sin(x)), gx=MATRIX * tf.cos(x), x=x, axis=None)


def pairs(x, y):
    return cg.embed_gradient(fx=x * tf.exp(y), gx=[tf.exp(y), x * tf.exp(y)], x=[x, y])


def holomorphic(z):
    return cg.embed_gradient(fx=z**3, gx=3 * z**2, x=z)


EMBEDDED = {
    "elementwise": (elementwise, [X]),
    "shared_scalar": (shared_scalar, [0.5]),
    "over_the_batch": (over_the_batch, [X]),
    "axis": (axis, [BATCH]),
    "axis_with_one_number": (axis_with_one_number, [BATCH]),
    "scalar_of_all": (scalar_of_all, [X]),
    "jacobian": (jacobian, [X]),
    "pairs": (pairs, [X, Y]),
    "holomorphic": (holomorphic, [Z]),
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_gradients_pass(name):
    function, args = EMBEDDED[name]
    report = check_gradient(function, args, forward_mode=True)
    assert not report.failures
    assert {comparison.mode for comparison in report.comparisons} == {"eager", "function", "xla", "vectorized"}
    gradients = [c for c in report.comparisons if c.order == "first"]
    assert max(c.error / max(abs(c.numeric), 1e-3) for c in gradients) < 1e-8


@cg.custom_gradient
def log1pexp(x):
    e = tf.exp(x)
    return tf.math.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))


jvp = cg.custom_jvp(lambda x, y: x * tf.sin(y))
jvp.defjvp(lambda p, t: (jvp(*p), t[0] * tf.sin(p[1]) + p[0] * tf.cos(p[1]) * t[1]))
vjp = cg.custom_vjp(lambda x, y: (x * tf.sin(y), (x, y)), lambda r, dy: (dy * tf.sin(r[1]), dy * r[0] * tf.cos(r[1])))


@cg.custom_gradient
def square_of_complex(z):
    return z * z, lambda dy: 2.0 * dy * tf.math.conj(z)


class Pair(typing.NamedTuple):
    first: tf.Tensor
    second: dict


@cg.custom_gradient
def nested(tree, *, factor):
    a, b = tree["a"], tree["b"][0]

    def grad_fn(dfirst, dsecond):
        return {"a": dfirst * b, "b": [dfirst * a + 2 * b * dsecond * factor]}, tf.reduce_sum(dsecond * b**2)

    return Pair(a * b, {"c": b**2 * factor}), grad_fn


@tf.custom_gradient
def of_tensorflow(x):
    return tf.exp(x), lambda dy: dy * tf.exp(x)


def mixed(x, n, flag, text, nothing):
    """Arguments without a derivative are passed unchanged, and other outputs are compared, too."""
    assert isinstance(n, int)
    assert flag is True
    assert (text, nothing) == ("text", None)
    return {"y": x**n, "which": tf.argmax(x), "sign": x > 0}


SECOND_ORDER = {
    "custom_gradient": (log1pexp, [X], {}),
    "custom_vjp": (vjp, [X, Y], {}),
    "custom_jvp": (jvp, [X, Y], {}),
    "recompute_grad": (cg.recompute_grad(lambda x: tf.sin(x) ** 2), [X], {}),
    "complex": (square_of_complex, [Z], {}),
    "structures": (nested, [{"a": X, "b": [Y]}], {"factor": 0.7}),
    "tf.custom_gradient": (of_tensorflow, [X], {}),
    "softmax": (tf.nn.softmax, [BATCH], {"axis": 0}),
    "linear": (tf.linalg.matvec, [MATRIX, X], {}),
    "real_of_complex": (tf.abs, [Z], {}),
    "complex_of_real": (tf.complex, [X, Y], {}),
    "not_differentiable": (mixed, [X, 3, True, "text", None], {}),
    "ragged": (lambda r: tf.reduce_sum(r**2, 1), [tf.RaggedTensor.from_row_lengths(tf.constant(X), [1, 2])], {}),
    "variable": (tf.sin, [tf.Variable(X, dtype=tf.float32)], {}),
    "scalars": (lambda x, y: x**y, [2.0, 3.0], {}),
    "empty": (tf.sin, [np.zeros([0, 3])], {}),
}


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_right_gradients_pass_at_second_order_too(name):
    function, args, kwargs = SECOND_ORDER[name]
    report = check_gradient(function, args, kwargs=kwargs, second_order=True)
    tangent = {"tangent"} if name == "custom_jvp" else set()
    assert {comparison.order for comparison in report.comparisons} == {"value", "first", "second"} | tangent
    assert any(c.name.startswith("upstream") for c in report.comparisons if c.order == "second")
    assert not report.failures


def control_flow(x):
    return x * x if tf.reduce_sum(x) > 0 else -x  # AutoGraph makes a conditional of it.


def test_autograph_converts_the_function_where_tf_function_does():
    """tf.vectorized_map does not."""
    modes = ["eager", "function", "xla"]
    assert not check_gradient(control_flow, [np.abs(X)], modes=modes, second_order=True, forward_mode=True).failures
    with pytest.raises(AssertionError, match="in mode 'vectorized'; expected numbers, got Operator"):
        check_gradient(control_flow, [np.abs(X)])


def test_the_names_are_those_of_the_signature():
    report = check_gradient(nested, [], kwargs={"factor": 0.7, "tree": {"a": X, "b": [Y]}}, modes=["eager"])
    names = [comparison.name for comparison in report.comparisons]
    assert names == ["value[0]", "value[1]", "tree['a']", "tree['b'][0]", "factor"]


def test_a_straight_through_estimator_is_like_another_function():
    straight_through = cg.grad_pass_through(tf.round)
    assert not check_gradient(straight_through, [X], like=lambda x: x, forward_mode=True).failures
    clip = cg.custom_vjp(lambda x: (tf.sign(x), x), lambda x, dy: dy * tf.cast(tf.abs(x) <= 1, x.dtype))
    assert not check_gradient(clip, [3 * X], like=lambda x: tf.clip_by_value(x, -1, 1), second_order=True).failures


@cg.custom_gradient
def reversed_gradient(x):
    return x, lambda dy: -dy


def test_a_reversed_gradient_is_like_the_negative():
    assert not check_gradient(reversed_gradient, [X], like=lambda x: -x, second_order=True, forward_mode=True).failures


@cg.custom_gradient
def clipped_gradient(x, y):
    return x * y, lambda dy: (tf.clip_by_norm(dy * y, 0.5), None)


def test_a_gradient_that_depends_on_the_upstream_is_computed_by_the_user():
    def intended(dy, x, y):
        gradient = dy * y
        return gradient * min(1.0, 0.5 / np.linalg.norm(gradient)), None

    report = check_gradient(clipped_gradient, [X, Y], intended_gradient=intended, second_order=True)
    assert not report.failures
    assert [c.is_none for c in report.comparisons if c.order == "first" and c.mode == "xla"] == [False, True]


def test_other_arguments_stay_in_the_domain():
    """Those of a batch are near to the given ones, and no nearer to its ends."""
    check_gradient(tf.asin, [np.array([-0.99, 0.3, 0.98])])


def test_empty_arguments_are_reported_as_equal():
    report = check_gradient(tf.sin, [np.zeros([0])])
    assert report.comparisons
    for comparison in report.comparisons:
        assert (comparison.analytic, comparison.numeric, comparison.ratio, comparison.checked) == (0.0, 0.0, 1.0, 0)
