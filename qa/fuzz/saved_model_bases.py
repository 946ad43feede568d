"""The small SavedModels that are mutated: a function `f` of three numbers each, also as the signature.

Between them they hold every op of the library, in graphs, functions, loops and conditionals.
"""

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

X = np.array([0.5, -1.0, 2.0], np.float32)
DY = np.array([1.0, 10.0, 100.0], np.float32)


def embed(module):
    """Without an axis, a list, and used as given."""

    def f(x):
        h = cg.embed_gradient(tf.sign(x), x, x)
        both = cg.embed_gradient(x + h, [h, x], [h, x])
        return both + cg.embed_gradient(x**2, x, x, fx_gx_manually_stopped=True)

    return f, DY * (np.sign(X) * X + 4 * X)  # 4 x: x of the list, 2 x and 1 x of the square; h has a gradient of x.


def embed_axis(module):
    """With an axis, in a shape that is not known."""

    def f(x):
        rows = tf.stack([x, 2.0 * x], 1)
        return cg.embed_gradient(tf.reduce_sum(rows, 1), 3.0 * rows, rows, axis=-1)

    return f, DY * 15 * X


def rule(module):
    """With variables, a keyword argument, captures, and a nested rule."""
    module.w = tf.Variable([2.0, 3.0, 4.0])

    @cg.custom_gradient
    def inner(dy):
        return 2.0 * dy, lambda ddy: 5.0 * ddy

    @cg.custom_gradient
    def outer(x, scale):
        captured = tf.sin(x)

        def grad_fn(dy, variables):
            return (inner(dy) * captured, dy * x), [dy * scale for _ in variables]

        return tf.sign(x) * module.w * scale, grad_fn

    def f(x):
        return outer(x, scale=tf.cos(x))

    return f, DY * (2 * np.sin(X) - X * np.sin(X))


def control_flow(module):
    """In a loop and a conditional."""

    @cg.custom_gradient
    def spike(x):
        return tf.sign(x), lambda dy: 3.0 * dy

    def f(x):
        _, y = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y + spike(y)), (0, x))
        z = tf.cond(tf.reduce_sum(x) > 0.0, lambda: cg.embed_gradient(x, x, x), lambda: x)
        return y + z

    return f, DY * (16 + X)


def recompute(module):
    """A value of a variable, too, that is recomputed for the gradient."""
    module.w = tf.Variable([2.0, 3.0, 4.0])

    @cg.recompute_grad
    def f(x):
        return tf.tanh(x * module.w)

    w = np.array([2.0, 3.0, 4.0])
    return f, DY * w * (1 - np.tanh(X * w) ** 2)


def step(module):
    """Gradients in the signature itself, of shapes that are not known."""
    module.w = tf.Variable([2.0, 3.0, 4.0])

    @cg.custom_gradient
    def cube(x):
        return x**3, lambda dy: 3.0 * dy * x**2

    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = cube(x) + cg.embed_gradient(x, x, x) * module.w
        return tape.gradient(y, x)

    return f, DY * 6 * X  # f = 3 x^2 + gx w, and gx is stopped.


def foreign(module):
    """Gradients of TensorFlow's decorator, one of them with a variable."""
    module.w = tf.Variable([2.0, 3.0, 4.0])

    @tf.custom_gradient
    def doubled(x):
        return tf.sin(x), lambda dy: 2.0 * dy

    @tf.custom_gradient
    def scaled(x):
        return x * module.w, lambda dy, variables: (3.0 * dy, [dy * x for _ in variables])

    def f(x):
        return doubled(tf.function(scaled)(x))

    return f, 6.0 * DY


BASES = (embed, embed_axis, rule, control_flow, recompute, step, foreign)
KNOWN_SHAPES = ("embed", "rule", "recompute", "foreign")


def save(base, folder):
    """Saves one of them; returns its gradient at X for DY, computed by hand."""
    module = tf.Module()
    function, gradient = base(module)
    spec = tf.TensorSpec([3 if base.__name__ in KNOWN_SHAPES else None], name="x")
    module.f = tf.function(function, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures=module.f)
    return gradient
