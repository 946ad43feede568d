"""The charts: few, each with one message. This library is in colour, all else in grey."""

import dataclasses
import math
import pathlib
import textwrap
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

from ..harness.names import (
    COMPILED_JAX,
    DECORATOR,
    EMBED,
    FORMULA,
    JAX,
    JAX_CHECKPOINT,
    JAX_LOOP,
    KERNEL,
    LOG,
    MULTIPLY,
    PLAIN,
    READ_BOTH,
    REDUCE_SUM,
    SQRT,
    STREAM,
    TF,
    TF_LOOP,
    TFP,
    TORCH,
    TRAFFIC,
)
from . import table

_BLUE, _LIGHT, _GREY, _DARK, _LINE = "#1b6ca8", "#6aa9d6", "#c3c8cd", "#4a4f55", "#c0392b"
_COLOURS = {EMBED: _BLUE, DECORATOR: _LIGHT, KERNEL: _BLUE}
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Cases = dict[tuple[str, str], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One group of bars."""

    title: str
    subject: str
    # The start of the case's name.
    case: str
    # A line for the least possible: a subject, the start of the name of a case of the same size, an implementation and
    # a legend.
    least: tuple[str, str, str, str] | None = None


_PANELS = (
    Panel("Forward, one element, eager", "dispatch", "forward, no tape"),
    Panel("Forward and backward, one element, eager", "dispatch", "forward and backward"),
    Panel(
        "Forward and backward, {elements:,} float32, eager",
        "elementwise",
        "forward and backward",
        ("elementwise", "backward", STREAM, "one streaming multiply"),
    ),
    Panel(
        "Forward and backward with a sum, {elements:,} float32, eager",
        "reductions",
        "forward and backward",
        ("reductions", "sum", READ_BOTH, "reading both inputs"),
    ),
    Panel(
        "Inference, expensive gradient, {elements:,} float32, tf.function",
        "inference",
        "tf.function",
        ("inference", "tf.function", PLAIN, "no gradient at all"),
    ),
    Panel("Memory above the inputs, forward and backward, eager", "peak_memory", "backward, eager"),
)


def draw(run: dict[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws each chart whose figures the run has, and returns the paths."""
    cases = {(case["subject"], case["case"]): case for case in run["cases"]}
    paths = []
    with plt.rc_context(_STYLE):
        for draw_one in (_headline, _sizes, _memory_limit, _loops, _growth, _models):
            figure = draw_one(cases)
            if figure is not None:
                paths.append(folder / f"{draw_one.__name__.removeprefix('_')}.png")
                _save(figure, run, paths[-1])
    return paths


def _save(figure: Any, run: dict[str, Any], path: pathlib.Path) -> None:
    width = figure.get_size_inches()[0]
    note = f"Medians. {table.origin(run)}"
    figure.text(0.01, -0.01, textwrap.fill(note, int(width * 17)), fontsize=7, color=_DARK, va="top")
    # No version of matplotlib, no date: the same figures give the same bytes.
    figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.12, metadata={"Software": None})
    plt.close(figure)


def _find(cases: Cases, subject: str, start: str, most: int = 10_000_000) -> dict[str, Any] | None:
    """The first of the largest fitting cases; those beyond `most` elements would only be the same again."""
    fits = [case for (of, name), case in cases.items() if of == subject and name.startswith(start)]
    return max((case for case in fits if case["elements"] <= most), key=lambda case: case["elements"], default=None)


