"""A loss that is nan after one step, mended in the finished model: `override_gradients` with `rules.masked`.

    python examples/nan_in_training.py [--output FOLDER]

A net reads digits from the points of their strokes. Images have different numbers of points, so the rest of a row is
padding: zeros. For each point the net learns views of it, takes the logarithm of its distance and its angle, and
`tf.where` drops those of the padding. The loss is right, and the first gradient is nan: `tf.where` sends zeros to the
padding, where the derivatives of the logarithm and of the angle are infinite, and 0 * inf is nan. See
https://github.com/tensorflow/tensorflow/issues/38349 for a short case.

The example trains the same net three times: as it is; with the second `tf.where` that TensorFlow's answer is; and
as it is, but from a SavedModel in which `saved_model.override` masked the gradients. The last two learn the same.

FOLDER gets the picture nan_in_training.png, the models `as_it_is` and `masked`, and results.json.
"""

import argparse
import json
import math
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

POINTS, VIEWS, HIDDEN, CLASSES, STEPS, BATCH, SEED = 40, 16, 64, 10, 400, 64, 0
RULES = {cg.rules.elementwise: cg.rules.masked}


def digits() -> list[np.ndarray]:
    """Points of strokes and classes for training, and for testing. Rows end with padding."""
    images, classes = sklearn.datasets.load_digits(return_X_y=True)
    points = np.zeros([len(images), POINTS, 2], np.float32)
    for row, image in zip(points, images, strict=True):
        found = (np.argwhere(image.reshape(8, 8) > 6) - 3.5) / 3.5
        row[: len(found)] = found
    parts = sklearn.model_selection.train_test_split(points, classes, test_size=0.25, random_state=SEED)
    return [parts[0], parts[2], parts[1], parts[3]]


class Net(tf.Module):
    """Views of each point, their distances and angles, a layer for each point, the mean of the points, and a layer."""

    def __init__(self, has_second_where: bool) -> None:
        super().__init__()
        rng = np.random.default_rng(SEED)
        shapes = [[2, 2 * VIEWS], [2 * VIEWS, HIDDEN], [HIDDEN], [HIDDEN, CLASSES], [CLASSES]]
        self.weights = [tf.Variable(rng.normal(size=s) / math.sqrt(s[0]), dtype=tf.float32) for s in shapes]
        self.has_second_where = has_second_where

    @tf.function(input_signature=[tf.TensorSpec([None, POINTS, 2])])
    def __call__(self, points: tf.Tensor) -> tf.Tensor:
        """The logits."""
        views, into, bias, out, out_bias = self.weights
        is_point = tf.reduce_any(points != 0.0, axis=-1, keepdims=True)
        x, y = tf.split(points @ views, 2, axis=-1)
        if self.has_second_where:
            x, y = tf.where(is_point, x, 1.0), tf.where(is_point, y, 1.0)
        features = tf.concat([tf.math.log(x * x + y * y), tf.atan2(y, x)], axis=-1)
        features = tf.where(is_point, features, 0.0)
        each = tf.where(is_point, tf.nn.relu(features @ into + bias), 0.0)
        mean = tf.reduce_sum(each, axis=1) / tf.reduce_sum(tf.cast(is_point, tf.float32), axis=1)
        return mean @ out + out_bias


