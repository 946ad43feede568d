"""Trains int8 models in Keras and converts them for LiteRT without calibration data.

    python examples/quantized_net.py [--output FOLDER]

An MLP and a convolutional net read digits. Their weights have 8 or 4 bits and their activations 8, with scales that are
trained by `layers.FakeQuant` (Esser et al., "Learned step size quantization", 2020, arXiv:1902.08153). The converter of
LiteRT reads the scales from the model that `saved_model.strip` writes. The converted model computes with integers, and
its outputs lie within one step of Keras's. (LiteRT stores the weights of 4 bits as int8, too.)

FOLDER gets results.json, and for each model its SavedModels, trained and stripped, and quantized.tflite.
"""

import argparse
import json
import pathlib
import shutil
import sys
from typing import Any

import keras
import numpy as np
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf

import tf_cg_ops as cg


class Quantized(keras.layers.Layer):
    """The base of layers whose input, kernel and bias are quantized."""

    kernel: Any
    bias: Any

    def __init__(self, *arguments: Any, bits: int, axis: int | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.of_input = cg.layers.FakeQuant(zero_point=-128)  # Never negative: pixels, or the outputs of a ReLU.
        self.of_kernel = cg.layers.FakeQuant(bits, axis, narrow_range=True)

    def quantized(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The input, the kernel and the bias. LiteRT adds the bias to integers that count products of two steps."""
        x, kernel = self.of_input(x), self.of_kernel(self.kernel)
        step = self.of_input.scale * self.of_kernel.scale
        return x, kernel, step * cg.straight_through(tf.round)(tf.math.divide_no_nan(self.bias, step))


class QuantizedConv2D(Quantized, keras.layers.Conv2D):
    """A convolution of integers, with a scale for each output channel."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """As in Keras, with padding "same"."""
        x, kernel, bias = self.quantized(x)
        return self.activation(tf.nn.conv2d(x, kernel, 1, "SAME") + bias)


class QuantizedDense(Quantized, keras.layers.Dense):
    """A dense layer of integers."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """As in Keras."""
        x, kernel, bias = self.quantized(x)
        return self.activation(x @ kernel + bias)


def convolutional(bits: int) -> list[keras.layers.Layer]:
    """The hidden layers of the convolutional net."""
    return [QuantizedConv2D(8, 3, padding="same", activation="relu", bits=bits, axis=-1) for _ in range(2)]


def perceptron(bits: int) -> list[keras.layers.Layer]:
    """The hidden layers of the MLP."""
    return [keras.layers.Flatten(), QuantizedDense(64, activation="relu", bits=bits)]


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(name: str, hidden: list[keras.layers.Layer], bits: int, folder: pathlib.Path) -> None:
    """Trains, exports, strips, converts, and compares."""
    shutil.rmtree(folder, ignore_errors=True)  # From an earlier run: strip does not overwrite.
    digits = sklearn.datasets.load_digits()
    images, test_images, labels, test_labels = sklearn.model_selection.train_test_split(
        np.float32(digits.images[..., None] / 16), digits.target, stratify=digits.target, random_state=0
    )
    last = [keras.layers.Flatten(), QuantizedDense(10, bits=bits), cg.layers.FakeQuant()]
    model = keras.Sequential([keras.Input([8, 8, 1], name="image"), *hidden, *last])
    model.compile(keras.optimizers.Adam(0.005), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images, labels, epochs=20, batch_size=32, verbose=0)
    logits, kernel = model.predict(test_images, verbose=0), last[1].of_kernel(last[1].kernel)

    model.export(folder / "trained", verbose=False)
    cg.saved_model.strip(folder / "trained", folder / "stripped")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "stripped"))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]  # Without data: the scales are in the model.
    (folder / "quantized.tflite").write_bytes(converter.convert())
    inputs = {"serving_default": {"image": test_images}}
    gap, floats = cg.saved_model.compare(folder / "stripped", folder / "quantized.tflite", inputs)
    assert gap.within_one_step is not None  # The output is quantized.
    assert gap.noise is not None

    show(f"{name}: digits read by Keras", np.mean(np.argmax(logits, axis=-1) == test_labels), "at least", 0.95)
    show(f"{name}: different weights of the last layer", len(np.unique(kernel)), "at most", 2**bits - 1)
    show(f"{name}: tensors inside LiteRT's model that are not integers", len(floats.float_tensors), "at most", 0)
    show(f"{name}: share of outputs within one step of Keras's", gap.within_one_step, "at least", 0.999)
    show(f"{name}: gap, beside the noise of rounding", gap.noise, "at most", 0.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/quantized_net")
    output = parser.parse_args().output
    for make, bits in ((convolutional, 4), (convolutional, 8), (perceptron, 8)):
        keras.utils.set_random_seed(0)
        run(f"{make.__name__}, {bits} bits", make(bits), bits, output / f"{make.__name__}_{bits}_bits")
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