def _headline(cases: Cases) -> Any:
    """Six costs, ours beside the others."""
    panels = [(panel, _find(cases, panel.subject, panel.case)) for panel in _PANELS]
    found = [(panel, case) for panel, case in panels if case is not None]
    if not found:
        return None
    figure, axes = plt.subplots(math.ceil(len(found) / 2), 2, figsize=(11, 2 * math.ceil(len(found) / 2)))
    figure.set_layout_engine("constrained", h_pad=0.12, w_pad=0.08)
    for axis in axes.flat[len(found) :]:
        axis.remove()
    for axis, (panel, case) in zip(axes.flat, found, strict=False):
        _bars(axis, panel, case, cases)
    figure.suptitle("What a custom gradient costs (less is better)", x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def _bars(axis: Any, panel: Panel, case: dict[str, Any], cases: Cases) -> None:
    names = [name for name in (EMBED, DECORATOR, TF, FORMULA, TFP) if name in case["implementations"]]
    values = [case["implementations"][name]["median"] for name in names]
    colours = [_COLOURS.get(name, _GREY) for name in names]
    axis.barh(names, values, color=colours)
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        ratio = case["ratios"].get(EMBED, {}).get(name)
        times = f"  ({1 / ratio['median']:.3g} x)" if ratio and ratio["median"] else ""
        label = f"{table.quantity(value, case['unit'])}{times}"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axis.annotate(label, (value, index), (5, 0), textcoords="offset points", va="center", fontsize=8, bbox=box)
    axis.set_title(panel.title.format(elements=case["elements"]))
    axis.set_xlim(0, max([*values, 1e-12]) * 1.32)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    least = panel.least and _find(cases, *panel.least[:2], most=case["elements"])
    if panel.least and least and panel.least[2] in least["implementations"]:
        value = least["implementations"][panel.least[2]]["median"]
        axis.axvline(value, color=_LINE, linewidth=1, linestyle="--")
        label = f"{panel.least[3]}: {table.quantity(value, least['unit'])}"
        axis.text(value, len(names) - 0.45, f" {label}", color=_LINE, fontsize=7.5, va="top")


def _sizes(cases: Cases) -> Any:
    """Time by number of elements, forward and backward; the slope at the right is memory."""
    start = "forward and backward, "
    found = [case for (subject, name), case in cases.items() if subject == "elementwise" and name.startswith(start)]
    if len(found) < 2:
        return None
    figure, axis = plt.subplots(figsize=(8.5, 5), layout="constrained")
    names = dict.fromkeys(name for case in found for name in case["implementations"])
    lines = {
        name: [(case["elements"], case["implementations"][name]) for case in found if name in case["implementations"]]
        for name in names
    }
    for name, points in lines.items():
        ours, foreign = name in _COLOURS, name.startswith(("torch", "jax"))
        axis.plot(
            [size for size, _ in points],
            [summary["median"] for _, summary in points],
            label=name,
            color=_COLOURS.get(name, _DARK if not foreign else "#8a9096"),
            linewidth=2.2 if ours else 1.2,
            linestyle=":" if foreign else "-",
            marker=_MARKERS.get(name, "."),
            markersize=5,
            zorder=3 if ours else 2,
        )
    streams = [
        (case["elements"], case["implementations"][STREAM]["median"])
        for (subject, name), case in cases.items()
        if subject == "elementwise" and name.startswith("backward, ") and case["elements"] >= table.LARGE
    ]
    if streams:
        axis.plot(
            *zip(*streams, strict=True), color=_LINE, linestyle="--", linewidth=1.2, label="one streaming multiply"
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: table.quantity(value, "s")))
    axis.set_xlabel("elements (float32)")
    axis.set_title("Forward and backward in eager mode, by size", fontsize=12, fontweight="bold")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, frameon=False)
    return figure


_MARKERS = {
    TF: "s",
    FORMULA: "^",
    TFP: "D",
    TORCH: "x",
    JAX: "+",
    COMPILED_JAX: "*",
}


def _memory_limit(cases: Cases) -> Any:
    """The distance of each backward pass from the memory limit."""
    rows = []
    for (subject, name), case in cases.items():
        for yardstick, plain in (
            (READ_BOTH, REDUCE_SUM),
            (TRAFFIC, REDUCE_SUM),
            (TRAFFIC, MULTIPLY),
            (STREAM, MULTIPLY),
        ):
            implementations = case["implementations"]
            if {KERNEL, yardstick, plain} <= set(implementations) and case["elements"] >= table.LARGE:
                ratio = case["ratios"][KERNEL][yardstick]
                theirs = implementations[plain]["median"] / implementations[yardstick]["median"]
                rows.append((f"{subject}: {name}", yardstick, ratio, plain, theirs))
    if not rows:
        return None
    figure, axis = plt.subplots(figsize=(9, 0.27 * len(rows) + 1.4), layout="constrained")
    for index, (_, _, ratio, _, theirs) in enumerate(rows):
        axis.plot(
            [ratio["p20"], ratio["p80"]],
            [index, index],
            color=_LIGHT,
            linewidth=4,
            solid_capstyle="round",
            label=None if index else "20th to 80th percentile",
        )
        axis.plot(ratio["median"], index, "o", color=_BLUE, label=None if index else KERNEL)
        axis.plot(theirs, index, "s", color=_GREY, label=None if index else f"{MULTIPLY} or {REDUCE_SUM}")
    axis.axvline(1, color=_LINE, linewidth=1, linestyle="--", label="the memory traffic alone")
    axis.set_yticks(range(len(rows)), [row[0] for row in rows])
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} x"))
    axis.set_xticks([1, 2, 5, 10])
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axis.set_xlabel("time, in multiples of the yardstick")
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.25)
    axis.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=4)
    figure.suptitle("Backward pass against the memory limit", x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


_OF_LOOPS = {
    TF_LOOP: {"color": _DARK, "marker": "s"},
    SQRT: {"color": _BLUE, "linewidth": 2.2, "marker": "o"},
    LOG: {"color": _LIGHT, "linewidth": 2.2, "marker": "o"},
    JAX_LOOP: {"color": _GREY, "linestyle": ":", "marker": "s"},
    JAX_CHECKPOINT: {"color": _GREY, "linestyle": ":", "marker": "D"},
}


def _loops(cases: Cases) -> Any:
    """Memory by number of steps: a straight line of slope 1 for a loop that keeps everything, of 1/2 for the root."""
    case = cases.get(("loops", "peak memory"))
    if case is None:
        return None
    figure, axis = plt.subplots(figsize=(8.5, 5), layout="constrained")
    for name, by_length in table.by_length(case).items():
        axis.plot(by_length.keys(), by_length.values(), label=name, markersize=5, **_OF_LOOPS[name])
    lengths = sorted({length for by_length in table.by_length(case).values() for length in by_length})
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g} MiB"))
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axis.set_xlabel("steps, with a state of 1 MiB")
    axis.set_title("Memory of the gradient of a loop", fontsize=12, fontweight="bold")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, frameon=False)
    return figure


