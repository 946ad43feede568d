"""Layers, models and training in Keras 3 and tf_keras, with the numbers to expect."""

import contextlib
import importlib

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

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
UNITS = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)
TARGET = np.random.default_rng(1).normal(size=[8, 1]).astype(np.float32)
# What `fit` and `compile` take for each mode.
FIT = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "jit": {"jit_compile": True}}


@register
def halves(x):
    return tf.round(2.0 * x) / 2.0


@register
def tent(x):
    return tf.maximum(1.0 - tf.abs(x), 0.0)


def variables_of(layer):
    """The trainable variables as TensorFlow variables; none for a function."""
    variables = getattr(layer, "trainable_variables", [])
    return [v if isinstance(v, tf.Variable) else v.value for v in variables]


def upstream_of(y):
    return tf.stop_gradient(tf.cast(tf.sin(3.0 * tf.cast(y, tf.float32)) + 1.5, y.dtype))


def derive(function, x, *args, dy=None, **kwargs):
    """The first output, and the gradients of the inputs and the weights, for an upstream that is not uniform."""
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nest.flatten(function(x, *args, **kwargs))[0]
    dy = upstream_of(y) if dy is None else tf.cast(dy, y.dtype)
    gradients = tape.gradient(y, [x, *variables_of(function)], output_gradients=dy)
    return [y, *map(tf.convert_to_tensor, tf.nest.flatten(gradients))]


def value_and_gradients(function, x=X, *args, **kwargs):
    """The same as arrays."""
    return [tensor.numpy() for tensor in derive(function, x, *args, **kwargs)]


def derive_each(function, x=X, dy=None):
    """The outputs of a function that has several, each with its own gradient, as arrays."""
    x = tf.constant(x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ys = function(x)
    gradients = [tf.convert_to_tensor(tape.gradient(y, x, upstream_of(y) if dy is None else dy)) for y in ys]
    return [(y.numpy(), gradient.numpy()) for y, gradient in zip(ys, gradients, strict=True)]


def assert_equal(found, expected, rtol=1e-4, atol=1e-5, err_msg=""):
    assert len(found) == len(expected)
    for actual, wanted in zip(found, expected, strict=True):
        actual, wanted = np.asarray(actual), np.asarray(wanted)
        assert actual.dtype == wanted.dtype, err_msg
        np.testing.assert_allclose(actual.astype(float), wanted.astype(float), rtol, atol, err_msg=err_msg)


def saved_and_loaded(library, model, folder):
    """The model that a .keras file has."""
    model.save(folder / "model.keras")
    return library.models.load_model(folder / "model.keras")


@contextlib.contextmanager
def policy(library, name):
    """A policy of mixed precision for all layers that are made inside."""
    library.mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        library.mixed_precision.set_global_policy("float32")


def fitted(model, x, target, mode, **options):
    """The weights and the losses of each epoch after training, in order and without noise."""
    model.compile(options.pop("optimizer", "sgd"), "mse", **FIT[mode])
    history = model.fit(x, target, batch_size=4, shuffle=False, verbose=0, **options)
    return [*model.get_weights(), np.array(history.history["loss"])]


def deep_model(library):
    """Calls between layers, as inputs of layers, with several inputs, and as the activation of a layer."""
    x, y = library.Input([3], name="x"), library.Input([3], name="y")
    inputs = [x, y]
    y = library.layers.Activation("linear")(y)  # Casts to the compute dtype of the policy.
    h = library.layers.Dense(3, activation=steep)(x)
    h = residual(with_tangent(cg.embed_gradient(h, [h, y], [h, y])))
    h = library.layers.Dense(3)(library.layers.Concatenate()([stepped(h), cg.reverse_gradient(stepped(y), 0.5)]))
    return library.Model(inputs, tripled(h, options={"factor": 2.0, "bias": np.ones(3, np.float32)}))


def network(library, wrap):
    """With losses, state, random numbers and two branches; `wrap` makes the layers of one of them."""
    layers = library.layers
    x = library.Input([3])
    h = wrap(layers.Dense(8, "gelu", activity_regularizer="l2", kernel_regularizer="l2", name="first"))(x)
    h = wrap(layers.BatchNormalization())(h)
    if library is keras:
        h = wrap(layers.Dropout(0.3, seed=1))(h)
    h = wrap(
        library.Sequential(
            [layers.Dense(4, "tanh", activity_regularizer="l1", name="second"), layers.BatchNormalization()]
        )
    )(h)
    return library.Model(x, layers.Dense(1, kernel_regularizer="l2")(layers.Concatenate()([x, h])))


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