def loss_of(net: Callable[[tf.Tensor], tf.Tensor], points: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """The cross-entropy."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, net(points)))


def gradient(net: Any, points: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The gradient of the loss by all weights."""
    with tf.GradientTape() as tape:
        loss = loss_of(net, tf.constant(points), tf.constant(classes))
    return np.concatenate([tf.reshape(g, [-1]) for g in tape.gradient(loss, list(net.weights))])


def train(net: Any, points: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Trains with Adam; returns the loss of each step."""
    weights = list(net.weights)
    moments = [(tf.Variable(tf.zeros_like(w)), tf.Variable(tf.zeros_like(w))) for w in weights]

    @tf.function
    def step(points: tf.Tensor, classes: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(net, points, classes)
        for w, g, (mean, square) in zip(weights, tape.gradient(loss, weights), moments, strict=True):
            mean.assign(0.9 * mean + 0.1 * g)
            square.assign(0.99 * square + 0.01 * g * g)
            size = 0.01 * tf.sqrt(1.0 - 0.99**number) / (1.0 - 0.9**number)
            w.assign_sub(size * mean / (tf.sqrt(square) + 1e-7))
        return loss

    rng, losses = np.random.default_rng(SEED), []
    for number in range(1, STEPS + 1):
        rows = rng.integers(len(points), size=BATCH)
        losses.append(float(step(tf.constant(points[rows]), tf.constant(classes[rows]), tf.constant(float(number)))))
    return np.array(losses)


def accuracy(net: Any, points: np.ndarray, classes: np.ndarray) -> float:
    """The part of the images that the net reads right."""
    return float(np.mean(np.argmax(net(tf.constant(points)), axis=1) == classes))


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Saves the net, masks its gradients in the file, and trains the three."""
    x_train, y_train, x_test, y_test = digits()
    for name in ("as_it_is", "masked"):
        shutil.rmtree(output / name, ignore_errors=True)
    tf.saved_model.save(Net(has_second_where=False), output / "as_it_is")
    report = cg.saved_model.override(output / "as_it_is", output / "masked", RULES)
    print(report)
    nets = {
        "as it is": tf.saved_model.load(output / "as_it_is"),
        "with a second where": Net(has_second_where=True),
        "masked": tf.saved_model.load(output / "masked"),
    }
    first = {name: gradient(net, x_train[:BATCH], y_train[:BATCH]) for name, net in nets.items()}
    show("as it is: gradients that are nan at the start", np.sum(np.isnan(first["as it is"])), "at least", 1)
    size = np.max(np.abs(first["with a second where"]))
    for name, found in {"masked": first["masked"], "in Python": in_python(x_train[:BATCH], y_train[:BATCH])}.items():
        difference = np.max(np.abs(found - first["with a second where"])) / size
        show(f"{name}: largest difference from the gradient with a second where", difference, "at most", 1e-5)

    losses = {name: train(net, x_train, y_train) for name, net in nets.items()}
    show("as it is: steps before the loss is nan", np.sum(np.isfinite(losses["as it is"])), "at most", 1)
    early = losses["masked"][:20] / losses["with a second where"][:20]
    show("masked: largest difference from the loss with a second where", np.max(np.abs(early - 1)), "at most", 1e-2)
    reached = {name: accuracy(net, x_test, y_test) for name, net in nets.items()}
    for name in ("with a second where", "masked"):
        show(f"{name}: test accuracy", reached[name], "at least", 0.8)
    draw(losses, reached, output / "nan_in_training.png")


def in_python(points: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The gradient of the model in Python, masked without a file."""
    net = Net(has_second_where=False)
    masked = cg.override_gradients(net, RULES)
    with tf.GradientTape() as tape:
        loss = loss_of(masked, tf.constant(points), tf.constant(classes))
    return np.concatenate([tf.reshape(g, [-1]) for g in tape.gradient(loss, net.weights)])


def draw(losses: dict[str, np.ndarray], reached: dict[str, float], path: pathlib.Path) -> None:
    """The losses by step, and the accuracies."""
    colours = {"as it is": "tab:red", "with a second where": "tab:blue", "masked": "tab:orange"}
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    curves, bars = figure.subplots(1, 2, width_ratios=(2.2, 1))
    for name, found in losses.items():
        style = {"linewidth": 3.5, "alpha": 0.45} if name == "with a second where" else {"linewidth": 1.2}
        smooth = np.convolve(found, np.ones(20) / 20, "valid")
        curves.plot(np.arange(20, STEPS + 1), smooth, color=colours[name], label=name, **style)
    before = losses["as it is"][0]
    curves.plot([1], [before], "X", color=colours["as it is"], markersize=12)
    curves.annotate("nan from here on", (1, before), (25, before), color=colours["as it is"], va="center")
    curves.set(xlabel="step", ylabel="loss, mean of 20 steps", title="The same net, trained three times")
    curves.legend()
    bars.bar(list(reached), list(reached.values()), color=[colours[name] for name in reached])
    bars.axhline(1 / CLASSES, color="grey", linestyle=":")
    bars.set(ylim=(0, 1), title="Test accuracy (dotted: chance)")
    bars.tick_params(axis="x", labelsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/nan_in_training")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