_OF_GROWTH = {
    EMBED: {"color": _BLUE, "linewidth": 2.2, "marker": "o"},
    DECORATOR: {"color": _LIGHT, "linewidth": 2.2, "marker": "o"},
    TF: {"color": _DARK, "marker": "s"},
    FORMULA: {"color": _GREY, "linestyle": ":", "marker": "s"},
}


def _growth(cases: Cases) -> Any:
    """Each cost by the number of custom gradients in a function: one that is linear is a straight line of slope 1."""
    found = [
        (name, case)
        for (subject, name), case in cases.items()
        if subject == "growth" and name.endswith("in a function")
    ]
    if not found:
        return None
    figure, axes = plt.subplots(2, math.ceil(len(found) / 2), figsize=(11, 6), layout="constrained")
    for axis in axes.flat[len(found) :]:
        axis.remove()
    for axis, (name, case) in zip(axes.flat, found, strict=False):
        by_length = table.by_length(case)
        for implementation, figures in by_length.items():
            shown = {n: figure for n, figure in figures.items() if figure > 0}
            axis.plot(shown.keys(), shown.values(), label=implementation, markersize=4, **_OF_GROWTH[implementation])
        axis.set_xscale("log")
        axis.set_yscale("log")
        lengths = sorted({n for figures in by_length.values() for n in figures})
        axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axis.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _, unit=case["unit"]: table.quantity(y, unit)))
        axis.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        axis.set_title(name.partition(",")[0], fontsize=10)
        axis.grid(alpha=0.25)
    axes.flat[0].legend(fontsize=8, frameon=False)
    figure.suptitle(
        "Costs by the number of custom gradients in a function", x=0.01, ha="left", fontsize=12, fontweight="bold"
    )
    return figure


_OF_MODELS = {EMBED: _BLUE, DECORATOR: _LIGHT, TF: _DARK, TFP: "#8a9096", TORCH: _GREY, COMPILED_JAX: _GREY}
_KINDS = (("time", "s"), ("peak memory", "MiB"))


def _models(cases: Cases) -> Any:
    """The time and the memory of a training step of each network: a column each, with the modes side by side."""
    by_case = table.of_models({"cases": list(cases.values())})
    networks = list(dict.fromkeys(network for network, _ in by_case))
    if not networks:
        return None
    figure, axes = plt.subplots(
        2, len(networks), figsize=(3.4 * len(networks), 5.4), layout="constrained", squeeze=False
    )
    for column, network in enumerate(networks):
        by_mode = {mode: found for (of, mode), found in by_case.items() if of == network}
        for row, (kind, unit) in enumerate(_KINDS):
            _grouped_bars(axes[row, column], by_mode, kind, unit)
        axes[0, column].set_title(network, fontsize=9.5)
    for row, label in enumerate(("time of a step", "memory of a step")):
        axes[row, 0].set_ylabel(label)
    shown = [name for name in _OF_MODELS if name != COMPILED_JAX]
    handles = [plt.Rectangle((0, 0), 1, 1, color=_OF_MODELS[name]) for name in shown]
    names = ["PyTorch (eager), JAX (XLA)" if name == TORCH else name for name in shown]
    figure.legend(handles, names, loc="outside upper right", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(
        "A training step of four models (less is better)", x=0.01, ha="left", fontsize=12, fontweight="bold"
    )
    return figure


def _grouped_bars(axis: Any, by_mode: dict[str, dict[str, dict[str, float]]], kind: str, unit: str) -> None:
    width = 1 / (len(_OF_MODELS) + 0.5)
    for group, found in enumerate(by_mode.values()):
        for place, name in enumerate(name for name in _OF_MODELS if kind in found.get(name, {})):
            axis.bar(group + place * width, found[name][kind], width * 0.9, color=_OF_MODELS[name], align="edge")
    axis.set_xticks([group + 0.38 for group in range(len(by_mode))], list(by_mode), fontsize=8)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: table.quantity(value, unit) if value else "0"))
    axis.tick_params(axis="x", length=0)
    axis.tick_params(axis="y", labelsize=7.5)
