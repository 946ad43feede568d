"""Spiking neurons that learn to count over thousands of steps, in little memory: `cg.scan` with segments.

    python examples/long_sequence.py [--output FOLDER]

A subject hears clicks from the left and the right, and says at the end on which side there were more. The clicks are
spread over 4,096 time steps, so the neurons must learn to remember all of them. Each neuron adds up its spikes in a
trace that decays, and learns how slowly. Backpropagation through a plain loop keeps what every step computes and takes
more than 2 GiB; with `cg.scan` the same training takes half of that. Both are measured in fresh processes.

Sources: Brunton, Botvinick and Brody, "Rats and humans can optimally accumulate evidence for decision-making" (2013),
doi:10.1126/science.1233912, for the task; Zenke and Ganguli, "SuperSpike" (2018), arXiv:1705.11146, for the surrogate;
Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost" (2016), arXiv:1604.06174, for the
segments; Kingma and Ba, "Adam" (2014), arXiv:1412.6980, for the optimizer.

FOLDER gets the picture long_sequence.png, the losses and the memory as curves.json, and results.json.
"""

import argparse
import json
import multiprocessing
import pathlib
import re
import sys
import time
from typing import Any

import matplotlib
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

TIME_STEPS, NEURONS, BATCH_SIZE, CLICKS = 4096, 256, 128, 21
TRAINING_STEPS = 25
# Of the input weights, the readout, and the logarithms of the time constants.
LEARNING_RATES = (0.02, 0.05, 0.3)
LEAK = 0.8  # Of a membrane potential, in one time step.
LENGTHS = (1024, 2048, 4096)  # The lengths at which the memory is measured.
LIMIT = 2048  # Of the memory, in MiB.

spike = cg.straight_through(lambda above: above > 0.0, "fast_sigmoid", slope=5.0)


