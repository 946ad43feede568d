"""Domain adaptation without labels (DANN): upright and rotated digits, with `GradientReversal`.

    python examples/domain_adversarial_digits.py [--output FOLDER]

A net learns to read upright digits from labels. It should also read digits rotated by 25 degrees, which come without
labels. A second classifier on the same features learns to tell upright and rotated digits apart, and the layer
`GradientReversal` stands in front of it: so the features learn to confuse it, and upright and rotated digits end up
alike. The layer's factor sets how strongly. It grows with each epoch, by the schedule of the paper, without retracing.

The baseline is the same net with the factor 0, which learns from upright digits only. Each is trained from three seeds.
This shows what the layer does and is not a benchmark: we chose the rotation, the dropout and the largest factor to work
on images this small. With noise instead of rotation there was almost nothing to gain, and with factors up to 1 and no
dropout, accuracy fell.

Source: Ganin and Lempitsky, "Unsupervised domain adaptation by backpropagation" (2015), arXiv:1409.7495.

FOLDER gets the picture domain_adversarial_digits.png, all curves as curves.json, and results.json.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any

import keras
import matplotlib
import numpy as np
import scipy.ndimage
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf
from matplotlib.figure import Figure

from tf_cg_ops.layers import GradientReversal

matplotlib.use("Agg")

DEGREES = 25.0
LARGEST_FACTOR = 0.3
EPOCHS, BATCH_SIZE, SEEDS = 50, 64, (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Data:
    """Images of 8 by 8 pixels. The sets share no image, and nothing learns from the labels of rotated images."""

    upright: np.ndarray
    upright_labels: np.ndarray
    rotated: np.ndarray
    test_upright: np.ndarray  # The same digits as in test_rotated.
    test_rotated: np.ndarray
    test_labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Curves:
    """Accuracies on the test set after each epoch, and how often the training step was traced."""

    upright: list[float]
    rotated: list[float]
    domain: list[float]
    traces: int


def load() -> Data:
    """The 1,797 handwritten digits that come with scikit-learn, in three parts."""
    digits = sklearn.datasets.load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    rotated = scipy.ndimage.rotate(images, DEGREES, axes=(2, 1), reshape=False, order=1)
    split = sklearn.model_selection.train_test_split
    train, test = split(np.arange(len(images)), test_size=0.3, stratify=digits.target, random_state=0)
    first, second = split(train, test_size=0.5, stratify=digits.target[train], random_state=1)
    return Data(images[first], digits.target[first], rotated[second], images[test], rotated[test], digits.target[test])


def build() -> keras.Model:
    """A functional model of Keras: features, and two classifiers on them, with the reversal in front of the second."""
    images = keras.Input([8, 8])
    features = keras.layers.Flatten()(images)
    for units in (256, 128):
        features = keras.layers.Dense(units, activation="relu")(features)
        features = keras.layers.Dropout(0.5)(features)
    digit = keras.layers.Dense(10, name="digit")(features)
    reversed_features = GradientReversal(0.0, name="reversal")(features)
    hidden = keras.layers.Dense(100, activation="relu")(reversed_features)
    domain = keras.layers.Dense(1, name="domain")(hidden)
    return keras.Model(images, {"digit": digit, "domain": domain})


def factor_of(epoch: int) -> float:
    """The schedule of the paper: from 0, while the domain classifier knows nothing, up to the largest factor."""
    return LARGEST_FACTOR * (2.0 / (1.0 + np.exp(-10.0 * epoch / EPOCHS)) - 1.0)


def train(data: Data, seed: int, adversarial: bool) -> Curves:
    """Trains a new net. Each step takes as many upright images with labels as rotated images without."""
    keras.utils.set_random_seed(seed)
    model = build()
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    domains = tf.repeat([[0.0], [1.0]], BATCH_SIZE, axis=0)

    @tf.function
    def step(upright: tf.Tensor, labels: tf.Tensor, rotated: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            outputs = model(tf.concat([upright, rotated], axis=0), training=True)
            digit = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["digit"][:BATCH_SIZE])
            domain = tf.nn.sigmoid_cross_entropy_with_logits(domains, outputs["domain"])
            loss = tf.reduce_mean(digit) + tf.reduce_mean(domain)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    rng = np.random.default_rng(seed)
    curves = Curves([], [], [], 0)
    for epoch in range(EPOCHS):
        if adversarial:
            model.get_layer("reversal").factor = factor_of(epoch)
        first, second = rng.permutation(len(data.upright)), rng.permutation(len(data.rotated))
        for start in range(0, min(len(first), len(second)) - BATCH_SIZE + 1, BATCH_SIZE):
            i, j = first[start : start + BATCH_SIZE], second[start : start + BATCH_SIZE]
            step(data.upright[i], data.upright_labels[i], data.rotated[j])
        upright, rotated = model(data.test_upright), model(data.test_rotated)
        curves.upright.append(float(np.mean(np.argmax(upright["digit"], axis=-1) == data.test_labels)))
        curves.rotated.append(float(np.mean(np.argmax(rotated["digit"], axis=-1) == data.test_labels)))
        told_apart = [np.mean(upright["domain"] < 0.0), np.mean(rotated["domain"] > 0.0)]
        curves.domain.append(float(np.mean(told_apart)))
    return dataclasses.replace(curves, traces=step.experimental_get_tracing_count())


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Trains with and without the reversal, from three seeds each."""
    data = load()
    curves: dict[str, list[Curves]] = {"reversed gradient": [], "factor 0": []}
    for seed in SEEDS:
        for name, runs in curves.items():
            runs.append(train(data, seed, adversarial=name == "reversed gradient"))
            print(f"seed {seed}, {name}: {runs[-1].rotated[-1]:.1%} of the rotated digits read", flush=True)
    with_reversal, without = curves["reversed gradient"], curves["factor 0"]
    gains = [a.rotated[-1] - b.rotated[-1] for a, b in zip(with_reversal, without, strict=True)]
    losses = [b.upright[-1] - a.upright[-1] for a, b in zip(with_reversal, without, strict=True)]
    show("rotated digits read, reversed gradient: mean", _mean_of(with_reversal, "rotated"), "at least", 0.65)
    show("rotated digits read, factor 0: mean", _mean_of(without, "rotated"), "at most", 0.62)
    show("rotated digits read: smallest gain of the three seeds", min(gains), "at least", 0.05)
    show("upright digits read: largest loss of the three seeds", max(losses), "at most", 0.03)
    show("domains told apart, reversed gradient: mean", _mean_of(with_reversal, "domain"), "at most", 0.8)
    show("domains told apart, factor 0: mean", _mean_of(without, "domain"), "at least", 0.85)
    traces = max(run.traces for run in with_reversal)
    show(f"traces of the training step while the factor took {EPOCHS} values", traces, "at most", 1)
    saved = {name: [dataclasses.asdict(run) for run in runs] for name, runs in curves.items()}
    (output / "curves.json").write_text(json.dumps(saved) + "\n")
    draw(data, curves, output / "domain_adversarial_digits.png")


