"""A Keras layer with embedded gradients, for Keras 2 and 3: a neuron with a sign, scaled by a function that reads a weight."""

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg


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
                    # The variable itself is kept in float32 under every policy.
                    return 0.5 * dy * scale, [tf.cast(tf.reduce_sum(dy * sign, 0), variables[0].dtype)]

                return sign * scale, grad_fn

            return scaled(sign)

    return Sign()


def data():
    rng = np.random.default_rng(20240229)
    x = rng.normal(size=(64, 4)).astype(np.float32)
    return x, 0.3 * np.sign(x @ np.array([[1.0], [-2.0], [0.5], [1.5]], np.float32))


def train_by_hand(learning_rate, epochs, batch_size):
    """The kernel, the scale and the loss of each epoch by gradient descent on the mean square, in float64."""
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
