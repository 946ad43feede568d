"""Every layer with its value and gradient for one input and one upstream, by hand."""

import numpy as np
import tensorflow as tf

from .kerases import register, steep

X = np.array([[-2.0, -0.5, 0.5], [0.25, 1.5, -1.0]], np.float32)
DY = np.array([[1.0, 10.0, -3.0], [0.5, -4.0, 2.0]], np.float32)


@register
def halves(x):
    return tf.round(2.0 * x) / 2.0


@register
def tent(x):
    return tf.maximum(1.0 - tf.abs(x), 0.0)


def shrunk(dy, norm, limit):
    return dy * np.minimum(1.0, limit / norm)


ROW_NORMS = np.linalg.norm(DY, axis=-1, keepdims=True)

# The layer's constructor, its value and its gradient at X below the upstream DY.
LAYERS = {
    "reversal": (lambda m: m.GradientReversal(0.5), X, -0.5 * DY),
    "reversal by default": (lambda m: m.GradientReversal(), X, -DY),
    "scale": (lambda m: m.GradientScale(0.25), X, 0.25 * DY),
    "clip by value": (lambda m: m.GradientClip(value=2.0), X, np.clip(DY, -2, 2)),
    "clip by norm": (lambda m: m.GradientClip(norm=2.0), X, shrunk(DY, np.linalg.norm(DY), 2.0)),
    "clip by the norm of rows": (lambda m: m.GradientClip(norm=5.0, axes=[-1]), X, shrunk(DY, ROW_NORMS, 5.0)),
    "clip by global norm": (lambda m: m.GradientClip(global_norm=2.0), X, shrunk(DY, np.linalg.norm(DY), 2.0)),
    "sign": (lambda m: m.StraightThrough("sign", "hard_tanh"), np.sign(X), DY * (np.abs(X) <= 1)),
    "heaviside": (
        lambda m: m.StraightThrough("heaviside", "fast_sigmoid", slope=2.0),
        (X > 0).astype(np.float32),
        DY / (1 + 2 * np.abs(X)) ** 2,
    ),
    "a function of TensorFlow": (lambda m: m.StraightThrough(tf.floor), np.floor(X), DY),
    "functions of one's own": (
        lambda m: m.StraightThrough(halves, tent),
        np.round(2 * X) / 2,
        DY * np.maximum(1 - np.abs(X), 0),
    ),
    "watch": (lambda m: m.WatchGradient(check_numerics=True), X, DY),
    "a decorated function": (lambda m: m.StraightThrough(steep, "sigmoid"), np.tanh(X), None),
}


def value_and_gradient(function, x=X, dy=DY):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y.numpy(), tape.gradient(y, x, output_gradients=tf.constant(dy)).numpy()
