"""The largest batch that fits into a given memory: `cg.recompute_grad` with `memory`, and its plan.

    python examples/fit_in_memory.py [--output FOLDER]

A residual net with batch normalization learns to read digits, and may take 96 MiB for its values and gradients. How
large can a batch be? `plan(x)` predicts the peak of a training step without running one, so the example finds the
largest batch by bisection on the plan, for the plain net and for the net in segments that are computed again. Adding up
the gradients of several small batches would not do the same, because batch normalization uses the whole batch.

Then each net is trained with its batch, in a process of its own that measures the peak.

Sources: He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2016), arXiv:1512.03385, for the net;
Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost" (2016), arXiv:1604.06174, for segments.

FOLDER gets the picture fit_in_memory.png and results.json.
"""

import argparse
import functools
import json
import multiprocessing
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import matplotlib
import numpy as np
import sklearn.datasets
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

MIB = 2**20
LIMIT = 96 * MIB  # For values and gradients; the weights, the batch and TensorFlow itself come on top.
BLOCKS, CHANNELS, CLASSES = 12, 32, 10
UNIT = 16  # Of the size of a batch.
STEPS, LEARNING_RATE = 10, 0.003
# Large blocks go back to the system at once, so what is resident is in use.
OF_MEASURING = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def make_net() -> keras.Model:
    """Residual blocks of two convolutions each."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    images = layers.Input([8, 8, 1])
    x = layers.Conv2D(CHANNELS, 3, padding="same")(images)
    for _ in range(BLOCKS):
        y = x
        for _ in range(2):
            y = layers.ReLU()(layers.BatchNormalization()(y))
            y = layers.Conv2D(CHANNELS, 3, padding="same")(y)
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return keras.Model(images, layers.Dense(CLASSES)(x))


def largest(fits: Callable[[int], bool]) -> int:
    """The largest multiple of UNIT that fits, by doubling and then by bisection."""
    too_large = UNIT
    while fits(too_large):
        too_large *= 2
    fitting = too_large // 2
    while too_large - fitting > UNIT:
        middle = (fitting + too_large) // (2 * UNIT) * UNIT
        fitting, too_large = (middle, too_large) if fits(middle) else (fitting, middle)
    return fitting


def make_batch(step: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 8 times 8 pixels between 0 and 1, each moved by up to a pixel, and their classes."""
    images, classes = sklearn.datasets.load_digits(return_X_y=True)
    rng = np.random.default_rng([0, step])
    chosen = rng.integers(len(images), size=size)
    images = np.pad(images[chosen].reshape(-1, 8, 8, 1).astype(np.float32) / 16.0, [(0, 0), (1, 1), (1, 1), (0, 0)])
    tops, lefts = rng.integers(3, size=[2, size])
    moved = [image[top : top + 8, left : left + 8] for image, top, left in zip(images, tops, lefts, strict=True)]
    return np.stack(moved), classes[chosen]


def loss_and_gradients(net: keras.Model, memory: int | str | None) -> Callable[..., Any]:
    """A function that computes both for a batch, plainly or within a memory."""
    function: Callable[..., Any] = functools.partial(net, training=True)
    if memory is not None:
        function = cg.recompute_grad(function, memory=memory)

    @tf.function
    def step(images: tf.Tensor, classes: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, function(images))
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, [weight.value for weight in net.trainable_weights])

    return step


def train(size: int, memory: int | None) -> dict[str, Any]:
    """Trains a new net with batches of this size; returns its losses, the peak of a step in MiB, and its seconds."""
    net = make_net()
    step, optimizer = loss_and_gradients(net, memory), keras.optimizers.Adam(LEARNING_RATE)
    optimizer.build(net.trainable_variables)
    losses, peaks, seconds = [], [], []
    for number in range(STEPS):
        images, classes = map(tf.constant, make_batch(number, size))
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # Sets the peak back to what is resident now.
        before, start = resident("VmRSS"), time.perf_counter()
        loss, gradients = step(images, classes)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - start)
        peaks.append(resident("VmHWM") - before)
        optimizer.apply(gradients, net.trainable_variables)
    # In the first step, TensorFlow traces the net and optimizes its graph.
    return {"losses": losses, "peak": max(peaks[1:]), "seconds": float(np.median(seconds[1:]))}


