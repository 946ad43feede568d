"""Binary units that learn to read digits, and a fit through SciPy: `embed_gradient` and `numpy_function` on real data.

    python examples/demo.py [--output FOLDER]

`make demo` runs it. The units of the digit classifier are +1 or -1. It learns through the derivative that
`embed_gradient` gives to their sign, and not at all without. A fresh process finds the same gradients in its
SavedModel. The spectral line is a Voigt profile, which only SciPy can compute; `numpy_function` calls it with its
Jacobian.

Sources: Hubara et al., "Binarized neural networks" (2016), arXiv:1602.02830. The Voigt profile is the real part of the
Faddeeva function w(z) at z = (x - centre + i gamma) / (sigma sqrt(2)), divided by sigma sqrt(2 pi). Its derivatives
follow from w'(z) = -2 z w(z) + 2i / sqrt(pi) (Abramowitz and Stegun, 7.1.20).

FOLDER (by default demo_output) gets the picture learning_curves.png, the SavedModel saved_model and results.json.
"""

import argparse
import dataclasses
import json
import multiprocessing
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import matplotlib
import numpy as np
import scipy.special
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

HIDDEN_UNITS, VOTERS_PER_CLASS, CLASSES = 256, 30, 10
EPOCHS, BATCH_SIZE = 40, 64
COMPARED_IMAGES = 32

STEPS, NOISE = 400, 0.005
TRUE = np.array([0.3, 0.5, 0.25])  # Centre, width sigma of the Gaussian, width gamma of the Lorentzian.
START = np.array([-0.5, 1.0, 1.0])
GRID = np.linspace(-4.0, 4.0, 201)

findings: list[dict[str, Any]] = []


def add(subject: str, measured: float, relation: str, bound: float) -> None:
    """Adds a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def show() -> None:
    """Prints the findings as a table."""
    rows: list[tuple[str, ...]] = [("finding", "measured", "wanted", "holds")]
    for found in findings:
        wanted = f"{found['relation']} {found['bound']:.4g}"
        rows.append((found["subject"], f"{found['measured']:.4g}", wanted, "yes" if found["holds"] else "NO"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def straight_through_sign(x: tf.Tensor) -> tf.Tensor:
    """The sign, with the derivative of the hard tanh."""
    return cg.embed_gradient(fx=tf.sign(x), gx=tf.cast(tf.abs(x) <= 1.0, x.dtype), x=x)


class BinaryVoters(tf.Module):
    """Two layers of units that are +1 or -1; the logit of each class is the mean vote of its own units.

    No trainable layer follows the last sign: the net learns through the embedded derivative alone.
    """

    def __init__(self, embedded: bool, seed: int) -> None:
        super().__init__()
        self._sign = straight_through_sign if embedded else tf.sign
        init = tf.random.stateless_normal
        voters = CLASSES * VOTERS_PER_CLASS
        self.hidden = tf.Variable(init([64, HIDDEN_UNITS], [seed, 0]) / 8.0, name="hidden")
        self.hidden_bias = tf.Variable(tf.zeros([HIDDEN_UNITS]), name="hidden_bias")
        self.votes = tf.Variable(init([HIDDEN_UNITS, voters], [seed, 1]) / HIDDEN_UNITS**0.5, name="votes")
        self.votes_bias = tf.Variable(tf.zeros([voters]), name="votes_bias")

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="images")])
    def logits(self, images: tf.Tensor) -> tf.Tensor:
        """The log-odds of the classes, [batch, 10]."""
        hidden = self._sign(images @ self.hidden + self.hidden_bias)
        votes = self._sign(hidden @ self.votes + self.votes_bias)
        return 5.0 * tf.reduce_mean(tf.reshape(votes, [-1, CLASSES, VOTERS_PER_CLASS]), axis=-1)


@dataclasses.dataclass(frozen=True)
class Data:
    """Images of 64 pixels, centred, and their labels."""

    train_images: np.ndarray
    test_images: np.ndarray
    train_labels: np.ndarray
    test_labels: np.ndarray


def load() -> Data:
    """The 1,797 handwritten digits that come with scikit-learn, a quarter of them held out."""
    digits = sklearn.datasets.load_digits()
    images = (digits.data / 8.0 - 1.0).astype(np.float32)
    return Data(
        *sklearn.model_selection.train_test_split(
            images, digits.target, test_size=0.25, stratify=digits.target, random_state=0
        )
    )


def loss_of(net: Any, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The mean cross-entropy."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=net.logits(images))
    return tf.reduce_mean(losses)


def accuracy(net: BinaryVoters, images: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of images whose class gets the most votes."""
    return float(np.mean(np.argmax(net.logits(images), axis=-1) == labels))


