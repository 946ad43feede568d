"""Trains with custom gradients and converts to TensorFlow Lite, with `saved_model.strip`.

    python examples/strip_for_tflite.py [--output FOLDER]

A net whose weights and activations are rounded to eighths learns to read digits with `straight_through`. Its SavedModel
holds the gradients, in ops of this library that `tf-cg-ops inspect` lists, so you can train on from it. But TensorFlow
Lite cannot convert these ops. `strip` writes the same model without gradients and without the ops. TensorFlow Lite
converts it, and its interpreter computes the same as the trained net, bit for bit.

FOLDER gets the SavedModels trained and stripped, the model stripped.tflite, and results.json.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf

import tf_cg_ops as cg

UNITS, STEPS, BATCH_SIZE = 64, 400, 64


@cg.straight_through(surrogate="hard_tanh")
def rounded(x: tf.Tensor) -> tf.Tensor:
    """The nearest multiple of an eighth between -1 and 1."""
    return tf.round(8.0 * tf.clip_by_value(x, -1.0, 1.0)) / 8.0


class Net(tf.Module):
    """Two layers. All sums are multiples of 1/64, so they are exact in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = tf.Variable(tf.random.stateless_normal([64, UNITS], [0, 0]) / 8.0)
        self.readout = tf.Variable(tf.random.stateless_normal([UNITS, 10], [0, 1]) / 8.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32)])
    def logits(self, images: tf.Tensor) -> tf.Tensor:
        """The log-odds of the classes, [batch, 10]."""
        return rounded(images @ rounded(self.hidden)) @ rounded(self.readout)


def load() -> tuple[np.ndarray, ...]:
    """Images for training and test, then labels: the digits that come with scikit-learn, a quarter held out."""
    digits = sklearn.datasets.load_digits()
    images = (digits.data / 8.0 - 1.0).astype(np.float32)
    labels = digits.target
    return tuple(sklearn.model_selection.train_test_split(images, labels, stratify=labels, random_state=0))


def train(net: Net, images: np.ndarray, labels: np.ndarray) -> None:
    """Trains with Adam on random batches."""
    optimizer = keras.optimizers.Adam(3e-3)
    optimizer.build(net.trainable_variables)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, net.logits(images)))
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        chosen = rng.integers(len(images), size=BATCH_SIZE)
        step(images[chosen], labels[chosen])


def convert(model: pathlib.Path) -> bytes:
    """The SavedModel as a TensorFlow Lite model, with TensorFlow Lite's own operations only."""
    return tf.lite.TFLiteConverter.from_saved_model(str(model)).convert()


def converts(model: pathlib.Path) -> bool:
    """Whether TensorFlow Lite can convert it. If not, the converter says why."""
    try:
        convert(model)
    except Exception:  # The converter's error class is not public.
        return False
    return True


def interpret(model: bytes, images: np.ndarray) -> np.ndarray:
    """The results of the interpreter of TensorFlow Lite."""
    interpreter = tf.lite.Interpreter(model_content=model)
    [inputs], [outputs] = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(inputs["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(inputs["index"], images)
    interpreter.invoke()
    return interpreter.get_tensor(outputs["index"])


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Trains, saves, strips, converts, and compares."""
    images, test_images, labels, test_labels = load()
    net = Net()
    train(net, images, labels)
    logits = net.logits(test_images).numpy()
    trained, stripped = output / "trained", output / "stripped"
    tf.saved_model.save(net, trained, signatures=net.logits)
    subprocess.run([sys.executable, "-m", "tf_cg_ops", "inspect", str(trained)], check=True)

    shutil.rmtree(stripped, ignore_errors=True)  # From an earlier run: strip does not overwrite.
    done = cg.saved_model.strip(trained, stripped)
    model = convert(stripped)
    (output / "stripped.tflite").write_bytes(model)
    found = interpret(model, test_images)

    show("digits read by the trained net", np.mean(np.argmax(logits, axis=-1) == test_labels), "at least", 0.9)
    show("ops of this library that strip has replaced", sum(done.replaced.values()), "at least", 3)
    left = len(cg.saved_model.inspect(stripped))
    show("embedded gradients in the stripped model", left, "at most", 0)
    show("conversions of the model that is not stripped", converts(trained), "at most", 0)
    show("TensorFlow Lite: largest difference of a logit", np.max(np.abs(found - logits)), "at most", 0.0)
    show("largest logit", np.max(np.abs(logits)), "at least", 1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/strip_for_tflite")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
