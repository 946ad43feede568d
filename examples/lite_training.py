"""Trains on a device: LiteRT runs training steps of a Keras model, with `saved_model.add_gradients`.

    python examples/lite_training.py [--output FOLDER]

LiteRT (TensorFlow Lite) runs models on phones, and computes no gradients. Here two untrained nets, an MLP and a small
CNN, are saved with a training step as a second signature: `add_gradients` with `update` and `optimizer`. With
`lite=True` the step only has ops that LiteRT has built in, so an app needs no other library. The interpreter then
trains each net to read digits with Adam, on the same batches as Keras, and reads as many of the test digits. Two more
signatures read and set the weights and what Adam remembers, so they go to a file and into a new interpreter, which
could train on.

FOLDER gets the picture lite_training.png, the SavedModels and .tflite models, the weights, and results.json.
"""

import argparse
import json
import pathlib
import shutil
import sys
import time
from typing import Any

import keras
import matplotlib
import numpy as np
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

STEPS, BATCH_SIZE, LEARNING_RATE = 800, 32, 0.003
SHOWN = 20  # How many steps lie between two points of the learning curve.


def make_mlp() -> keras.Model:
    """Two dense layers."""
    layers = keras.layers
    images = layers.Input([8, 8, 1], name="images")
    x = layers.Dense(64, activation="relu")(layers.Flatten()(images))
    return keras.Model(images, layers.Dense(10)(x))


def make_cnn() -> keras.Model:
    """Two convolutions, a pool, and batch normalization."""
    layers = keras.layers
    images = layers.Input([8, 8, 1], name="images")
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(images)
    x = layers.BatchNormalization()(layers.MaxPooling2D()(x))
    x = layers.Conv2D(16, 3, activation="relu")(x)
    return keras.Model(images, layers.Dense(10)(layers.Flatten()(x)))


def load() -> tuple[np.ndarray, ...]:
    """Images for training and test, then labels: the digits that come with scikit-learn, a quarter held out."""
    digits = sklearn.datasets.load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16.0
    return tuple(
        sklearn.model_selection.train_test_split(images, digits.target, stratify=digits.target, random_state=0)
    )