def _mean_of(runs: list[Curves], curve: str) -> float:
    return float(np.mean([getattr(run, curve)[-1] for run in runs]))


def draw(data: Data, curves: dict[str, list[Curves]], path: pathlib.Path) -> None:
    """Some digits of both domains, and the learning curves: one thin line per seed, and the mean."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    digits, rotated, domain = figure.subplots(1, 3)
    chosen = [np.flatnonzero(data.test_labels == label)[0] for label in range(5)]
    rows = [
        np.hstack(np.pad(images[chosen], ((0, 0), (1, 1), (1, 1)))) for images in (data.test_upright, data.test_rotated)
    ]
    digits.imshow(np.vstack(rows), cmap="gray", interpolation="nearest")
    digits.set(
        title="Two domains", xticks=[], yticks=[4.5, 14.5], yticklabels=["upright,\nlabelled", "rotated,\nunlabelled"]
    )
    for axes, curve, title in (
        (rotated, "rotated", "Rotated digits read"),
        (domain, "domain", "Upright and rotated told apart"),
    ):
        for colour, (name, runs) in zip(("tab:blue", "tab:orange"), curves.items(), strict=True):
            each = np.array([getattr(run, curve) for run in runs])
            axes.plot(each.T, color=colour, linewidth=0.7, alpha=0.5)
            axes.plot(each.mean(axis=0), color=colour, linewidth=2.5, label=name)
        axes.set(title=title, xlabel="epoch", ylabel="test accuracy", ylim=(0.3, 1.0))
        axes.grid(alpha=0.3)
    domain.axhline(0.5, color="grey", linestyle=":", label="chance")
    rotated.legend(loc="lower right")
    domain.legend(loc="lower right")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/domain_adversarial_digits"
    )
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
