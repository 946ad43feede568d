"""Draws the picture of the README: what the net of the quickstart learns, and the memory of a long loop.

python docs/figures/readme.py
"""

import json
import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

FIGURES = pathlib.Path(__file__).parent
RESULTS = FIGURES.parents[1] / "benchmarks" / "results.json"
QUICKSTART = FIGURES.parent / "quickstart.ipynb"
OURS, THEIRS = "#1b6ca8", "#c0392b"


def draw_net(axis: Any, name: str, activation: Any) -> None:
    """Trains the net of the quickstart, and shows where it expects the circle."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, [512, 2]).astype(np.float32)
    inside = (np.linalg.norm(points, axis=1) < 0.7).astype(np.float32)
    rng = np.random.default_rng(1)
    hidden = tf.Variable(rng.normal(size=[2, 64]), dtype=tf.float32)
    bias = tf.Variable(tf.zeros([64]))
    output = tf.Variable(rng.normal(size=[64]) / 8, dtype=tf.float32)
    offset = tf.Variable(0.0)
    variables = [hidden, bias, output, offset]

    def logits_of(x: Any) -> tf.Tensor:
        return tf.linalg.matvec(activation(x @ hidden + bias), output) + offset

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = logits_of(points)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=inside, logits=logits))
        for variable, slope in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.5 * slope)
        return tf.reduce_mean(tf.cast((logits > 0) == (inside > 0.5), tf.float32))

    accuracy = f"{np.mean([float(step()) for _ in range(1000)][-20:]):.0%}"
    if f"accuracy {accuracy}, " not in QUICKSTART.read_text():
        raise AssertionError(f"the quickstart has another accuracy than {accuracy}")
    side = np.linspace(-1, 1, 200, dtype=np.float32)
    found = logits_of(np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)).numpy().reshape(200, 200)
    axis.contourf(side, side, found, levels=[-np.inf, 0, np.inf], colors=["#f3f4f6", "#bcd6ea"])
    axis.scatter(*points[inside > 0.5].T, s=7, color=OURS)
    axis.scatter(*points[inside < 0.5].T, s=7, color="#8a9096")
    axis.set_title(f"{name}: {accuracy}")
    axis.set_aspect("equal")
    axis.set_xlabel("blue area: inside, says the net")
    axis.set_xticks([])
    axis.set_yticks([])


def draw_memory(axis: Any) -> None:
    """The memory by the number of steps, as `make bench` measured it."""
    (case,) = (
        c for c in json.loads(RESULTS.read_text())["cases"] if (c["subject"], c["case"]) == ("loops", "peak memory")
    )
    for name, label, style in (
        ("tf.while_loop", "tf.while_loop", {"color": THEIRS, "marker": "s"}),
        ("cg.while_loop, sqrt", "cg.while_loop", {"color": OURS, "marker": "o", "linewidth": 2.2}),
    ):
        found = {key.removeprefix(f"{name}, "): value["median"] for key, value in case["implementations"].items()}
        by_length = {int(k.removesuffix(" steps").replace(",", "")): v for k, v in found.items() if k[0].isdigit()}
        axis.plot(by_length.keys(), [v / 1024 for v in by_length.values()], label=label, **style)
    axis.set_title("Memory of a loop and its gradient")
    axis.set_xlabel("steps, with a state of 1 MiB")
    axis.set_ylabel("GiB")
    axis.set_xticks([1024, 4096, 16384], ["1,024", "4,096", "16,384"])
    axis.set_ylim(0)
    axis.legend(frameon=False)


def main() -> None:
    """Draws the three panels."""
    style = {"font.size": 11, "axes.titlesize": 12, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, (left, middle, right) = plt.subplots(
            1, 3, figsize=(10, 3.4), width_ratios=[1, 1, 1.1], layout="constrained"
        )
        draw_net(left, "tf.sign", tf.sign)
        draw_net(middle, "cg.straight_through", cg.straight_through(tf.sign, "hard_tanh"))
        draw_memory(right)
        figure.savefig(FIGURES / "readme.png", dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
