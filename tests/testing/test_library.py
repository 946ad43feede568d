"""check_gradient on everything that the library offers: in eager mode, traced, under XLA and vectorised, and second order."""

import runpy

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.keras_models import layers_of, recomputed, residual, steep, tripled, two_values
from ..support.sources import ROOT

X = np.array([[-2.2, -0.6, 0.4], [0.3, 1.6, -1.2]])
ROW = X[0]


def hard_tanh(slope):
    return lambda x: tf.clip_by_value(x, -1 / slope, 1 / slope)


def clipped(dy, x):
    return np.clip(dy, -0.5, 0.5)


def shrunk(dy, *xs):
    dys = dy if isinstance(dy, list) else [dy]
    norm = np.sqrt(sum(np.sum(each**2) for each in dys))
    return [each * min(1, 0.5 / norm) for each in dys] if isinstance(dy, list) else dy * min(1, 0.5 / norm)


# The function, its arguments and the options of the check.
FUNCTIONS = {
    "embed_gradient": (lambda x: cg.embed_gradient(x**2, 2 * x, x), [X], {}),
    "embed_gradient, axis": (
        lambda x: cg.embed_gradient(tf.reduce_sum(x**3, -1), 3 * x**2, x, axis=-1),
        [X],
        {"forward_mode": True},
    ),
    "embed_gradient, lists": (
        lambda x, y: cg.embed_gradient(x * y, [y, x], [x, y]),
        [X, X + 3.0],
        {"forward_mode": True},
    ),
    "custom_gradient": (tripled, [X], {"kwargs": {"options": {"factor": 3.0, "bias": 0.5}}, "intended": True}),
    "custom_gradient, structures": (two_values, [X], {"intended": True}),
    "custom_vjp": (residual, [X], {"like": lambda x: tf.sin(x), "second_order": True}),
    "recompute_grad": (recomputed, [X], {"second_order": True, "forward_mode": True}),
    "grad_pass_through": (cg.grad_pass_through(tf.round), [X], {"like": tf.identity, "second_order": True}),
    "compat.bayesflow": (
        lambda x: cg.compat.bayesflow.custom_gradient(tf.reduce_sum(x, -1), tf.ones(2, x.dtype), x, axis=[1]),
        [X],
        {},
    ),
    "compat.tfp_math": (lambda x: cg.compat.tfp_math.custom_gradient(x**2, 2 * x, x), [X], {}),
    "reverse_gradient": (
        lambda x: cg.reverse_gradient(x**2, 0.5),
        [X],
        {"like": lambda x: -0.5 * x**2, "second_order": True, "forward_mode": True},
    ),
    "scale_gradient": (
        lambda x: cg.scale_gradient(tf.sin(x), ROW),
        [X],
        {"like": lambda x: ROW * tf.sin(x), "second_order": True, "forward_mode": True},
    ),
    "clip_gradient by value": (lambda x: cg.clip_gradient(x, value=0.5), [X], {"intended_gradient": clipped}),
    "clip_gradient by norm": (lambda x: cg.clip_gradient(x, norm=0.5), [X], {"intended_gradient": shrunk}),
    "clip_gradient by global norm": (
        lambda x, y: cg.clip_gradient([x, y], global_norm=0.5),
        [X, ROW],
        {"intended_gradient": shrunk},
    ),
    "straight_through": (
        cg.straight_through(tf.sign, "hard_tanh", slope=0.8),
        [X],
        {"like": hard_tanh(0.8), "second_order": True},
    ),
    "straight_through, sigmoid": (
        cg.straight_through(tf.sign, "sigmoid", slope=2.0),
        [X],
        {"like": lambda x: tf.sigmoid(2.0 * x), "second_order": True, "forward_mode": True},
    ),
    "straight_through, fast sigmoid": (
        cg.straight_through(tf.sign, "fast_sigmoid", slope=2.0),
        [X],
        {"like": lambda x: x / (1 + 2.0 * tf.abs(x)), "second_order": True, "forward_mode": True},
    ),
}

