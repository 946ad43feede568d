"""The charts: few, each with one message. This library is in colour, everything else in grey."""

import math
import pathlib
import textwrap
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

from ..harness import names
from ..harness.names import DECORATOR, EMBED, FORMULA, TF, TFP
from . import table

_BLUE, _LIGHT, _GREY, _DARK, _LINE = "#1b6ca8", "#6aa9d6", "#c3c8cd", "#4a4f55", "#c0392b"
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_OURS = {"linewidth": 2.2, "marker": "o", "zorder": 3}
# How implementations are drawn.
_LINES: dict[str, dict[str, Any]] = {
    EMBED: {"color": _BLUE, **_OURS},
    DECORATOR: {"color": _LIGHT, **_OURS},
    TF: {"color": _DARK, "marker": "s"},
    FORMULA: {"color": _GREY, "marker": "^"},
    TFP: {"color": "#8a9096", "marker": "D"},
}
Cases = dict[tuple[str, str], dict[str, Any]]


def draw(run: dict[str, Any], folder: pathlib.Path) -> None:
    """Draws each chart for which the run has figures."""
    cases = {(case["subject"], case["case"]): case for case in run["cases"]}
    with plt.rc_context(_STYLE):
        for draw_one in (_headline, _sizes, _growth):
            figure = draw_one(cases)
            if figure is not None:
                note = textwrap.fill(f"Medians. {table.origin(run)}", int(figure.get_size_inches()[0] * 17))
                figure.text(0.01, -0.01, note, fontsize=7, color=_DARK, va="top")
                # Without the version of matplotlib and the date, the same figures give the same bytes.
                path = folder / f"{draw_one.__name__.removeprefix('_')}.png"
                figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.12, metadata={"Software": None})
                plt.close(figure)


def _title(figure: Any, text: str, size: int = 12) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=size, fontweight="bold")


# Of each panel: the title, the subject and the start of the case's name; for a line at the least possible, a subject,
# the start of the name of a case of the same size, an implementation and a legend.
_PANELS: tuple[tuple[str, str, str, tuple[str, str, str, str] | None], ...] = (
    ("Forward, one element, eager", "dispatch", "forward, no tape", None),
    ("Forward and backward, one element, eager", "dispatch", "forward and backward", None),
    (
        "Forward and backward, {elements:,} float32",
        "elementwise",
        "forward and backward",
        ("elementwise", "backward", names.STREAM, "one streaming multiply"),
    ),
    (
        "Forward, backward and sum, {elements:,} float32",
        "reductions",
        "forward and backward",
        ("reductions", "sum", names.READ_BOTH, "reading both inputs"),
    ),
    (
        "Inference, {elements:,} float32, tf.function",
        "inference",
        "tf.function",
        ("inference", "tf.function", names.PLAIN, "no gradient at all"),
    ),
    ("Memory above the inputs, forward and backward, eager", "peak_memory", "backward, eager", None),
)


def _find(cases: Cases, subject: str, start: str, most: int = 10_000_000) -> dict[str, Any] | None:
    """The first of the largest matching cases with at most `most` elements; larger ones look the same."""
    fits = [case for (of, name), case in cases.items() if of == subject and name.startswith(start)]
    return max((case for case in fits if case["elements"] <= most), key=lambda case: case["elements"], default=None)


def _headline(cases: Cases) -> Any:
    """Six costs, ours beside the others."""
    found = [(title, _find(cases, subject, start), least) for title, subject, start, least in _PANELS]
    if any(case is None for _, case, _ in found):
        return None
    figure, axes = plt.subplots(3, 2, figsize=(11, 6))
    figure.set_layout_engine("constrained", h_pad=0.12, w_pad=0.08)
    for axis, (title, case, least) in zip(axes.flat, found, strict=True):
        _bars(axis, title.format(elements=case["elements"]), case)
        least_case = least and _find(cases, *least[:2], most=case["elements"])
        if least_case:
            value = least_case["implementations"][least[2]]["median"]
            axis.axvline(value, color=_LINE, linewidth=1, linestyle="--")
            label = f" {least[3]}: {table.quantity(value, least_case['unit'])}"
            axis.text(value, len(axis.patches) - 0.45, label, color=_LINE, fontsize=7.5, va="top")
    _title(figure, "What a custom gradient costs (less is better)", 13)
    return figure


