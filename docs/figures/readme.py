"""Draws the picture of the README: the memory of a long loop, and a gradient before and after a reload.

python docs/figures/readme.py
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

FIGURES = pathlib.Path(__file__).parent
RESULTS = FIGURES.parents[1] / "benchmarks" / "results.json"
OURS, THEIRS = "#1b6ca8", "#c0392b"
X = np.linspace(-6, 6, 25)
# Runs in a process that has not seen the functions below.
LOAD = """
import sys, tensorflow as tf, tf_cg_ops
x = tf.constant([float(x) for x in sys.argv[2:]])
with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.saved_model.load(sys.argv[1]).f(x)
print(*tape.gradient(y, x).numpy())
"""


def in_a_loop(custom_gradient: Any) -> Any:
    """A function that adds up log(1 + exp(x)) in a loop; its custom gradient reads `e`, a tensor of the loop."""

    @custom_gradient
    def log1pexp(x: tf.Tensor) -> Any:
        e = tf.exp(x)
        return tf.math.log1p(e), lambda dy: dy * (1 - 1 / (1 + e))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda t, y: t < 3, lambda t, y: (t + 1, y + log1pexp(x)), (0, tf.zeros_like(x)))[1]

    return f


def after_a_reload(f: Any, folder: pathlib.Path) -> np.ndarray | str:
    """The gradient of `f` from its SavedModel in another process, or the name of the error there."""
    module = tf.Module()
    module.f = f
    tf.saved_model.save(module, str(folder))
    command = [sys.executable, "-c", LOAD, str(folder), *map(str, X)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        return re.findall(r"^(?:\w+\.)*(\w+Error): ", run.stderr, re.MULTILINE)[-1]
    return np.array(run.stdout.split(), np.float32)


def gradient_of(f: Any) -> np.ndarray:
    """The gradient of `f` in this process."""
    x = tf.constant(X, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x).numpy()


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


def draw_reload(axis: Any) -> None:
    """The gradient in this process, and from the file in another one."""
    ours, theirs = in_a_loop(cg.custom_gradient), in_a_loop(tf.custom_gradient)
    with tempfile.TemporaryDirectory() as folder:
        loaded = after_a_reload(ours, pathlib.Path(folder, "ours"))
        error = after_a_reload(theirs, pathlib.Path(folder, "theirs"))
    np.testing.assert_array_equal(gradient_of(theirs), gradient_of(ours))
    if not isinstance(error, str):
        raise AssertionError(f"tf.custom_gradient has a gradient after the reload: {error}")
    axis.plot(X, gradient_of(ours), color="#8a9096", linewidth=2.2, label="before saving")
    axis.plot(X, loaded, "o", color=OURS, markersize=5, label="cg.custom_gradient, loaded")
    axis.plot([], [], "x", color=THEIRS, label=f"tf.custom_gradient, loaded: {error}")
    axis.set_title("Gradient of a loop in a SavedModel")
    axis.set_xlabel("x")
    axis.set_ylabel("gradient")
    axis.legend(frameon=False, loc="upper left")
    axis.set_ylim(-0.1, 5)


def main() -> None:
    """Draws the two panels."""
    style = {"font.size": 11, "axes.titlesize": 12, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
        draw_memory(left)
        draw_reload(right)
        figure.savefig(FIGURES / "readme.png", dpi=180, metadata={"Software": None})


if __name__ == "__main__":
    main()
