"""Signatures with gradients that add_gradients adds to models of several kinds, run without this library: in a fresh
process, as TensorFlow Serving loads them, and in C.
"""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support import c_program
from ..support.processes import run_python
from ..support.saved_models import in_a_loop


def cnn():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def lstm():
    return keras.Sequential([keras.layers.Input([5, 3]), keras.layers.LSTM(4), keras.layers.Dense(3)])


def transformer():
    x = keras.Input([4, 8])
    h = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 4)(x, x))
    h = keras.layers.LayerNormalization()(h + keras.layers.Dense(8, activation="gelu")(h))
    return keras.Model(x, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(h)))


def binary_net():
    layers = [keras.layers.Dense(4), cg.layers.StraightThrough("sign"), keras.layers.Dense(3)]
    return keras.Sequential([keras.layers.Input([6]), *layers])


class Module(tf.Module):
    """A model without Keras."""

    def __init__(self, function):
        super().__init__()
        self.w = tf.Variable([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]], name="w")
        self.function = function

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def __call__(self, x):
        return {"output_0": self.function(x @ self.w)}


@tf.custom_gradient
def spike(x):
    slope = 1.0 / (1.0 + tf.abs(x))
    return tf.sign(x) * 0.5, lambda dy: dy * slope


def with_a_loop_of_tensorflow():
    """Its gradient function needs a tensor of the loop's body, which loses the gradient in a file."""
    return Module(in_a_loop(spike))


def with_a_scan():
    return Module(lambda x: cg.scan(lambda carry, _: (tf.tanh(carry) + x, None), x, length=4)[0])


# Each with the shape of an input.
MODELS = {
    "cnn": (cnn, [2, 8, 8, 1]),
    "lstm": (lstm, [2, 5, 3]),
    "transformer": (transformer, [2, 4, 8]),
    "binary_net": (binary_net, [2, 6]),
    "tf_custom_gradient": (with_a_loop_of_tensorflow, [2, 2]),
    "scan": (with_a_scan, [2, 2]),
}


def value_and_gradients(model, x, dy):
    """The value, and the gradients of the input and of all variables, of the model that was saved."""
    x, variables = tf.constant(x), [v if isinstance(v, tf.Variable) else v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
        y = y["output_0"] if isinstance(y, dict) else y
    return [y, *tape.gradient(y, [x, *variables], output_gradients=dy)]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """For each model, the expected results and the results of a process without the library and of the C program."""
    folder = tmp_path_factory.mktemp("shipped")
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    calls, results = {}, {}
    for name, (make, shape) in MODELS.items():
        model = make()
        x, dy = (rng.normal(size=size).astype(np.float32) for size in (shape, [2, 3]))
        source, target = (folder / f"{name}_{step}" for step in ("source", "target"))
        if isinstance(model, keras.Model):
            signature = [keras.InputSpec(shape=[None, *shape[1:]], dtype="float32", name="x")]
            model.export(source, verbose=False, input_signature=signature)
        else:
            tf.saved_model.save(model, source, signatures=model.__call__)
        added = cg.saved_model.add_gradients(source, folder / name, of="output_0", wrt=["x", "variables"])
        cg.saved_model.strip(folder / name, target)
        names = [each.name for each in added.outputs]
        results[name] = {"expected": dict(zip(names, value_and_gradients(model, x, dy), strict=True))}
        calls[name] = target, "gradients", {"x": x, "d_output_0": dy}
    listed = [[str(path), name, {k: v.tolist() for k, v in inputs.items()}] for path, name, inputs in calls.values()]
    program = pathlib.Path(__file__).with_name("programs") / "signatures_alone.py"
    printed = run_python(program.read_text(), json.dumps(listed), cwd=folder).stdout
    for name, found in zip(calls, json.loads(printed.splitlines()[-1]), strict=True):
        results[name] |= {"python": found, "c": c_program.run_signature(*calls[name])}
    return results


@pytest.mark.parametrize("place", ["python", "c"])
@pytest.mark.parametrize("name", MODELS)
def test_value_and_gradient_without_the_library(shipped, name, place):
    expected, found = shipped[name]["expected"], shipped[name][place]
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        scale = max(1.0, np.max(np.abs(array)))  # The gradient of the bias of an attention's keys is zero.
        np.testing.assert_allclose(found[key], np.ravel(array), rtol=0.0, atol=1e-6 * scale, err_msg=key)
