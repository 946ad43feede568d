"""Layers, models and training in Keras 3 and tf_keras, with the numbers to expect."""

import importlib

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from .modes import RUNS as MODES

KERASES = {"keras": keras, "tf_keras": tf_keras}


def layers_of(library):
    """The library's layers for this Keras."""
    name = "tf_cg_ops.layers" if library is keras else "tf_cg_ops.layers.tf_keras"
    return importlib.import_module(name)


def register(function):
    for library in KERASES.values():
        library.saving.register_keras_serializable("tests")(function)
    return function


@register
@cg.custom_gradient
def tripled(x, *, options, name="unused"):
    """Takes a dictionary and a keyword that is not a tensor; has three times the gradient of the square."""
    factor, bias = options["factor"], options["bias"]

    def grad_fn(dy):
        # Without it, `name` must not be passed as an argument.
        return 6.0 * dy * x * factor, {
            "bias": tf.ones_like(bias) * tf.cast(tf.reduce_sum(dy), bias.dtype),
            "factor": None,
        }

    return x**2 * factor + bias, grad_fn


@register
@cg.custom_gradient
def two_values(x):
    return {"a": 2.0 * x, "b": [tf.reduce_sum(x, -1)]}, lambda da, db: 5.0 * da + 7.0 * db[:, None]


@register
@cg.custom_gradient
def steep(x):
    """An activation."""
    return tf.tanh(x), lambda dy: 0.5 * dy


def with_residual(x):
    return 3.0 * x, x


residual = register(cg.custom_vjp(with_residual, lambda x, dy: dy * tf.cos(x)))


@register
@cg.custom_jvp
def with_tangent(x):
    return 3.0 * x


@with_tangent.defjvp
def cosine_tangent(primals, tangents):
    return with_tangent(*primals), tangents[0] * tf.cos(primals[0])


@register
@cg.recompute_grad
def recomputed(x):
    return x * tf.sin(x)


@register
@cg.grad_pass_through
def rounded(x):
    return tf.round(x)


@register
@cg.straight_through(surrogate="fast_sigmoid")
def stepped(x):
    return tf.sign(x)


@register
@cg.numpy_function
def softened(x):
    """In NumPy."""
    return np.log1p(np.exp(x)), 1 / (1 + np.exp(-x))


def cubic(y, x):
    return y**3 + y - x


@register
@cg.implicit_root(cubic)
def cube_root_like(x):
    y = tf.zeros_like(x)
    for _ in range(30):
        y -= cubic(y, x) / (3 * y**2 + 1)
    return y


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

