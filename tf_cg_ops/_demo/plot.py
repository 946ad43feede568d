"""The picture of the demo."""

import pathlib

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from .black_box import GRID, NOISE, Fitted

matplotlib.use("Agg")


def save(accuracies: dict[str, list[float]], fitted: Fitted, path: pathlib.Path) -> None:
    """Draws the learning curves of both parts and the fitted profile."""
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