def train(net: BinaryVoters, data: Data, title: str) -> tuple[list[float], float]:
    """Trains with Adam. Returns the test accuracy after each epoch and the largest gradient of the training."""
    optimizer = keras.optimizers.Adam(1e-3)
    variables = list(net.trainable_variables)
    optimizer.build(variables)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(net, images, labels)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return tf.reduce_max([tf.reduce_max(tf.abs(gradient)) for gradient in gradients])

    print(f"\n{title}")
    batches = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
    batches = batches.shuffle(len(data.train_labels), seed=0).batch(BATCH_SIZE, drop_remainder=True)
    bar = keras.utils.Progbar(EPOCHS, unit_name="epoch", stateful_metrics=["test accuracy"])
    curve, largest = [accuracy(net, data.test_images, data.test_labels)], 0.0
    for epoch in range(EPOCHS):
        for images, labels in batches:
            largest = max(largest, float(step(images, labels)))
        curve.append(accuracy(net, data.test_images, data.test_labels))
        bar.update(epoch + 1, [("test accuracy", curve[-1])])
    return curve, largest


def train_on_digits(model: pathlib.Path) -> dict[str, list[float]]:
    """Trains the same net with and without the embedded derivative, and compares the first with its SavedModel."""
    data = load()
    net, plain = BinaryVoters(embedded=True, seed=2), BinaryVoters(embedded=False, seed=2)
    curve, _ = train(net, data, f"Digits: binary units, derivative embedded ({len(data.train_labels)} images)")
    plain_curve, plain_largest = train(plain, data, "Digits: the same net, without")
    add("digits, derivative embedded: test accuracy", curve[-1], "at least", 0.9)
    add("digits, without: test accuracy (chance is 0.1)", plain_curve[-1], "at most", 0.2)
    add("digits, without: largest gradient of the training", plain_largest, "at most", 0.0)

    print("\nReload: the SavedModel in a fresh process")
    tf.saved_model.save(net, str(model), signatures=net.logits)
    compared = data.test_images[:COMPARED_IMAGES], data.test_labels[:COMPARED_IMAGES]
    here = gradients_of(net, *compared)
    with multiprocessing.get_context("spawn").Pool(1) as fresh_process:
        there = fresh_process.apply(gradients_of_saved, [model, *compared])
    size = min(float(np.max(np.abs(gradient))) for gradient in there.values())
    difference = max(float(np.max(np.abs(there[name] - gradient))) for name, gradient in here.items())
    add("fresh process: smallest over images and weights of max |gradient|", size, "at least", 1e-5)
    add("fresh process: largest difference to the gradients before saving", difference, "at most", 1e-6)
    return {"embedded derivative": curve, "without": plain_curve}