class Net(tf.Module):
    """A layer of neurons that integrate clicks and spike, and a readout of the traces of their spikes."""

    def __init__(self, time_steps: int, segments: bool) -> None:
        super().__init__()
        self.segments = segments
        rng = np.random.default_rng(0)
        self.inputs = tf.Variable(1.5 * rng.normal(size=[2, NEURONS]), dtype=tf.float32)
        self.readout = tf.Variable(0.01 * rng.normal(size=[NEURONS, 1]), dtype=tf.float32)
        # At first a neuron remembers an eighth of the time.
        self.log_time = tf.Variable(tf.fill([NEURONS], np.float32(np.log(time_steps / 8))))
        self.weights = [self.inputs, self.readout, self.log_time]

    def __call__(self, clicks: tf.Tensor) -> tf.Tensor:
        """The log-odds of the second side, for clicks of [time, batch, 2]."""
        decay = tf.exp(-tf.exp(-self.log_time))

        def step(state: Any, clicks: tf.Tensor) -> Any:
            potential, spikes, trace = state
            potential = LEAK * potential + clicks @ self.inputs - spikes
            spikes = spike(potential - 1.0)
            return (potential, spikes, decay * trace + (1.0 - decay) * spikes), None

        rest = (tf.zeros([clicks.shape[1], NEURONS]),) * 3
        if self.segments:
            (_, _, trace), _ = cg.scan(step, rest, clicks, checkpoint="sqrt")
        else:
            end = clicks.shape[0]
            _, (_, _, trace) = tf.while_loop(
                lambda time, _: time < end,
                lambda time, state: (time + 1, step(state, clicks[time])[0]),
                (0, rest),
                maximum_iterations=end,
            )
        return clicks.shape[0] / 30.0 * tf.squeeze(trace @ self.readout, -1)

    @tf.function(jit_compile=True)
    def evaluate(self, clicks: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The loss, and the share of right answers."""
        logits = self(clicks)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        return loss, tf.reduce_mean(tf.cast((logits > 0.0) == (labels > 0.5), tf.float32))

    @tf.function(jit_compile=True)
    def loss_and_gradients(self, clicks: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The loss and its gradients with respect to the weights."""
        with tf.GradientTape() as tape:
            loss, _ = self.evaluate(clicks, labels)
        return loss, tape.gradient(loss, self.weights)

    @tf.function(jit_compile=True)
    def influence(self, clicks: tf.Tensor) -> tf.Tensor:
        """The size of the derivative of the log-odds with respect to a click, at each time."""
        with tf.GradientTape() as tape:
            tape.watch(clicks)
            logits = self(clicks)
        return tf.reduce_mean(tf.abs(tape.gradient(logits, clicks)), axis=[1, 2])


def make_batch(seed: int, time_steps: int = TIME_STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Clicks of [time_steps, BATCH_SIZE, 2], at random times; and the side with more of them."""
    rng = np.random.default_rng([1, seed])
    sides = rng.integers(2, size=[BATCH_SIZE, CLICKS])
    clicks = np.zeros([time_steps, BATCH_SIZE, 2], np.float32)
    np.add.at(clicks, (rng.integers(time_steps, size=sides.shape), np.arange(BATCH_SIZE)[:, None], sides), 1.0)
    return clicks, (np.mean(sides, axis=1) > 0.5).astype(np.float32)


def train(net: Net, num_steps: int, time_steps: int = TIME_STEPS) -> list[float]:
    """Trains with Adam; returns the losses."""
    means, squares = ([np.zeros(weight.shape, np.float32) for weight in net.weights] for _ in range(2))
    losses, start = [], time.perf_counter()
    for i in range(num_steps):
        loss, gradients = net.loss_and_gradients(*make_batch(i, time_steps))
        for weight, gradient, mean, square, rate in zip(
            net.weights, gradients, means, squares, LEARNING_RATES, strict=True
        ):
            mean += 0.2 * (gradient.numpy() - mean)
            square += 0.05 * (gradient.numpy() ** 2 - square)
            scale = np.sqrt(square / (1.0 - 0.95 ** (i + 1))) + 1e-9
            weight.assign_sub(rate * mean / (1.0 - 0.8 ** (i + 1)) / scale)
        losses.append(float(loss))
        if i % 5 == 4:
            seconds = time.perf_counter() - start
            print(f"training step {i + 1} of {num_steps}: loss {losses[-1]:.3f}, {seconds:.0f} s", flush=True)
    return losses


def accuracy(net: Net) -> float:
    """The accuracy on batches that no training step has seen."""
    return float(np.mean([net.evaluate(*make_batch(TRAINING_STEPS + i))[1] for i in range(4)]))


def peak_memory(time_steps: int, segments: bool) -> float:
    """The most memory in MiB that this process had after two steps of training; TensorFlow alone takes 500 or more."""
    train(Net(time_steps, segments), 2, time_steps)
    status = pathlib.Path("/proc/self/status").read_text()
    [peak] = re.findall(r"VmHWM:\s*(\d+) kB", status)
    return int(peak) / 1024


def measure_memory() -> dict[str, list[float]]:
    """The memory of both loops for each length, each in a process of its own."""
    cases = [(time_steps, segments) for segments in (False, True) for time_steps in LENGTHS]
    found = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as fresh_processes:
        for (time_steps, segments), peak in zip(
            cases, fresh_processes.imap(peak_memory_of, cases, chunksize=1), strict=True
        ):
            name = "cg.scan" if segments else "plain loop"
            print(f"{name}, {time_steps:,} steps: {peak:,.0f} MiB", flush=True)
            found.append(peak)
    return {"plain": found[: len(LENGTHS)], "scan": found[len(LENGTHS) :]}


def peak_memory_of(case: tuple[int, bool]) -> float:
    """The memory of one case."""
    return peak_memory(*case)


def largest_difference() -> float:
    """The largest difference between both gradients, relative to the largest gradient of each weight, for 512 steps."""
    nets = [Net(512, segments) for segments in (False, True)]
    plain, segments = (net.loss_and_gradients(*make_batch(0, 512))[1] for net in nets)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(a))) for a, b in zip(plain, segments, strict=True))


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Measures the memory, and trains at the full length."""
    memory = measure_memory()
    net = Net(TIME_STEPS, segments=True)
    clicks, _ = make_batch(TRAINING_STEPS)
    accuracy_before, influence_before = accuracy(net), net.influence(clicks).numpy()
    losses = train(net, TRAINING_STEPS)
    influence_after = net.influence(clicks).numpy()

    show("plain loop: memory in MiB", memory["plain"][-1], "at least", LIMIT)
    show("cg.scan: memory in MiB", memory["scan"][-1], "at most", 0.6 * LIMIT)
    show("gradients: largest difference between both", largest_difference(), "at most", 1e-4)
    show("right answers before training (chance is 0.5)", accuracy_before, "at most", 0.75)
    show("right answers after training", accuracy(net), "at least", 0.8)
    early, late = slice(TIME_STEPS // 8), slice(-TIME_STEPS // 8, None)
    before, after = (np.mean(found[early]) / np.mean(found[late]) for found in (influence_before, influence_after))
    show("influence of early clicks / of late ones, before training", before, "at most", 0.05)
    show("influence of early clicks / of late ones, after training", after, "at least", 0.15)
    (output / "curves.json").write_text(json.dumps({"losses": losses, "lengths": LENGTHS, "memory": memory}) + "\n")
    draw(memory, losses, {"before": influence_before, "after": influence_after}, output / "long_sequence.png")


def draw(memory: Any, losses: list[float], influences: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Memory by length, the learning curve, and the influence of a click by its time."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    by_length, learning, by_time = figure.subplots(1, 3)
    by_length.plot(LENGTHS, memory["plain"], "s-", color="tab:red", label="plain loop")
    by_length.plot(LENGTHS, memory["scan"], "o-", color="tab:blue", linewidth=2, label='cg.scan, checkpoint="sqrt"')
    by_length.axhline(LIMIT, color="grey", linestyle="--", label="2 GiB")
    by_length.set(title="Memory of the process", xlabel="time steps", ylabel="MiB", ylim=(0, None), xticks=LENGTHS)
    by_length.legend()
    learning.plot(losses, color="tab:blue", linewidth=2)
    learning.axhline(np.log(2), color="grey", linestyle=":", label="chance")
    learning.set(title="Learning curve, 4,096 time steps", xlabel="training step", ylabel="loss", ylim=(0, None))
    learning.legend()
    for colour, (name, influence) in zip(("tab:orange", "tab:blue"), influences.items(), strict=True):
        smooth = np.mean(influence.reshape([64, -1]), axis=1)
        by_time.plot(np.linspace(0, TIME_STEPS, 64), smooth / smooth.max(), color=colour, label=f"{name} training")
    by_time.set(
        title="Influence of a click on the answer", xlabel="time of the click", ylabel="relative", ylim=(0, None)
    )
    by_time.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/long_sequence")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
