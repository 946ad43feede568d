"""Spiking neurons that learn in a loop, and go on learning in another process: `straight_through` in `tf.while_loop`.

    python examples/spiking_cell.py [--output FOLDER]

Leaky integrate-and-fire neurons tell four patterns of spikes apart. In each pattern every channel spikes once; only the
times differ. A spike is a step, whose derivative is zero, so it gets the derivative of a fast sigmoid. Halfway, the net
is saved as a SavedModel. A fresh process without the net's Python code loads it, differentiates it, loop included, and
trains on. Its losses are the same as without the interruption.

Sources: Zenke and Ganguli, "SuperSpike" (2018), arXiv:1705.11146, for the surrogate; Neftci, Mostafa and Zenke,
"Surrogate gradient learning in spiking neural networks" (2019), arXiv:1901.09948, for the neurons and the readout.

FOLDER gets the picture spiking_cell.png, the SavedModel saved_model, the losses that the fresh process saw as
continued.json, and results.json.
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

TIME_STEPS, CHANNELS, NEURONS, CLASSES, BATCH_SIZE = 40, 20, 8, 4, 64
STEPS, SAVED_AT = 120, 60
LEARNING_RATE, MOMENTUM = 0.1, 0.9
DECAY = 0.9  # Of a membrane potential, in one time step.
THRESHOLD = 1.0

spike = cg.straight_through(lambda above: above > 0.0, "fast_sigmoid", slope=5.0)


def step_function(above: tf.Tensor) -> tf.Tensor:
    """The same values with TensorFlow's derivative, zero. With it, only the readout learns."""
    return tf.maximum(tf.sign(above), 0.0)


class Net(tf.Module):
    """A layer of spiking neurons, and for each class a readout that integrates their spikes without spiking.

    In float64, because in float32 the order of a sum could decide whether a neuron spikes.
    """

    def __init__(self, spike: Callable[[tf.Tensor], tf.Tensor]) -> None:
        super().__init__()
        self.spike = spike
        rng = np.random.default_rng(0)
        inputs = rng.normal(size=[CHANNELS, NEURONS]) * 1.5 / CHANNELS**0.5
        readout = rng.normal(size=[NEURONS, CLASSES]) / NEURONS**0.5
        self.kernels = [tf.Variable(inputs), tf.Variable(readout)]
        self.velocities = [tf.Variable(tf.zeros_like(kernel), trainable=False) for kernel in self.kernels]

    @tf.function(input_signature=[tf.TensorSpec([TIME_STEPS, None, CHANNELS], tf.float64)])
    def forward(self, spikes_in: tf.Tensor) -> dict[str, tf.Tensor]:
        """The log-odds of the classes, and the neurons' potentials and spikes at each time, [TIME_STEPS, batch, n]."""
        currents = spikes_in @ self.kernels[0]

        def step(time: tf.Tensor, potential: tf.Tensor, readout: tf.Tensor, total: tf.Tensor, *traces: Any) -> Any:
            potential = DECAY * potential + currents[time]
            spikes = self.spike(potential - THRESHOLD)
            readout = DECAY * readout + spikes @ self.kernels[1]
            written = [trace.write(time, value) for trace, value in zip(traces, (potential, spikes), strict=True)]
            return time + 1, potential - THRESHOLD * spikes, readout, total + readout, *written

        rest, zero = tf.zeros_like(currents[0]), tf.zeros_like(spikes_in[0, :, :CLASSES])
        arrays = [tf.TensorArray(tf.float64, TIME_STEPS, element_shape=rest.shape) for _ in range(2)]
        _, _, _, total, potentials, spikes = tf.while_loop(
            lambda time, *_: time < TIME_STEPS, step, (0, rest, zero, zero, *arrays), maximum_iterations=TIME_STEPS
        )
        return {"logits": total / TIME_STEPS, "potentials": potentials.stack(), "spikes": spikes.stack()}


