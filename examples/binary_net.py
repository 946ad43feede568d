"""A net whose weights and activations are +1 or -1: `straight_through` and the layer `StraightThrough` in Keras.

    python examples/binary_net.py [--output FOLDER]

The net trains real weights but multiplies by their signs, and its layers pass on only signs. The derivative of a sign
is zero. With the derivative of a hard tanh instead, the net learns to read digits; with `tf.sign`, all gradients are
zero and it stays at chance.

Source: Hubara et al., "Binarized neural networks" (2016), arXiv:1602.02830.

FOLDER gets the picture binary_net.png, the net as binary_net.keras, what a fresh process computed with it as
reloaded.npz, and results.json.
"""

import argparse
import json
import multiprocessing
import pathlib
import sys
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

UNITS, CLASSES, EPOCHS, SEED = 256, 10, 20, 0


@keras.saving.register_keras_serializable(package="binary_net")
class BinaryDense(keras.layers.Layer):
    """Multiplies by the signs of its weights, and divides by the square root of their number."""

    def __init__(self, units: int, straight_through: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.straight_through = units, straight_through
        self.sign = cg.straight_through(tf.sign, "hard_tanh") if straight_through else tf.sign

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Makes the weights, well within -1 and 1, where the hard tanh has a slope."""
        initializer = keras.initializers.RandomUniform(-0.5, 0.5)
        self.kernel = self.add_weight(name="kernel", shape=[shape[-1], self.units], initializer=initializer)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Returns real numbers of about the size 1."""
        return tf.matmul(x, self.sign(self.kernel)) / self.kernel.shape[0] ** 0.5

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return super().get_config() | {"units": self.units, "straight_through": self.straight_through}


def build(straight_through: bool) -> keras.Model:
    """Three layers of binary weights, with binary activations between them."""
    activation = (
        cg.layers.StraightThrough("sign", "hard_tanh") if straight_through else keras.layers.Activation(tf.sign)
    )
    images = keras.Input([64])
    x = BinaryDense(UNITS, straight_through, name="first")(images)
    x = BinaryDense(UNITS, straight_through)(activation(x))
    logits = BinaryDense(CLASSES, straight_through)(activation(x))
    return keras.Model(images, logits)


def load() -> tuple[np.ndarray, ...]:
    """Images for training and test, then labels: the digits that come with scikit-learn, a quarter held out."""
    digits = sklearn.datasets.load_digits()
    images = (digits.data / 8.0 - 1.0).astype(np.float32)
    labels = digits.target
    return tuple(sklearn.model_selection.train_test_split(images, labels, stratify=labels, random_state=0))


def train(straight_through: bool) -> tuple[keras.Model, list[float], float]:
    """The net, its test accuracy after each epoch, and the largest change of a weight."""
    images, test_images, labels, test_labels = load()
    keras.utils.set_random_seed(SEED)
    model = build(straight_through)
    start = model.get_weights()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    history = model.fit(
        images, labels, batch_size=64, epochs=EPOCHS, validation_data=(test_images, test_labels), verbose=0
    ).history
    moved = max(float(np.max(np.abs(a - b))) for a, b in zip(start, model.get_weights(), strict=True))
    return model, history["val_accuracy"], moved


def outputs_and_gradients(model: keras.Model) -> dict[str, np.ndarray]:
    """The logits of some images, and the gradients with respect to the images and all weights."""
    _, images, _, labels = load()
    x = tf.constant(images[:32])
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = model(x)
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels[:32], logits))
    gradients = tape.gradient(loss, [x, *model.trainable_variables])
    return {"logits": logits.numpy()} | {f"gradient {i}": gradient.numpy() for i, gradient in enumerate(gradients)}


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Trains with and without straight-through gradients; saves the first net and compares it after loading."""
    model, curve, _ = train(straight_through=True)
    print(f"straight-through: {curve[-1]:.1%} of the digits read", flush=True)
    _, plain_curve, plain_moved = train(straight_through=False)
    print(f"tf.sign: {plain_curve[-1]:.1%} of the digits read", flush=True)
    show("digits read, straight-through", curve[-1], "at least", 0.9)
    show("digits read, tf.sign (chance is 0.1)", plain_curve[-1], "at most", 0.2)
    show("tf.sign: largest change of a weight by training", plain_moved, "at most", 0.0)

    model.save(output / "binary_net.keras")
    with multiprocessing.get_context("spawn").Pool(1) as fresh_process:
        fresh_process.apply(in_fresh_process, [output])
    here = outputs_and_gradients(model)
    with np.load(output / "reloaded.npz") as found:
        difference = max(float(np.max(np.abs(found[name] - values))) for name, values in here.items())
    size = min(float(np.max(np.abs(values))) for values in here.values())
    show("fresh process: largest difference of logits and gradients", difference, "at most", 1e-6)
    show("smallest over images and layers of max |gradient|", size, "at least", 1e-3)
    draw(model, {"straight-through": curve, "tf.sign": plain_curve}, output / "binary_net.png")


def in_fresh_process(output: pathlib.Path) -> None:
    """Loads the net. Keras finds BinaryDense and StraightThrough because importing this module registers them."""
    np.savez(output / "reloaded.npz", **outputs_and_gradients(keras.models.load_model(output / "binary_net.keras")))


def draw(model: keras.Model, curves: dict[str, list[float]], path: pathlib.Path) -> None:
    """The learning curves, and the signs of the first layer's weights."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    learning, weights = figure.subplots(1, 2, width_ratios=[1, 1.6])
    for name, curve in curves.items():
        learning.plot(np.arange(EPOCHS) + 1, curve, linewidth=2, label=name)
    learning.axhline(1 / CLASSES, color="grey", linestyle=":", label="chance")
    learning.set(title="Digits read", xlabel="epoch", ylabel="test accuracy", ylim=(0, 1))
    learning.xaxis.get_major_locator().set_params(integer=True)
    learning.legend(loc="center right")
    signs = np.sign(model.get_layer("first").kernel.numpy()).T.reshape([-1, 8, 8])[:32]
    tiles = np.pad(signs, ((0, 0), (1, 1), (1, 1))).reshape([4, 8, 10, 10])
    weights.imshow(tiles.transpose(0, 2, 1, 3).reshape([40, 80]), cmap="RdBu", interpolation="nearest", aspect="auto")
    weights.set(title="Weights of 32 units of the first layer: +1 blue, -1 red", xticks=[], yticks=[])
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/binary_net")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
