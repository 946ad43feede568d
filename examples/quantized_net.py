"""Trains a quantized Keras model with LSQ, and converts it to integers for LiteRT.

    python examples/quantized_net.py [--output FOLDER]

A convolutional net for digits, whose weights have 4 or 8 bits and whose activations have 8, learns its step sizes
(Esser et al., "Learned step size quantization", 2020, arXiv:1902.08153). The op that rounds is the one from which the
converter of LiteRT reads the steps, and `custom_gradient` gives it the gradient of LSQ. `saved_model.strip` writes the
model without gradients. Converted, it computes with integers, and its outputs lie within one step of Keras's. (LiteRT
stores the weights of 4 bits as int8, too.)

FOLDER gets results.json, and for 4 and 8 bits the SavedModels trained and stripped and the model quantized.tflite.
"""

import argparse
import json
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf

import tf_cg_ops as cg

EPOCHS, BATCH_SIZE = 20, 32


@cg.custom_gradient
def quantized(
    x: tf.Tensor, step: tf.Tensor, lowest: float, highest: float
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """The nearest multiple of the step, from `lowest` to `highest` steps, with the gradient of LSQ."""
    # LiteRT's integers: from -127 to 127 for weights, and 256 levels otherwise.
    is_weight = lowest == -highest
    ends = (-127.0, 127.0) if is_weight else (lowest, highest)
    clipped = tf.clip_by_value(x, lowest * step, highest * step) if highest < ends[1] else x
    y = tf.quantization.fake_quant_with_min_max_vars(clipped, ends[0] * step, ends[1] * step, narrow_range=is_weight)

    def grad_fn(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        levels = x / step
        is_inside = (levels >= lowest) & (levels <= highest)
        dy_dstep = tf.where(is_inside, y / step - levels, tf.clip_by_value(levels, lowest, highest))
        return tf.where(is_inside, dy, 0.0), tf.reduce_sum(dy * dy_dstep)

    return y, grad_fn


def at_least_a_little(step: tf.Tensor) -> tf.Tensor:
    """Keeps an update that is too large from making a step negative."""
    return tf.maximum(step, 1e-4)


class Quantizer(keras.layers.Layer):
    """Rounds to multiples of a step that is trained."""

    def __init__(self, lowest: float, highest: float) -> None:
        super().__init__()
        self.lowest, self.highest = lowest, highest
        self.step = self.add_weight(shape=(), initializer="ones", constraint=at_least_a_little, name="step")

    def start_at(self, x: tf.Tensor) -> None:
        """The first step, from the numbers to round."""
        self.step.assign(2 * tf.reduce_mean(tf.abs(x)) / self.highest**0.5)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Also scales the gradient of the step, by the number of weights, or of activations in an example."""
        count = np.prod(x.shape if self.lowest == -self.highest else x.shape[1:])
        step = cg.scale_gradient(tf.convert_to_tensor(self.step), float(count * self.highest) ** -0.5)
        return quantized(x, step, self.lowest, self.highest)


class Quantized(keras.layers.Layer):
    """A layer with a kernel and a bias, which are quantized, and so is its input."""

    kernel: Any
    bias: Any

    def __init__(self, *arguments: Any, bits: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.of_input = Quantizer(0.0, 255.0)
        self.of_kernel = Quantizer(1.0 - 2.0 ** (bits - 1), 2.0 ** (bits - 1) - 1.0)

    def build(self, input_shape: Any) -> None:
        """Starts the step of the kernel."""
        super().build(input_shape)
        self.of_kernel.start_at(self.kernel)

    def quantized(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The input, the kernel and the bias. LiteRT adds the bias to integers that count products of two steps."""
        step = self.of_input.step * self.of_kernel.step
        bias = step * cg.straight_through(tf.round)(self.bias / step)
        return self.of_input(x), self.of_kernel(tf.convert_to_tensor(self.kernel)), bias


class QuantizedConv2D(Quantized, keras.layers.Conv2D):
    """A convolution of integers."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """As in Keras, with padding "same"."""
        x, kernel, bias = self.quantized(x)
        return self.activation(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))


class QuantizedDense(Quantized, keras.layers.Dense):
    """A dense layer of integers."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """As in Keras."""
        x, kernel, bias = self.quantized(x)
        return self.activation(x @ kernel + bias)


def load() -> tuple[np.ndarray, ...]:
    """Images for training and test, then labels: the digits that come with scikit-learn, a quarter held out."""
    digits = sklearn.datasets.load_digits()
    images = (digits.images[..., None] / 16.0).astype(np.float32)
    return tuple(
        sklearn.model_selection.train_test_split(images, digits.target, stratify=digits.target, random_state=0)
    )


def make_model(bits: int, images: np.ndarray) -> keras.Sequential:
    """A small net, whose steps for activations start at the activations of these images."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            QuantizedConv2D(8, 3, padding="same", activation="relu", bits=bits),
            QuantizedConv2D(8, 3, padding="same", activation="relu", bits=bits),
            keras.layers.Flatten(),
            QuantizedDense(32, activation="relu", bits=bits),
            QuantizedDense(10, bits=bits),
            Quantizer(-128.0, 127.0),
        ]
    )
    x = tf.constant(images)
    for layer in model.layers:
        quantizer = getattr(layer, "of_input", layer)
        if isinstance(quantizer, Quantizer):
            quantizer.start_at(x)
        x = layer(x)
    return model