def resident(field: str) -> float:
    """The memory of this process in MiB: now, or the most that it had."""
    [size] = re.findall(rf"{field}:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(size) / 1024


def largest_difference(net: keras.Model, size: int) -> float:
    """The largest difference between the gradients of both nets, relative to the largest gradient."""
    batch = make_batch(0, size)
    plain, planned = (loss_and_gradients(net, memory)(*batch)[1] for memory in (None, "auto"))
    scale = max(float(np.max(np.abs(gradient))) for gradient in plain)
    return max(float(np.max(np.abs(a - b))) / scale for a, b in zip(plain, planned, strict=True))


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Finds the largest batches, and trains with them."""
    net = make_net()
    planned_net = cg.recompute_grad(functools.partial(net, training=True), memory="auto")
    plans: dict[int, Any] = {}

    def least(size: int) -> Any:
        if size not in plans:
            plans[size] = planned_net.plan(tf.zeros([size, 8, 8, 1]))
        return plans[size]

    sizes = {
        "plain": largest(lambda size: least(size).plain_bytes <= LIMIT),
        "planned": largest(lambda size: least(size).peak_bytes <= LIMIT),
    }
    print(f"{len(plans)} plans, for batches of {', '.join(map(str, plans))} images", flush=True)
    # At this size, recompute as little as the limit allows.
    within_limit = cg.recompute_grad(functools.partial(net, training=True), memory=LIMIT)
    plan = within_limit.plan(tf.zeros([sizes["planned"], 8, 8, 1]))
    predicted = {"plain": plans[sizes["plain"]].plain_bytes / MIB, "planned": plan.peak_bytes / MIB}
    memories = {"plain": None, "planned": LIMIT}
    os.environ |= OF_MEASURING
    with multiprocessing.get_context("spawn").Pool(2) as fresh_processes:
        cases = [(sizes[name], memories[name]) for name in sizes]
        training = fresh_processes.starmap_async(train, cases, chunksize=1)
        difference = largest_difference(net, 32)
        trained = dict(zip(sizes, training.get(), strict=True))

    print(f"{'':8}  batch  predicted   measured  images/s")
    for name, size in sizes.items():
        peak, speed = trained[name]["peak"], size / trained[name]["seconds"]
        print(f"{name:8}{size:7,}{predicted[name]:7.0f} MiB{peak:7.0f} MiB{speed:10,.0f}")
    print(plan)

    limit = LIMIT / MIB
    show("planned: times the largest batch of the plain net", sizes["planned"] / sizes["plain"], "at least", 3.0)
    show("planned: predicted peak in MiB", predicted["planned"], "at most", limit)
    show("planned: share of the forward pass computed again", plan.extra_compute, "at most", 1.0)
    for name in sizes:
        show(f"{name}: measured peak in MiB", trained[name]["peak"], "at most", 1.25 * limit)
    show("gradients: largest difference between both", difference, "at most", 1e-4)
    show("planned: loss after training", trained["planned"]["losses"][-1], "at most", 1.2)
    draw(plans, plan, sizes, trained, output / "fit_in_memory.png")


def draw(plans: dict[int, Any], plan: Any, sizes: dict[str, int], trained: dict[str, Any], path: pathlib.Path) -> None:
    """The memory over a step, by the size of the batch, and the learning curves."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    by_time, by_size, learning = figure.subplots(1, 3)
    plan.plot(by_time)
    by_time.axhline(LIMIT / MIB, color="grey", linestyle="--", label="limit")
    by_time.set(title=f"One step, {sizes['planned']:,} images: plan.plot()")
    by_time.legend()
    asked = sorted(size for size in plans if size <= 1.3 * sizes["planned"])
    for name, attribute, color in (("plain", "plain_bytes", "tab:blue"), ("planned", "peak_bytes", "tab:orange")):
        predicted = [getattr(plans[size], attribute) / MIB for size in asked]
        by_size.plot(asked, predicted, ".-", color=color, label=f"{name}, predicted")
        by_size.plot(sizes[name], trained[name]["peak"], "s", color=color, label=f"{name}, measured")
        learning.plot(trained[name]["losses"], label=f"{name}: {sizes[name]:,} images a batch")
    by_size.axhline(LIMIT / MIB, color="grey", linestyle="--", label="limit")
    by_size.set(title="Peak by the size of a batch", xlabel="images", ylabel="MiB", ylim=(0, None))
    by_size.legend()
    learning.set(title="Learning curve", xlabel="training step", ylabel="loss", ylim=(0, None))
    learning.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/fit_in_memory")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