def _bars(axis: Any, title: str, case: dict[str, Any]) -> None:
    shown = [name for name in (EMBED, DECORATOR, TF, FORMULA, TFP) if name in case["implementations"]]
    values = [case["implementations"][name]["median"] for name in shown]
    axis.barh(shown, values, color=[{EMBED: _BLUE, DECORATOR: _LIGHT}.get(name, _GREY) for name in shown])
    for index, (name, value) in enumerate(zip(shown, values, strict=True)):
        ratio = case["ratios"].get(EMBED, {}).get(name)
        times = f"  ({1 / ratio['median']:.3g} x)" if ratio and ratio["median"] else ""
        label = f"{table.quantity(value, case['unit'])}{times}"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axis.annotate(label, (value, index), (5, 0), textcoords="offset points", va="center", fontsize=8, bbox=box)
    axis.set_title(title)
    axis.set_xlim(0, max([*values, 1e-12]) * 1.32)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()


def _curves(axis: Any, lines: dict[str, dict[int, float]], unit: str) -> None:
    """Figures by a number, on logarithmic axes: a linear cost is a straight line of slope 1."""
    for name, figures in lines.items():
        shown = {n: figure for n, figure in figures.items() if figure > 0}
        axis.plot(shown.keys(), shown.values(), label=name, markersize=5, **_LINES[name])
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}" if n < 1e6 else f"{n / 1e6:,.0f} million"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: table.quantity(value, unit)))
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axis.grid(alpha=0.25)


def _curve(lines: dict[str, dict[int, float]], unit: str, title: str, label: str) -> Any:
    """One chart of curves."""
    figure, axis = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    _curves(axis, lines, unit)
    axis.set_xlabel(label)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_title(title, fontsize=12, fontweight="bold")
    axis.legend(fontsize=8, frameon=False)
    return figure


def _sizes(cases: Cases) -> Any:
    """Time by number of elements, forward and backward. The slope at the right is the speed of memory."""
    lines: dict[str, dict[int, float]] = {}
    streams = {}
    for (subject, name), case in cases.items():
        if subject == "elementwise" and name.startswith("forward and backward, "):
            for implementation, summary in case["implementations"].items():
                lines.setdefault(implementation, {})[case["elements"]] = summary["median"]
        elif subject == "elementwise" and case["elements"] >= table.LARGE:
            streams[case["elements"]] = case["implementations"][names.STREAM]["median"]
    if not lines:
        return None
    title = "Forward and backward in eager mode, by size"
    figure = _curve(lines, "s", title, "elements (float32)")
    (axis,) = figure.axes
    axis.plot(streams.keys(), streams.values(), "--", color=_LINE, linewidth=1.2, label="one streaming multiply")
    axis.legend(fontsize=8, frameon=False)
    return figure


def _show_lengths(axis: Any, case: dict[str, Any]) -> None:
    lengths = sorted({length for by_length in table.by_length(case).values() for length in by_length})
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _growth(cases: Cases) -> Any:
    """Each cost by the number of custom gradients in a function."""
    found = {name: case for (subject, name), case in cases.items() if subject == "growth" and "function" in name}
    if not found:
        return None
    figure, axes = plt.subplots(2, math.ceil(len(found) / 2), figsize=(11, 6), layout="constrained")
    for axis, (name, case) in zip(axes.flat, found.items(), strict=True):
        _curves(axis, table.by_length(case), case["unit"])
        _show_lengths(axis, case)
        axis.set_title(name.partition(",")[0], fontsize=10)
    axes.flat[0].legend(fontsize=8, frameon=False)
    _title(figure, "Costs by number of custom gradients")
    return figure
