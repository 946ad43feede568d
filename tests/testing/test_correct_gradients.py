"""check_gradient on right gradients: of this library, of TensorFlow, and such that deliberately differ."""

import runpy
import typing

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

from ..support.keras_models import tripled, two_values
from ..support.sources import ROOT
from ..support.tensors import pairs

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=[3]), RNG.normal(size=[3])
MATRIX = RNG.normal(size=[2, 3])
RAGGED = tf.RaggedTensor.from_row_lengths(tf.constant(X), [1, 2])
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


def product(x, y):
    return cg.embed_gradient(fx=x * tf.exp(y), gx=[tf.exp(y), x * tf.exp(y)], x=[x, y])


def holomorphic(z):
    return cg.embed_gradient(fx=z**3, gx=3 * z**2, x=z)


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


# A function, its arguments and the options of the check.
EMBEDDED = {
    "elementwise": (elementwise, [X]),
    "shared_scalar": (shared_scalar, [0.5]),
    "over_the_batch": (over_the_batch, [X]),
    "axis": (axis, [BATCH]),
    "axis_with_one_number": (axis_with_one_number, [BATCH]),
    "scalar_of_all": (scalar_of_all, [X]),
    "jacobian": (jacobian, [X]),
    "pairs": (product, [X, Y]),
    "holomorphic": (holomorphic, [Z]),
}
RIGHT = {name: (*case, {"forward_mode": True}) for name, case in EMBEDDED.items()} | {
    "custom_gradient": (log1pexp, [X], {"second_order": True}),
    "custom_vjp": (vjp, [X, Y], {"second_order": True}),
    "custom_jvp": (jvp, [X, Y], {"second_order": True}),
    "recompute_grad": (cg.recompute_grad(lambda x: tf.sin(x) ** 2), [X], {"second_order": True}),
    "complex": (square_of_complex, [Z], {"second_order": True}),
    "structures": (nested, [{"a": X, "b": [Y]}], {"kwargs": {"factor": 0.7}, "second_order": True}),
    "tf.custom_gradient": (of_tensorflow, [X], {"second_order": True}),
    "softmax": (tf.nn.softmax, [BATCH], {"kwargs": {"axis": 0}, "second_order": True}),
    "linear": (tf.linalg.matvec, [MATRIX, X], {"second_order": True}),
    "real_of_complex": (tf.abs, [Z], {"second_order": True}),
    "complex_of_real": (tf.complex, [X, Y], {"second_order": True}),
    "not_differentiable": (mixed, [X, 3, True, "text", None], {"second_order": True}),
    "ragged": (lambda r: tf.reduce_sum(r**2, 1), [RAGGED], {"second_order": True}),
    "variable": (tf.sin, [tf.Variable(X, dtype=tf.float32)], {"second_order": True}),
    "scalars": (lambda x, y: x**y, [2.0, 3.0], {"second_order": True}),
    "empty": (tf.sin, [np.zeros([0, 3])], {"second_order": True}),
}
# Beside eager mode.
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
    return x * x if tf.reduce_sum(x) > 0 else -x  # AutoGraph makes a conditional of it.


@pytest.mark.core
def test_autograph_converts_the_function_where_tf_function_does():
    """tf.vectorized_map does not."""
    modes = ["eager", "function", "xla"]
    assert not check_gradient(control_flow, [np.abs(X)], modes=modes, second_order=True, forward_mode=True).failures
    with pytest.raises(AssertionError, match="in mode 'vectorized'; expected numbers, got Operator"):
        check_gradient(control_flow, [np.abs(X)])


@pytest.mark.core
def test_the_names_are_those_of_the_signature():
    report = check_gradient(nested, [], kwargs={"factor": 0.7, "tree": {"a": X, "b": [Y]}}, modes=["eager"])
    names = [comparison.name for comparison in report.comparisons]
    assert names == ["value[0]", "value[1]", "tree['a']", "tree['b'][0]", "factor"]


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
    """Those of a batch are near to the given ones, and no nearer to its ends."""
    check_gradient(tf.asin, [np.array([-0.99, 0.3, 0.98])], modes=["vectorized"])


def test_empty_arguments_are_reported_as_equal():
    report = check_gradient(tf.sin, [np.zeros([0])])
    assert {comparison.mode for comparison in report.comparisons} == {"eager", *OTHER_MODES}
    for comparison in report.comparisons:
        assert (comparison.analytic, comparison.numeric, comparison.ratio, comparison.checked) == (0.0, 0.0, 1.0, 0)


# Everything that the library offers

XS = np.array([[-2.2, -0.6, 0.4], [0.3, 1.6, -1.2]])
ROW = XS[0]
BOTH = {"second_order": True, "forward_mode": True}


def hard_tanh(slope):
    return lambda x: tf.clip_by_value(x, -1 / slope, 1 / slope)


