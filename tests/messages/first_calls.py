"""Wrong calls that a newcomer makes in the first ten minutes."""

import keras
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .table import M, Row, X, derive, eager

MODEL = keras.Sequential([keras.Input([2]), keras.layers.Dense(2, activation="tanh")])
A, B = keras.Input([3], name="a"), keras.Input([3], name="b")
TWO_INPUTS = keras.Model([A, B], A * B)
RULES = {"Relu": cg.rules.guided}


class Torch:
    """Doubles its input, as people write it for PyTorch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2.0 * x

    @staticmethod
    def backward(ctx, dy):
        return 2.0 * dy


def forward(x, weights):
    return tf.linalg.matvec(weights, x), (x, weights)


def swapped(dy, residuals):
    return dy * residuals[1]


@cg.custom_gradient
def without_return(x):
    def grad_fn(dy):
        2.0 * dy

    return 2.0 * x, grad_fn


def with_numpy(x):
    return np.sign(x), lambda dy: dy


def set_both_passes():
    cg.custom_gradient(lambda x: x**2).defvjp(forward, swapped)


def with_two_arguments():
    f = cg.custom_jvp(lambda x: x**2)
    f.defjvp(lambda x, t: 2.0 * x * t)
    return derive(f)


FIRST_CALLS = {
    # As in PyTorch and JAX.
    "custom_gradient(Torch)": lambda: cg.custom_gradient(Torch),
    "custom_vjp(Torch.forward, Torch.backward)": lambda: derive(cg.custom_vjp(Torch.forward, Torch.backward)),
    "backward(dy, residuals)": lambda: derive(cg.custom_vjp(forward, swapped), X, tf.ones([2, 2])),
    "backward(dy, residuals), where shapes fit": lambda: derive(
        cg.custom_vjp(lambda x: (tf.reduce_sum(x), x), lambda dy, x: 2.0 * x), M
    ),
    "f.defvjp(forward, backward)": set_both_passes,
    "rule(x, t)": with_two_arguments,
    # No return.
    "grad_fn without return": lambda: derive(without_return),
    "backward without return": lambda: derive(cg.custom_vjp(lambda x: (x, x), lambda x, dy: None)),
    "a rule without return": lambda: derive(cg.override_gradients(tf.nn.relu, {"Relu": lambda op, dy: None})),
    # NumPy where Tensors are symbolic.
    "np.sign in a graph": Row(lambda: cg.custom_gradient(with_numpy)(tf.identity(X)), "traced"),
    "x.numpy() in a graph": Row(lambda: cg.grad_pass_through(lambda x: x.numpy())(tf.identity(X)), "traced"),
    "np.clip of a gradient in a graph": Row(
        lambda: derive(cg.custom_gradient(lambda x: (x, lambda dy: np.clip(dy, -1.0, 1.0)))), "traced"
    ),
    # Another order.
    "reverse_gradient(0.5, x)": lambda: cg.reverse_gradient(0.5, X),
    "scale_gradient(weight, x)": lambda: cg.scale_gradient(tf.constant(0.5), X),
    "watch_gradient('h', x)": lambda: cg.watch_gradient("h", X, log=True),
    "checkpoint_name('h', x)": lambda: cg.checkpoint_name("h", X),
    "numpy_function(x, f)": lambda: cg.numpy_function(X, np.sin),
    "implicit_root(residual)(x)": lambda: cg.implicit_root(lambda y, x: y**2 - x)(X),
    "scan(f, xs)": lambda: cg.scan(lambda carry, x: carry + x, X),
    # A class, a function or a model instead of what it makes.
    "Recompute(Dense)": lambda: cg.layers.Recompute(keras.layers.Dense),
    "Recompute([Dense()])": lambda: cg.layers.Recompute([keras.layers.Dense(1)]),
    "recompute_grad(Dense)": lambda: cg.recompute_grad(keras.layers.Dense, memory=0.5),
    "override_gradients(ReLU)": lambda: cg.override_gradients(keras.layers.ReLU, RULES),
    "straight_through(ReLU)": lambda: cg.straight_through(keras.layers.ReLU),
    "{'Relu': rules.clip}": lambda: cg.override_gradients(tf.nn.relu, {"Relu": cg.rules.clip}),
    "embed_gradient(f, df, x)": lambda: cg.embed_gradient(tf.sin, tf.cos, X),
    "recompute_grad(f(x))": lambda: cg.recompute_grad(tf.sin(X)),
    "override(model, target, rules)": lambda: cg.saved_model.override(MODEL, "target", RULES),
    # Something is missing, or not named.
    "ClipGradient(1.0)": lambda: cg.layers.ClipGradient(1.0),
    "ReverseGradient(x, 0.5)": lambda: cg.layers.ReverseGradient(X, 0.5),
    "ScaleGradient()": lambda: cg.layers.ScaleGradient(),
    "WatchGradient('h')": lambda: cg.layers.WatchGradient("h"),
    "strip(path)": lambda: cg.saved_model.strip("model"),
    "override(model, rules)": lambda: cg.saved_model.override(MODEL, RULES),
    "check_gradient(f)": lambda: cg.testing.check_gradient(tf.sin),
    "audit(f)": lambda: cg.testing.audit(tf.sin),
    "recompute_grad(f).plan(x)": lambda: cg.recompute_grad(tf.sin).plan(X),
    "Recompute(model).plan(x)": lambda: cg.layers.Recompute(MODEL).plan(X),
    "Recompute(model).compile()": lambda: cg.layers.Recompute(MODEL, memory="auto").compile("sgd", "mse"),
    "recompute_grad(model).fit(x, y)": lambda: cg.recompute_grad(MODEL, memory="auto").fit(X, X),
    "audit(model, {'a': a}) of two inputs": lambda: cg.testing.audit(TWO_INPUTS, {"a": M}),
    "audit(model, [a, b]) of a dict of inputs": lambda: cg.testing.audit(keras.Model({"a": A, "b": B}, A * B), [M, M]),
    # In another precision than it looks.
    "check_gradient of a Keras model": lambda: cg.testing.check_gradient(MODEL, [tf.ones([1, 2], tf.float64)]),
}
GROUPS = {"First calls": {name: row if isinstance(row, Row) else eager(row) for name, row in FIRST_CALLS.items()}}