# The layer's constructor, and its value and gradient at X for the upstream DY.
LAYERS = {
    "reversal": (lambda m: m.GradientReversal(0.5), X, -0.5 * DY),
    "reversal by default": (lambda m: m.GradientReversal(), X, -DY),
    "scale": (lambda m: m.GradientScale(0.25), X, 0.25 * DY),
    "clip by value": (lambda m: m.GradientClip(value=2.0), X, np.clip(DY, -2, 2)),
    "clip by norm": (lambda m: m.GradientClip(norm=2.0), X, shrunk(DY, np.linalg.norm(DY), 2.0)),
    "clip by the norm of rows": (lambda m: m.GradientClip(norm=5.0, axis=[-1]), X, shrunk(DY, ROW_NORMS, 5.0)),
    "clip by global norm": (lambda m: m.GradientClip(global_norm=2.0), X, shrunk(DY, np.linalg.norm(DY), 2.0)),
    "sign": (lambda m: m.StraightThrough("sign", "hard_tanh"), np.sign(X), DY * (np.abs(X) <= 1)),
    "heaviside": (
        lambda m: m.StraightThrough("heaviside", "fast_sigmoid", slope=2.0),
        (X > 0).astype(np.float32),
        DY / (1 + 2 * np.abs(X)) ** 2,
    ),
    "a function of TensorFlow": (lambda m: m.StraightThrough(tf.floor), np.floor(X), DY),
    "functions of one's own": (
        lambda m: m.StraightThrough(halves, derivative=tent),
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


def sign_layer(keras):
    """A layer of the given Keras (`keras` or `tf_keras`)."""

    class Sign(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 1), initializer="ones", name="kernel")
            self.scale = self.add_weight(shape=(1,), initializer="ones", name="scale")

        def call(self, x):
            z = tf.matmul(x, tf.convert_to_tensor(self.kernel))
            sign = cg.embed_gradient(tf.sign(z), 1.0 / (1.0 + z * z), z)

            @cg.custom_gradient
            def scaled(sign):
                scale = tf.convert_to_tensor(self.scale)

                def grad_fn(dy, variables):
                    # The variable itself is float32 under every policy.
                    return 0.5 * dy * scale, [tf.cast(tf.reduce_sum(dy * sign, 0), variables[0].dtype)]

                return sign * scale, grad_fn

            return scaled(sign)

    return Sign()


def data():
    rng = np.random.default_rng(20240229)
    x = rng.normal(size=(64, 4)).astype(np.float32)
    return x, 0.3 * np.sign(x @ np.array([[1.0], [-2.0], [0.5], [1.5]], np.float32))


def train_by_hand(learning_rate, epochs, batch_size):
    """The kernel, the scale and the loss of each epoch: gradient descent on the mean square, in float64."""
    x, target = (a.astype(np.float64) for a in data())
    kernel, scale, losses = np.ones((4, 1)), np.ones(1), []
    for _ in range(epochs):
        of_epoch = []
        for start in range(0, len(x), batch_size):
            batch, expected = x[start : start + batch_size], target[start : start + batch_size]
            z = batch @ kernel
            sign = np.sign(z)
            error = sign * scale - expected
            of_epoch.append(np.mean(error**2))
            dy = 2 * error / error.size
            dz = 0.5 * dy * scale / (1 + z * z)
            kernel, scale = kernel - learning_rate * batch.T @ dz, scale - learning_rate * np.sum(dy * sign, 0)
        losses.append(np.mean(of_epoch))
    return kernel, scale, losses


def variables_of(layer):
    """The trainable variables as TensorFlow variables."""
    return [v if isinstance(v, tf.Variable) else v.value for v in layer.trainable_variables]


def value_and_gradients(layer, x, *args, **kwargs):
    """The first output, and the gradients of the input and the weights for a non-uniform upstream."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nest.flatten(layer(x, *args, **kwargs))[0]
        upstream = tf.stop_gradient(tf.cast(tf.sin(3.0 * tf.cast(y, tf.float32)) + 1.5, y.dtype))
    gradients = tape.gradient(y, [x, *variables_of(layer)], output_gradients=upstream)
    return [tf.convert_to_tensor(tensor).numpy() for tensor in (y, *gradients)]


def train(layer, x, mode="eager", steps=5):
    """The values and gradients of each step, the losses, and the variables after them."""
    x = tf.constant(x)
    layer(x)
    weights = variables_of(getattr(layer, "layer", layer))

    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            upstream = tf.stop_gradient(tf.cast(tf.sin(3.0 * tf.cast(y, tf.float32)) + 1.5, y.dtype))
            losses = list(layer.losses)
            loss = tf.reduce_sum(tf.cast(y * upstream, tf.float32)) + sum(losses, 0.0)
        gradients = tape.gradient(loss, [x, *weights])
        for weight, gradient in zip(weights, gradients[1:], strict=True):
            weight.assign_sub(0.01 * tf.cast(gradient, weight.dtype))
        return [y, *losses, *map(tf.convert_to_tensor, gradients)]

    run = MODES[mode](step)
    results = [tensor for _ in range(steps) for tensor in run()]
    variables = getattr(layer, "layer", layer).variables
    return [tf.convert_to_tensor(tensor).numpy() for tensor in [*results, *variables]]


def assert_equal(found, expected, rtol=1e-4, atol=1e-5):
    assert len(found) == len(expected)
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol)