def clipped(dy, x):
    return np.clip(dy, -0.5, 0.5)


def shrunk(dy, *xs):
    dys = dy if isinstance(dy, list) else [dy]
    norm = np.sqrt(sum(np.sum(each**2) for each in dys))
    return [each * min(1, 0.5 / norm) for each in dys] if isinstance(dy, list) else dy * min(1, 0.5 / norm)


LIBRARY = {
    "custom_gradient": (
        tripled,
        [XS],
        {
            "kwargs": {"options": {"factor": 3.0, "bias": 0.5}},
            "intended_gradient": lambda dy, x, options: [18.0 * dy * x, np.sum(dy), np.sum(0.0 * dy)],
        },
    ),
    "custom_gradient, structures": (
        two_values,
        [XS],
        {"intended_gradient": lambda dy, x: 5.0 * dy[0] + 7.0 * dy[1][:, None]},
    ),
    "grad_pass_through": (cg.grad_pass_through(tf.round), [XS], {"like": tf.identity, **BOTH}),
    "compat.bayesflow": (
        lambda x: cg.compat.bayesflow.custom_gradient(tf.reduce_sum(x, -1), tf.ones(2, x.dtype), x, axis=[1]),
        [XS],
        {},
    ),
    "compat.tfp_math": (lambda x: cg.compat.tfp_math.custom_gradient(x**2, 2 * x, x), [XS], {}),
    "reverse_gradient": (lambda x: cg.reverse_gradient(x**2, 0.5), [XS], {"like": lambda x: -0.5 * x**2, **BOTH}),
    "scale_gradient": (
        lambda x: cg.scale_gradient(tf.sin(x), ROW),
        [XS],
        {"like": lambda x: ROW * tf.sin(x), **BOTH},
    ),
    "clip_gradient by value": (lambda x: cg.clip_gradient(x, value=0.5), [XS], {"intended_gradient": clipped}),
    "clip_gradient by norm": (lambda x: cg.clip_gradient(x, norm=0.5), [XS], {"intended_gradient": shrunk}),
    "clip_gradient by global norm": (
        lambda x, y: cg.clip_gradient([x, y], global_norm=0.5),
        [XS, ROW],
        {"intended_gradient": shrunk},
    ),
    "straight_through": (
        cg.straight_through(tf.sign, "hard_tanh", slope=0.8),
        [XS],
        {"like": hard_tanh(0.8), "second_order": True},
    ),
    "straight_through, sigmoid": (
        cg.straight_through(tf.sign, "sigmoid", slope=2.0),
        [XS],
        {"like": lambda x: tf.sigmoid(2.0 * x), **BOTH},
    ),
    "straight_through, fast sigmoid": (
        cg.straight_through(tf.sign, "fast_sigmoid", slope=2.0),
        [XS],
        {"like": lambda x: x / (1 + 2.0 * tf.abs(x)), **BOTH},
    ),
}


@pytest.mark.parametrize(("name", "mode"), pairs(LIBRARY, OTHER_MODES))
def test_the_functions_of_the_library(name, mode):
    function, args, options = LIBRARY[name]
    check_gradient(function, args, modes=["eager", mode], **options)


SPIKE = {"like": lambda x: x / (1 + 5.0 * tf.abs(x)), **BOTH}
# In each example, what has a custom gradient: the names of the file and of the function, the arguments, the options.
EXAMPLES = {
    "log1pexp": ("log1pexp", "log1pexp", [XS], BOTH),
    "the sigmoid of log1pexp": ("log1pexp", "sigmoid", [XS], BOTH),
    "spiking_cell": ("spiking_cell", "spike", [XS], SPIKE),
    "long_sequence": ("long_sequence", "spike", [XS], SPIKE),
    "strip_for_tflite": ("strip_for_tflite", "rounded", [XS], {"like": hard_tanh(1.0), "second_order": True}),
    # A function of NumPy has no graph, and the solver's own tolerance is 1e-9.
    "fit_ode": ("fit_ode", "residuals", [np.array([-0.6, -3.6, -0.3, -3.7, 33.0, 6.0])], {"rtol": 1e-4, "step": 1e-3}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_functions_of_the_examples(name):
    file, function, args, options = EXAMPLES[name]
    found = runpy.run_path(ROOT / "examples" / f"{file}.py")[function]
    check_gradient(found, args, modes=["eager", "function"], **options)


def test_the_binary_layer_of_the_example():
    layer = runpy.run_path(ROOT / "examples" / "binary_net.py")["BinaryDense"](3)
    layer.build([2, 3])
    kernel = np.random.default_rng(0).uniform(-0.9, 0.9, [3, 3])

    def multiplied(kernel):
        return tf.matmul(tf.constant(XS), layer.sign(kernel))

    check_gradient(multiplied, [kernel], like=lambda kernel: tf.matmul(tf.constant(XS), kernel), modes=["xla"])