def gradients_of(net: Any, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The gradients of the loss with respect to the images and to every weight."""
    inputs = tf.constant(images)
    named = {"images": inputs, "hidden": net.hidden, "hidden_bias": net.hidden_bias, "votes": net.votes}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = loss_of(net, inputs, tf.constant(labels))
    return {name: gradient.numpy() for name, gradient in tape.gradient(loss, named).items()}


def gradients_of_saved(model: pathlib.Path, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The same for the SavedModel, without the code of its net. Importing tf_cg_ops registered its ops."""
    return gradients_of(tf.saved_model.load(str(model)), images, labels)


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The noisy profile, the profiles before and after the fit, and the loss after each step."""

    observed: np.ndarray
    start: np.ndarray
    fitted: np.ndarray
    losses: list[float]


def profile_and_jacobian(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The profile on the grid, [n], and its derivatives by the three parameters, [n, 3], computed by SciPy."""
    centre, sigma, gamma = parameters
    z = (GRID - centre + 1j * gamma) / (sigma * np.sqrt(2.0))
    w = scipy.special.wofz(z)
    dw = -2.0 * z * w + 2j / np.sqrt(np.pi)
    scale = 1.0 / (sigma * np.sqrt(2.0 * np.pi))
    by_centre = -np.real(dw) / (sigma * np.sqrt(2.0))
    by_sigma = -(np.real(dw * z) + np.real(w)) / sigma
    by_gamma = -np.imag(dw) / (sigma * np.sqrt(2.0))
    return scale * np.real(w), scale * np.stack([by_centre, by_sigma, by_gamma], axis=-1)


# The black box as a TensorFlow function with a gradient.
profile = cg.numpy_function(profile_and_jacobian, output_signature=tf.TensorSpec([len(GRID)], tf.float64))


def profile_without_gradient(parameters: tf.Tensor) -> tf.Tensor:
    """The black box in plain TensorFlow."""
    return tf.numpy_function(lambda p: profile_and_jacobian(p)[0], [parameters], tf.float64)


def gradient(
    function: Callable[[tf.Tensor], tf.Tensor], parameters: np.ndarray, upstream: np.ndarray
) -> tf.Tensor | None:
    """The vector-Jacobian product of the black box."""
    x = tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = function(x)
    return tape.gradient(h, x, output_gradients=tf.constant(upstream))


def numeric_gradient(parameters: np.ndarray, upstream: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The vector-Jacobian product by central differences."""
    offsets = step * np.eye(len(parameters))
    values = [[profile_and_jacobian(parameters + sign * o)[0] @ upstream for o in offsets] for sign in (1, -1)]
    return (np.array(values[0]) - np.array(values[1])) / (2.0 * step)


def fit_black_box() -> Fitted:
    """Checks the gradient, then fits with it."""
    rng = np.random.default_rng(0)
    upstream = rng.normal(size=len(GRID))
    embedded, numeric = gradient(profile, START, upstream), numeric_gradient(START, upstream)
    error = np.max(np.abs(embedded - numeric)) / np.max(np.abs(numeric))
    add("black box: relative error of the gradient against central differences", error, "at most", 1e-7)
    paths = float(gradient(profile_without_gradient, START, upstream) is not None)
    add("black box, without: gradients that TensorFlow finds on its own", paths, "at most", 0)

    observed = profile_and_jacobian(TRUE)[0] + NOISE * rng.normal(size=len(GRID))
    parameters = tf.Variable(START)
    optimizer = keras.optimizers.Adam(0.02)
    optimizer.build([parameters])

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((profile(parameters) - observed) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, parameters), parameters)])
        return loss

    print("\nBlack box: fitting a Voigt profile that SciPy computes")
    bar = keras.utils.Progbar(STEPS, unit_name="step", stateful_metrics=["rms"])
    losses = []
    for i in range(STEPS):
        losses.append(float(step()))
        bar.update(i + 1, [("rms", losses[-1] ** 0.5)])
    add("black box: rms of the fit (the noise is 0.005)", losses[-1] ** 0.5, "at most", 1.1 * NOISE)
    distance = float(np.max(np.abs(parameters.numpy() - TRUE)))
    add("black box: largest error of a fitted parameter", distance, "at most", 0.02)
    return Fitted(observed, profile_and_jacobian(START)[0], profile_and_jacobian(parameters.numpy())[0], losses)


def draw(accuracies: dict[str, list[float]], fitted: Fitted, path: pathlib.Path) -> None:
    """The learning curves of both parts and the fitted profile."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    digits, loss, line = figure.subplots(1, 3)

    for label, curve in accuracies.items():
        digits.plot(curve, label=label)
    digits.axhline(0.1, color="grey", linestyle=":", label="chance")
    digits.set(title="Digits, binary units", xlabel="epoch", ylabel="test accuracy", ylim=(0, 1))
    digits.legend(loc="center right")

    loss.semilogy(np.sqrt(fitted.losses), label="rms error")
    loss.axhline(NOISE, color="grey", linestyle=":", label="noise")
    loss.set(title="Black box, learning curve", xlabel="step", ylabel="rms error")
    loss.legend()

    line.plot(GRID, fitted.observed, ".", color="grey", markersize=3, label="observed")
    line.plot(GRID, fitted.start, "--", label="start")
    line.plot(GRID, fitted.fitted, label="fitted")
    line.set(title="Black box, Voigt profile", xlabel="x", ylabel="intensity")
    line.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    draw(train_on_digits(output / "saved_model"), fit_black_box(), output / "learning_curves.png")
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    show()
    print(f"\nLearning curves: {output / 'learning_curves.png'}\nFigures:         {output / 'results.json'}")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