def make_batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Spikes, [TIME_STEPS, BATCH_SIZE, CHANNELS], each within a few steps of its time in the pattern, and classes."""
    patterns = np.random.default_rng(1).integers(5, TIME_STEPS - 5, size=[CLASSES, CHANNELS])
    rng = np.random.default_rng([2, seed])
    labels = rng.integers(CLASSES, size=BATCH_SIZE)
    times = np.clip(np.round(patterns[labels] + rng.normal(scale=2.0, size=[BATCH_SIZE, CHANNELS])), 0, TIME_STEPS - 1)
    return (times == np.arange(TIME_STEPS)[:, None, None]).astype(np.float64), labels


def train(net: Any, steps: range) -> list[float]:
    """Gradient descent with momentum, on the net or on a loaded SavedModel."""

    @tf.function
    def step(spikes_in: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = net.forward(spikes_in)["logits"]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, net.kernels)
        for kernel, velocity, gradient in zip(net.kernels, net.velocities, gradients, strict=True):
            velocity.assign(MOMENTUM * velocity + gradient)
            kernel.assign_sub(LEARNING_RATE * velocity)
        return loss

    return [float(step(*make_batch(i))) for i in steps]


def accuracy(net: Any) -> float:
    """The accuracy on batches that no step has seen."""
    batches = [make_batch(i) for i in range(STEPS, STEPS + 5)]
    return float(np.mean([np.argmax(net.forward(x)["logits"], axis=-1) == labels for x, labels in batches]))


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Trains to the end here, and from the middle on in a fresh process, too."""
    net = Net(spike)
    before, accuracy_before = net.forward(make_batch(STEPS)[0]), accuracy(net)
    losses = train(net, range(SAVED_AT))
    tf.saved_model.save(net, output / "saved_model")
    losses += train(net, range(SAVED_AT, STEPS))
    with multiprocessing.get_context("spawn").Pool(1) as fresh_process:
        fresh_process.apply(in_fresh_process, [output])
    continued = json.loads((output / "continued.json").read_text())

    plain = Net(step_function)
    plain_losses = train(plain, range(STEPS))

    show("patterns recognised before training (chance is 0.25)", accuracy_before, "at most", 0.5)
    show("patterns recognised, no surrogate: only the readout has learnt", accuracy(plain), "at most", 0.8)
    show("patterns recognised", accuracy(net), "at least", 0.95)
    show("patterns recognised by the net of the fresh process", continued["accuracy"], "at least", 0.95)
    progress = continued["losses"][-1] / continued["losses"][0]
    show("fresh process: loss at its end / at its start", progress, "at most", 0.8)
    difference = np.max(np.abs(np.subtract(losses[SAVED_AT:], continued["losses"])))
    show("fresh process: largest difference to the losses here", difference, "at most", 1e-9)
    after = net.forward(make_batch(STEPS)[0])
    curves = {"no surrogate": plain_losses, "not interrupted": losses}
    draw(before, after, curves, continued["losses"], output / "spiking_cell.png")


def in_fresh_process(output: pathlib.Path) -> None:
    """Loads the net and trains on. Importing tf_cg_ops registered its ops."""
    net = tf.saved_model.load(output / "saved_model")
    losses = train(net, range(SAVED_AT, STEPS))
    (output / "continued.json").write_text(json.dumps({"losses": losses, "accuracy": accuracy(net)}) + "\n")


def draw(before: Any, after: Any, curves: dict[str, list[float]], continued: list[float], path: pathlib.Path) -> None:
    """Potentials and spikes of four neurons for one pattern, and the learning curves with the moment of the reload."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    *potentials, learning = figure.subplots(1, 3)
    for axes, found, title in zip(potentials, (before, after), ("before", "after"), strict=True):
        for neuron in range(4):
            axes.plot(found["potentials"][:, 0, neuron] + 5.0 * neuron)
            axes.axhline(5.0 * neuron + THRESHOLD, color="grey", linestyle=":", linewidth=0.8)
            times = np.flatnonzero(found["spikes"][:, 0, neuron])
            axes.plot(times, np.full(len(times), 5.0 * neuron + 1.7), "k|", markersize=10)
        axes.set(title=f"Membrane potentials {title} training", xlabel="time step", yticks=[], ylim=(-4.0, 19.0))
        axes.set_ylabel("four neurons; dotted: threshold, black: spikes")
    for colour, (name, losses) in zip(("tab:red", "tab:blue"), curves.items(), strict=True):
        learning.plot(losses, color=colour, linewidth=2, label=name)
    learning.plot(range(SAVED_AT, STEPS), continued, "o", color="tab:orange", markersize=4, label="fresh process")
    learning.axvline(SAVED_AT, color="grey", linestyle="--", label="saved and loaded")
    learning.set(title="Learning curves", xlabel="step", ylabel="loss", yscale="log")
    learning.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/spiking_cell")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
