"""Draws docs/figures/graph.svg: a decorated function in a graph, before and after a gradient is asked for."""

import pathlib

import matplotlib as mpl
from matplotlib import pyplot as plt

mpl.use("Agg")
# The same file each time, with its text as text.
plt.rcParams.update({"svg.hashsalt": "tf_cg_ops", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10})
INK, PLAIN, OURS, FUNCTION = "#333333", "#ffffff", "#d6e6f5", "#f7ecd0"


def box(axes: plt.Axes, x: float, y: float, text: str, color: str, width: float = 2.0, height: float = 0.7) -> None:
    """A node with its center at (x, y)."""
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(mpl.patches.FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=color, edgecolor=INK))
    axes.text(x, y, text, ha="center", va="center", color=INK)


def arrow(axes: plt.Axes, start: tuple[float, float], end: tuple[float, float], text: str = "", **line: str) -> None:
    """A tensor on its way, with its name beside the middle."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0, **line})
    axes.text((start[0] + end[0]) / 2 + 0.12, (start[1] + end[1]) / 2, text, va="center", color=INK)


def panel(axes: plt.Axes, title: str) -> None:
    """The graph of the forward pass, which is a part of both."""
    axes.set(xlim=(0, 6.4), ylim=(-0.1, 5.5), aspect="equal")
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    box(axes, 1.3, 5.0, "x", PLAIN, width=0.8)
    box(axes, 1.3, 3.4, "the operations of y", PLAIN, width=2.4)
    box(axes, 1.3, 1.6, "CustomGradientRule", OURS, width=2.5)
    arrow(axes, (1.3, 4.65), (1.3, 3.75))
    arrow(axes, (1.3, 3.05), (1.3, 1.95), "y")
    arrow(axes, (1.3, 1.25), (1.3, 0.35), "y, the same buffer")
    axes.text(1.3, 0.1, "…", ha="center", va="center", color=INK)
    # Beside the value, to the op: its inputs and what its rule captures.
    axes.plot([0.9, 0.15, 0.15, 0.4], [5.0, 5.0, 2.3, 2.3], color=INK, linewidth=1, linestyle=":")
    arrow(axes, (0.4, 2.3), (0.4, 1.95), linestyle=":")


def main() -> None:
    """Draws both panels and writes the file."""
    figure, (before, after) = plt.subplots(1, 2, figsize=(9.6, 4.5))
    panel(before, "Traced: data that names a function")
    box(before, 4.9, 1.6, "a function of the graph:\ndy, captures  →  dx", FUNCTION, width=2.7, height=1.0)
    arrow(before, (2.55, 1.6), (3.55, 1.6), linestyle="--")
    before.text(3.05, 1.8, "rule", ha="center", color=INK)
    panel(after, "tape.gradient: its body is imported")
    box(after, 4.9, 3.4, "the operations of\ngrad_fn", FUNCTION, width=2.4, height=1.0)
    after.plot([1.7, 4.9], [5.0, 5.0], color=INK, linewidth=1)
    arrow(after, (4.9, 5.0), (4.9, 3.9), "captures")
    after.text(4.9, 1.55, "dy", ha="center", color=INK)
    arrow(after, (4.9, 1.8), (4.9, 2.9))
    arrow(after, (6.1, 3.4), (6.4, 3.4))
    after.text(6.45, 3.4, "dx", va="center", color=INK)
    figure.tight_layout()
    figure.savefig(pathlib.Path(__file__).with_suffix(".svg"), metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