# Those whose gradients are wrong on purpose, in support/kerases.py.
INTENDED = {
    "custom_gradient": lambda dy, x, options: [18.0 * dy * x, np.sum(dy), np.sum(0.0 * dy)],
    "custom_gradient, structures": lambda dy, x: 5.0 * dy[0] + 7.0 * dy[1][:, None],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions(name):
    function, args, options = FUNCTIONS[name]
    options = dict(options)
    if options.pop("intended", False):
        options["intended_gradient"] = INTENDED[name]
    cg.testing.check_gradient(function, args, **options)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "like" in FUNCTIONS[name][2]])
def test_without_the_declaration_what_differs_on_purpose_is_found(name):
    function, args, _ = FUNCTIONS[name]
    with pytest.raises(AssertionError, match="check_gradient: "):
        cg.testing.check_gradient(function, args, modes=["eager"])


def embedded(layers):
    layer = layers.EmbedGradient(axis=-1, dtype="float64")
    return lambda x: layer([tf.reduce_sum(x**2, -1), 2 * x, x])


LAYERS = {
    "EmbedGradient": (embedded, {}),
    "GradientReversal": (lambda m: m.GradientReversal(0.5, dtype="float64"), {"like": lambda x: -0.5 * x}),
    "GradientScale": (lambda m: m.GradientScale(0.25, dtype="float64"), {"like": lambda x: 0.25 * x}),
    "GradientClip": (lambda m: m.GradientClip(value=0.5, dtype="float64"), {"intended_gradient": clipped}),
    "WatchGradient": (
        lambda m: m.WatchGradient(check_numerics=True, dtype="float64"),
        {"second_order": True, "modes": ["eager", "function", "vectorized"]},
    ),
    "Recompute": (
        lambda m: m.Recompute(m.StraightThrough(tf.sin, tf.cos, dtype="float64"), dtype="float64"),
        {"second_order": True},
    ),
    "StraightThrough": (
        lambda m: m.StraightThrough("round", "hard_tanh", dtype="float64"),
        {"like": hard_tanh(1.0), "second_order": True},
    ),
    "StraightThrough of a decorated function": (
        lambda m: m.StraightThrough(steep, "sigmoid", dtype="float64"),
        {"like": tf.sigmoid, "second_order": True, "forward_mode": True},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers(name, library):
    make, options = LAYERS[name]
    layer = make(layers_of(library))
    layer(tf.constant(X))  # Keras makes weights at the first call, which may not be in a batch.
    cg.testing.check_gradient(lambda x: layer(x), [X], **options)


# In each example, what has a custom gradient: the names of the file and of the function, the arguments, the options.
EXAMPLES = {
    "log1pexp": ("log1pexp", "log1pexp", [X], {"second_order": True, "forward_mode": True}),
    "the sigmoid of log1pexp": ("log1pexp", "sigmoid", [X], {"second_order": True, "forward_mode": True}),
    "spiking_cell": (
        "spiking_cell",
        "spike",
        [X],
        {"like": lambda x: x / (1 + 5.0 * tf.abs(x)), "second_order": True, "forward_mode": True},
    ),
    "long_sequence": (
        "long_sequence",
        "spike",
        [X],
        {"like": lambda x: x / (1 + 5.0 * tf.abs(x)), "second_order": True, "forward_mode": True},
    ),
    "strip_for_tflite": ("strip_for_tflite", "rounded", [X], {"like": hard_tanh(1.0), "second_order": True}),
    "fit_ode": (
        "fit_ode",
        "residuals",
        [np.array([-0.6, -3.6, -0.3, -3.7, 33.0, 6.0])],
        # A function of NumPy has no graph, and the solver's own tolerance is 1e-9.
        {"modes": ["eager", "function"], "rtol": 1e-4, "step": 1e-3},
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_functions_of_the_examples(name):
    file, function, args, options = EXAMPLES[name]
    cg.testing.check_gradient(runpy.run_path(ROOT / "examples" / f"{file}.py")[function], args, **options)


def test_the_binary_layer_of_the_example():
    layer = runpy.run_path(ROOT / "examples" / "binary_net.py")["BinaryDense"](3)
    layer.build([2, 3])
    kernel = np.random.default_rng(0).uniform(-0.9, 0.9, [3, 3])

    def multiplied(kernel):
        return tf.matmul(tf.constant(X), layer.sign(kernel))

    cg.testing.check_gradient(multiplied, [kernel], like=lambda kernel: tf.matmul(tf.constant(X), kernel))
