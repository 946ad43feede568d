"""The charts: few, each with one message."""

import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from . import table

OURS, THEIRS, LIMIT = "#1b6ca8", "#b9bec4", "#c0392b"


def draw(run: dict[str, Any], folder: pathlib.Path) -> None:
    """Draws the charts that the run has figures for."""
    headline(run, folder / "headline.png")


def headline(run: dict[str, Any], path: pathlib.Path) -> None:
    """Why to use it, at a glance: bars of times, ours in colour."""
    cases = {(case["subject"], case["case"]): case for case in run["cases"]}
    found = [cases[key] for key in HEADLINE if key in cases]
    if not found:
        return
    figure, axes = plt.subplots(len(found), 1, figsize=(8, 2 * len(found)), layout="constrained", squeeze=False)
    for axis, case in zip(axes[:, 0], found, strict=True):
        bars(axis, case)
    figure.text(0, -0.03, table.origin(run), fontsize=7, color="#555555", wrap=True)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


HEADLINE = (("dispatch", "forward, no tape"), ("dispatch", "forward and backward"))


def bars(axis: Any, case: dict[str, Any]) -> None:
    """One bar a contender, the shortest on top."""
    order = sorted(case["contenders"], key=lambda name: -case["contenders"][name]["median"])
    values = [case["contenders"][name]["median"] for name in order]
    axis.barh(order, values, color=[OURS if name.startswith("cg.") else THEIRS for name in order])
    axis.set_title(case["case"], loc="left")
    for index, value in enumerate(values):
        axis.text(value, index, " " + table.quantity(value, case["unit"]), va="center", fontsize=8)
    axis.set_xticks([])
    axis.spines[["top", "right", "bottom"]].set_visible(False)
