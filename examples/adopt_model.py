"""Trains on a SavedModel that was made with `tf.custom_gradient`, with `saved_model.adopt`.

    python examples/adopt_model.py [--output FOLDER]

A recurrent net of firing neurons learns whether the first or the second half of a sequence has more pulses. Its authors
gave the step function a surrogate gradient with `tf.custom_gradient`, trained for a while and published a SavedModel. A
fresh process loads it and gets the values, but the gradient in the loop fails: it reads a tensor that is out of scope.
`adopt` writes a copy in which the gradient works, and the process trains on.

Sources: Zenke and Ganguli, "SuperSpike" (2018), arXiv:1705.11146, for the surrogate; Kingma and Ba, "Adam" (2014),
arXiv:1412.6980, for the optimizer.

FOLDER gets the picture adopt_model.png, the models as published and adopted, the losses as curves.json, and
results.json.
"""

import argparse
import json
import multiprocessing
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

TIME_STEPS, UNITS, BATCH_SIZE = 12, 32, 128
BEFORE, AFTER, LEARNING_RATE = 10, 110, 0.02


@tf.custom_gradient
def fires(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """1 above zero and 0 below, with the derivative of a fast sigmoid."""
    return tf.cast(x > 0.0, x.dtype), lambda dy: dy / (1.0 + tf.abs(x)) ** 2


class Net(tf.Module):
    """A layer of neurons with connections to each other, and a readout of their activity at the end."""

    def __init__(self) -> None:
        super().__init__()
        normal = tf.random.stateless_normal
        self.inputs = tf.Variable(normal([1, UNITS], [1, 0]))
        self.recurrent = tf.Variable(normal([UNITS, UNITS], [2, 0]) / UNITS**0.5)
        self.bias = tf.Variable(normal([UNITS], [3, 0]))
        self.readout = tf.Variable(normal([UNITS, 1], [4, 0]) / UNITS**0.5)
        self.weights = [self.inputs, self.recurrent, self.bias, self.readout]

    @tf.function(input_signature=[tf.TensorSpec([None, TIME_STEPS, 1])])
    def __call__(self, pulses: tf.Tensor) -> tf.Tensor:
        """The logit of more pulses in the first half."""
        state = tf.zeros([tf.shape(pulses)[0], UNITS])
        for i in tf.range(TIME_STEPS):
            tf.autograph.experimental.set_loop_options(shape_invariants=[(state, tf.TensorShape([None, UNITS]))])
            state = 0.8 * state + fires(pulses[:, i] @ self.inputs + state @ self.recurrent + self.bias)
        return state @ self.readout


def batch(number: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Sequences of pulses, and whether more of them are in the first half than in the second."""
    rng = np.random.default_rng(number)
    rates = rng.uniform(0.0, 1.0, [BATCH_SIZE, 2]).repeat(TIME_STEPS // 2, axis=1)
    pulses = (rng.uniform(size=rates.shape) < rates).astype(np.float32)
    first, second = np.split(pulses, 2, axis=1)
    is_first = first.sum(1, keepdims=True) > second.sum(1, keepdims=True)
    return tf.constant(pulses[..., None]), tf.constant(is_first.astype(np.float32))


def train(net: Any, first: int, steps: int) -> list[float]:
    """Trains by Adam; returns the losses."""
    optimizer = tf.keras.optimizers.Adam(LEARNING_RATE)
    losses = []
    for number in range(first, first + steps):
        pulses, is_first = batch(number)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(is_first, net(pulses)))
        optimizer.apply_gradients(zip(tape.gradient(loss, net.weights), net.weights, strict=True))
        losses.append(float(loss))
        if number % 20 == 0:
            print(f"step {number}: loss {losses[-1]:.3f}", flush=True)
    return losses


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Trains and saves here; adopts the file and trains on in a fresh process."""
    net = Net()
    before = train(net, 0, BEFORE)
    tf.saved_model.save(net, output / "published")
    with multiprocessing.get_context("spawn").Pool(1) as fresh_process:
        results = fresh_process.apply(in_fresh_process, [output])
    after = results.pop("losses")
    show("fresh process, the published model: gradients that work", results["works"], "at most", 0)
    show("gradients that became rules", results["adopted"], "at least", 1)
    show("models whose values are equal, bit for bit", results["equal"], "at least", 1)
    show("difference from the gradient of automatic differentiation", results["difference"], "at least", 0.5)
    here = train(net, BEFORE, 5)
    difference = max(abs(a - b) for a, b in zip(here, after[:5], strict=True))
    show("fresh process: largest difference from the losses of training on here", difference, "at most", 1e-4)
    show("loss before it is saved", np.mean(before[-5:]), "at least", 0.3)
    show("loss after training on", np.mean(after[-10:]), "at most", 0.25)
    (output / "curves.json").write_text(json.dumps({"before": before, "after": after}, indent=1) + "\n")
    draw(before, after, output / "adopt_model.png")


def in_fresh_process(output: pathlib.Path) -> dict[str, Any]:
    """Fails to train the published model, adopts it, and trains on."""
    try:
        train(tf.saved_model.load(output / "published"), BEFORE, 1)
        works = 1
    except TypeError as error:
        print(f"the published model: {str(error).splitlines()[0]}", flush=True)
        works = 0
    report = cg.saved_model.adopt(output / "published", output / "adopted")
    return {
        "works": works,
        "adopted": len(report.adopted),
        "equal": sum(found.verdict == "equal, bit for bit" for found in report.comparisons or []),
        "difference": max(found.difference or 0.0 for found in report.autodiff or []),
        "losses": train(tf.saved_model.load(output / "adopted"), BEFORE, AFTER),
    }


def draw(before: list[float], after: list[float], path: pathlib.Path) -> None:
    """The loss by training step, in both processes."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(np.arange(BEFORE), before, color="tab:blue", label="by its authors, with tf.custom_gradient")
    axes.plot(BEFORE + np.arange(AFTER), after, color="tab:orange", label="in a fresh process, from the adopted file")
    axes.axvline(BEFORE, color="gray", linestyle=":")
    axes.annotate("saved; TensorFlow\ncannot train it on", (BEFORE, 0.05), (BEFORE + 3, 0.05), color="gray")
    axes.set(
        xlabel="training step", ylabel="loss", title="A SavedModel of tf.custom_gradient, trained on", ylim=(0, None)
    )
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/adopt_model")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