def convert(stripped: pathlib.Path) -> bytes:
    """The SavedModel as a model of integers; the converter reads the steps from the ops that round."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(stripped))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def interpret(model: bytes, images: np.ndarray) -> tuple[np.ndarray, int]:
    """The results of LiteRT's interpreter, and how many tensors of the model hold floating-point numbers."""
    interpreter = tf.lite.Interpreter(model_content=model)
    [inputs], [outputs] = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(inputs["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(inputs["index"], images)
    interpreter.invoke()
    floats = sum(np.issubdtype(tensor["dtype"], np.floating) for tensor in interpreter.get_tensor_details())
    return interpreter.get_tensor(outputs["index"]), floats


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(bits: int, output: pathlib.Path) -> None:
    """Trains, exports, strips, converts, and compares."""
    images, test_images, labels, test_labels = load()
    model = make_model(bits, images[:256])
    model.compile(
        keras.optimizers.SGD(0.02, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit(images, labels, epochs=EPOCHS, batch_size=BATCH_SIZE, verbose=0)
    logits, kernel = model.predict(test_images, verbose=0), model.layers[-2].of_kernel(model.layers[-2].kernel)

    for folder in ("trained", "stripped"):  # From an earlier run: strip does not overwrite.
        shutil.rmtree(output / folder, ignore_errors=True)
    model.export(output / "trained", verbose=False)
    cg.saved_model.strip(output / "trained", output / "stripped")
    converted = convert(output / "stripped")
    (output / "quantized.tflite").write_bytes(converted)
    found, floats = interpret(converted, test_images)

    where = f"{bits} bits: "
    steps = np.abs(found - logits) / model.layers[-1].step.numpy()
    show(f"{where}digits read by Keras", np.mean(np.argmax(logits, axis=-1) == test_labels), "at least", 0.93)
    show(f"{where}digits read by LiteRT", np.mean(np.argmax(found, axis=-1) == test_labels), "at least", 0.93)
    show(f"{where}different weights of the last layer", len(np.unique(kernel)), "at most", 2**bits - 1)
    show(f"{where}tensors of LiteRT that are not integers", floats, "at most", 2)  # Its input and its output.
    show(f"{where}share of outputs within one step of Keras's", np.mean(steps < 1.001), "at least", 0.999)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/quantized_net")
    output = parser.parse_args().output
    for bits in (4, 8):
        (output / f"{bits}_bits").mkdir(parents=True, exist_ok=True)
        run(bits, output / f"{bits}_bits")
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
