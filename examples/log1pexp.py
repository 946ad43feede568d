"""log(1 + exp(x)) with two derivatives that are right from -100 to 100, by `custom_gradient`.

    python examples/log1pexp.py [--output FOLDER]

Automatic differentiation follows the formula you wrote. Where exp(x) overflows, log(1 + exp(x)) gives inf / inf, which
is nan, and its second derivative is only rounding errors long before that. The stable formula for the same value has a
kink, and there its derivatives are wrong. So `custom_gradient` states the derivative, and another one states the second
derivative.

FOLDER gets the picture log1pexp.png, the SavedModel saved_model, the derivatives that a fresh process found with it as
reloaded.npy, and results.json.
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
import scipy.special
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

X = np.linspace(-100.0, 100.0, 2001, dtype=np.float32)
SMALLEST = float(np.finfo(np.float32).tiny)  # Relative errors, for numbers that float32 holds in full.


def naive(x: tf.Tensor) -> tf.Tensor:
    """The formula as on paper."""
    return tf.math.log(1.0 + tf.exp(x))


def stable(x: tf.Tensor) -> tf.Tensor:
    """The same without overflow. At 0, the maximum and the absolute value have a kink."""
    return tf.maximum(x, 0.0) + tf.math.log1p(tf.exp(-tf.abs(x)))


@cg.custom_gradient(saved_orders=2)  # By default a file has the first derivative of a rule that calls such a function.
def log1pexp(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    """The stable value, with its derivative."""
    return stable(x), lambda dy: dy * sigmoid(x)


@cg.custom_gradient
def sigmoid(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    """1 / (1 + exp(-x)). Nothing cancels in this form of its derivative, unlike in s * (1 - s)."""
    return tf.sigmoid(x), lambda dy: dy * tf.sigmoid(x) * tf.sigmoid(-x)


def derivatives(function: Callable[[tf.Tensor], tf.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second derivative at each point of X."""
    x = tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        first = inner.gradient(y, x)
    return first.numpy(), outer.gradient(first, x).numpy()


def true_derivatives() -> tuple[np.ndarray, np.ndarray]:
    """The same in float64, by SciPy."""
    x = X.astype(np.float64)
    return scipy.special.expit(x), scipy.special.expit(x) * scipy.special.expit(-x)


class Model(tf.Module):
    """The module that is saved."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """The function with the custom gradient."""
        return log1pexp(x)


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Measures the derivatives, here and in a fresh process."""
    truth = true_derivatives()
    found = {"naive": derivatives(naive), "stable": derivatives(stable), "custom": derivatives(log1pexp)}
    for order, name in enumerate(["first", "second"]):
        in_range = truth[order] >= SMALLEST
        error = np.abs(found["custom"][order] / truth[order] - 1.0)[in_range]
        show(f"{name} derivative: largest relative error", np.max(error), "at most", 1e-5)
        nans = np.isnan(found["naive"][order])
        show(f"{name} derivative, autodiff of log(1 + exp(x)): points with nan", np.sum(nans), "at least", 1)
    error = np.nanmax(np.abs(found["naive"][1] - truth[1]))
    show("second derivative, autodiff of log(1 + exp(x)): error of a number", error, "at least", 0.5)
    at_zero = abs(found["stable"][0][X == 0.0] - 0.5).item()
    show("first derivative at 0, autodiff of the stable formula: error", at_zero, "at least", 0.4)

    tf.saved_model.save(Model(), output / "saved_model")
    with multiprocessing.get_context("spawn").Pool(1) as fresh_process:
        fresh_process.apply(in_fresh_process, [output])
    reloaded = np.load(output / "reloaded.npy")
    difference = np.max(np.abs(reloaded - np.stack(found["custom"])))
    show("fresh process: largest difference of a derivative", difference, "at most", 1e-6)
    draw(truth, found, output / "log1pexp.png")


def in_fresh_process(output: pathlib.Path) -> None:
    """Differentiates the SavedModel. Importing tf_cg_ops registered its ops."""
    model = tf.saved_model.load(output / "saved_model")
    np.save(output / "reloaded.npy", np.stack(derivatives(model)))


def draw(truth: tuple[np.ndarray, np.ndarray], found: dict[str, Any], path: pathlib.Path) -> None:
    """The derivatives, a close view of the kink, and the second derivative for large x."""
    points = {"linestyle": "", "marker": "o", "markersize": 4}
    styles = {
        "naive": {"label": "autodiff of log(1 + exp(x))", "color": "tab:red", **points},
        "stable": {"label": "autodiff of the stable formula", "color": "tab:orange", **points},
        "custom": {"label": "custom gradient", "color": "tab:blue", "linewidth": 5},
    }
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    whole, kink, second = figure.subplots(1, 3)
    for axes, order in ((whole, 0), (kink, 0), (second, 1)):
        for name, style in styles.items():
            axes.plot(X, found[name][order], **style)
        axes.plot(X, truth[order], color="black", linewidth=1, label="truth (float64)")
        axes.set_xlabel("x")
    for axes, order in ((whole, 0), (second, 1)):
        lost = X[np.isnan(found["naive"][order])]
        axes.axvspan(lost.min(), lost.max(), color="tab:red", alpha=0.15, label="nan of the first one")
    whole.set(title="First derivative")
    kink.set(title="First derivative near 0", xlim=(-0.95, 0.95), ylim=(-0.05, 1.05))
    second.set(title="Second derivative", yscale="log", ylim=(1e-39, 1e3))
    kink.legend(*whole.get_legend_handles_labels(), loc="lower right", fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/log1pexp")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