def batches(images: np.ndarray, labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same batches each time, with one-hot labels."""
    rng = np.random.default_rng(0)
    chosen = [rng.integers(len(images), size=BATCH_SIZE) for _ in range(STEPS)]
    return [(images[each], np.eye(10, dtype=np.float32)[labels[each]]) for each in chosen]


def convert(net: keras.Model, folder: pathlib.Path) -> bytes:
    """The untrained net with its training step as a LiteRT model."""
    for name in ("saved", "with_step"):
        shutil.rmtree(folder / name, ignore_errors=True)  # From an earlier run.
    net.export(folder / "saved", verbose=False)
    report = cg.saved_model.add_gradients(
        *(folder / "saved", folder / "with_step"),
        of="output_0",
        wrt="variables",
        name="train",
        loss="crossentropy",
        update="learning_rate",
        optimizer="adam",
        lite=True,
    )
    print(report)
    plain, model = (
        tf.lite.TFLiteConverter.from_saved_model(str(folder / name)).convert() for name in ("saved", "with_step")
    )
    (folder / "model.tflite").write_bytes(model)
    print(f"{len(plain) / 1000:.0f} kB without the training step, {len(model) / 1000:.0f} kB with it")
    return model


class OnDevice:
    """What an app does with the LiteRT model."""

    def __init__(self, model: bytes) -> None:
        self._interpreter = tf.lite.Interpreter(model_content=model)
        self._train = self._interpreter.get_signature_runner("train")
        self._logits = self._interpreter.get_signature_runner("serving_default")
        self._weights = self._interpreter.get_signature_runner("weights")
        self._set_weights = self._interpreter.get_signature_runner("set_weights")

    def step(self, images: np.ndarray, targets: np.ndarray) -> float:
        """One training step; returns the loss before it."""
        rate = np.float32(LEARNING_RATE)  # An app can make it smaller as it goes.
        return float(self._train(images=images, target=targets, learning_rate=rate)["loss"])

    def logits(self, images: np.ndarray) -> np.ndarray:
        """The net as it is now."""
        return self._logits(images=images)["output_0"]

    def save(self, path: pathlib.Path) -> None:
        """Writes the weights, and what Adam remembers, to a file."""
        np.savez(path, **self._weights())

    def restore(self, path: pathlib.Path) -> None:
        """Reads them from a file."""
        with np.load(path) as weights:
            self._set_weights(**weights)


def make_step(net: keras.Model) -> Any:
    """The same training step with Keras and a tape. Like the exported net, it uses the statistics of inference."""
    optimizer = keras.optimizers.Adam(LEARNING_RATE)
    optimizer.build(net.trainable_variables)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            y = loss(targets, net(images, training=False))
        gradients = tape.gradient(y, [weight.value for weight in net.trainable_variables])
        optimizer.apply(gradients, net.trainable_variables)

    return step


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The share of digits that are read right."""
    return float(np.mean(np.argmax(logits, axis=-1) == labels))


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def train(name: str, net: keras.Model, output: pathlib.Path) -> dict[str, list[float]]:
    """Trains the net on the device and with Keras. Returns the accuracies on the way."""
    images, test_images, labels, test_labels = load()
    folder = output / name
    device = OnDevice(convert(net, folder))
    keras_step = make_step(net)
    curves: dict[str, list[float]] = {"LiteRT": [], "Keras": []}
    seconds: dict[str, list[float]] = {"LiteRT": [], "Keras": []}
    for number, batch in enumerate(batches(images, labels)):
        for key, step in {"LiteRT": device.step, "Keras": keras_step}.items():
            start = time.perf_counter()
            step(*batch)
            seconds[key].append(time.perf_counter() - start)
        if (number + 1) % SHOWN == 0:
            curves["LiteRT"].append(accuracy(device.logits(test_images), test_labels))
            curves["Keras"].append(accuracy(net.predict_on_batch(test_images), test_labels))

    print(f"{name}: median step: " + ", ".join(f"{1e3 * np.median(s):.2f} ms in {key}" for key, s in seconds.items()))

    device.save(folder / "weights.npz")
    restarted = OnDevice((folder / "model.tflite").read_bytes())
    untrained = accuracy(restarted.logits(test_images), test_labels)
    restarted.restore(folder / "weights.npz")
    difference = np.max(np.abs(restarted.logits(test_images) - device.logits(test_images)))
    show(f"{name}: digits read before training", untrained, "at most", 0.4)
    show(f"{name}: digits read after training by LiteRT", curves["LiteRT"][-1], "at least", 0.9)
    show(f"{name}: difference to Keras", abs(curves["LiteRT"][-1] - curves["Keras"][-1]), "at most", 0.01)
    show(f"{name}: difference of a logit after weights are restored", difference, "at most", 0.0)
    return curves


def draw(curves: dict[str, dict[str, list[float]]], path: pathlib.Path) -> None:
    """The learning curves of each net."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    steps = range(SHOWN, STEPS + 1, SHOWN)
    for axes, (name, both) in zip(figure.subplots(1, 2, sharey=True), curves.items(), strict=True):
        axes.plot(steps, both["Keras"], linewidth=5, alpha=0.4, label="Keras")
        axes.plot(steps, both["LiteRT"], ".-", label="LiteRT, on the device")
        axes.set(title=name, xlabel="training step", ylabel="test digits read")
        axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def run(output: pathlib.Path) -> None:
    """Trains both nets."""
    keras.utils.set_random_seed(0)
    nets = {"MLP": make_mlp(), "CNN": make_cnn()}
    curves = {name: train(name, net, output) for name, net in nets.items()}
    draw(curves, output / "lite_training.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/lite_training")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
