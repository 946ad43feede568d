"""The plan of a recomputation: what is kept, what is computed again, and what that costs."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_cg_ops._src.core import text
from tf_cg_ops._src.memory.cuts import Choices
from tf_cg_ops._src.memory.graph_costs import GraphCosts

# "auto", a number of bytes, a number with a unit, or a share of what the plain gradient needs.
Memory = str | int | float

_UNITS = {unit: 1024**power for power, unit in enumerate(["B", "KiB", "MiB", "GiB", "TiB"])}
_UNITS |= {unit: 1000**power for power, unit in enumerate(["KB", "MB", "GB", "TB"], 1)}
_FORMS = "Write memory='auto', bytes as in memory='2 GiB' or memory=2**31, or a share of the plain peak, memory=0.5."


def check_memory(memory: Any, api: str = "recompute_grad") -> Memory:
    """The argument `memory`, checked; a text with a unit as the number of bytes."""
    if isinstance(memory, np.generic):
        memory = memory.item()
    if isinstance(memory, bool) or not isinstance(memory, (str, int, float)):
        raise TypeError(
            f"{api}: memory must be 'auto', a number of bytes or a share, got {text.describe(memory)}. {_FORMS}"
        )
    error = ValueError(
        f"{api}: memory must be 'auto', a positive number of bytes or a share up to 1.0, got {text.describe(memory)}. "
        f"{_FORMS}"
    )
    if memory == "auto":
        return "auto"
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B)\s*", memory)
        if found is None or found[2] not in _UNITS:
            raise error
        memory = int(float(found[1]) * _UNITS[found[2]])
    if not memory > 0 or (isinstance(memory, float) and memory > 1):
        raise error
    return memory


@dataclasses.dataclass(frozen=True)
class Segment:
    """Successive ops of a planned function.

    Attributes:
      name: The name of the op at which it begins, which holds the name of its Keras layer.
      kept_bytes: What it keeps between the passes, besides what earlier segments keep.
      is_recomputed: Whether the backward pass computes it again.
    """

    name: str
    kept_bytes: int
    is_recomputed: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a function with `memory` keeps and computes again, for one signature of its arguments.

    Attributes:
      peak_bytes: The predicted peak of the memory for values and gradients, above arguments and variables.
      plain_bytes: The same without recomputation.
      extra_compute: The predicted time of what is computed again, as a share of the forward pass.
      segments: The segments, in the order of the forward pass.
      course: The bytes held over the course of the forward and the backward pass.
      plain_course: The same without recomputation.
    """

    peak_bytes: int
    plain_bytes: int
    extra_compute: float
    segments: tuple[Segment, ...]
    course: tuple[float, ...] = dataclasses.field(repr=False)
    plain_course: tuple[float, ...] = dataclasses.field(repr=False)

    def plot(self, axes: Any = None) -> Any:
        """Draws the memory over the course of both passes, plain and planned, with Matplotlib; returns the axes."""
        if axes is None:
            axes = importlib.import_module("matplotlib.pyplot").subplots(layout="constrained")[1]
        for label, course in (("plain", self.plain_course), ("planned", self.course)):
            axes.plot([size / 2**20 for size in course], label=label)
        axes.axvline(len(self.course) / 2, color="grey", linestyle=":")
        axes.set(xlabel="forward pass, then backward pass", ylabel="MiB", xticks=[], ylim=(0, None))
        axes.legend()
        return axes

    def __str__(self) -> str:
        rows = [("segment", "keeps", "computed again")]
        for segment in self.segments:
            rows.append((segment.name, _mib(segment.kept_bytes), "yes" if segment.is_recomputed else "no"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [f"{name:<{widths[0]}}  {kept:>{widths[1]}}  {again}" for name, kept, again in rows]
        share = self.peak_bytes / max(self.plain_bytes, 1)
        summary = (
            f"peak {_mib(self.peak_bytes)} instead of {_mib(self.plain_bytes)} ({share:.2f}), "
            f"{self.extra_compute:.0%} of the forward pass computed again"
        )
        return "\n".join([summary, *table])


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


class Part(NamedTuple):
    """The ops of a segment."""

    operations: Sequence[Any]
    is_recomputed: bool


def make_plan(
    api: str,
    name: str,
    memory: Memory,
    graph: Any,
    inputs: Sequence[Any],
    sources: Sequence[Any],
    is_kept: Callable[[Any], bool],
) -> tuple[Plan, Sequence[Part]]:
    """Plans the gradient of a traced graph: see `GraphCosts` for the arguments."""
    costs = GraphCosts(graph, inputs, sources, is_kept)
    if costs.has_unknown_sizes and isinstance(memory, int):
        raise ValueError(
            f"{api}: memory must be 'auto' or a share of the plain peak if '{name}' gets Tensors whose sizes are only "
            f"known at run time, got {memory} bytes. Ask tf_cg_ops.recompute_grad(f, memory='auto').plan(x) how large "
            "the share is, for a Tensor x of the right shape, or trace with known shapes."
        )
    if not costs.operations:
        return Plan(0, 0, 0.0, (), (), ()), []
    choices = Choices(costs)
    least = choices.least_peak
    budget = float(least if isinstance(memory, str) else memory)
    if isinstance(memory, float):
        budget = memory * choices.plain_peak
    if math.ceil(budget) < math.floor(least):  # A plan shows whole bytes.
        share = math.ceil(1000 * least / choices.plain_peak) / 1000
        unit = f"{math.ceil(least)} bytes for '{name}', {share:.3f} of the {int(choices.plain_peak)} bytes that"
        if costs.has_unknown_sizes:
            unit = f"{share:.3f} for '{name}', as a share of what"
        raise ValueError(
            f"{api}: memory must be at least {unit} the plain gradient needs, got {text.describe(memory)}. "
            "Give more memory, or write memory='auto' for the least."
        )
    cuts = choices.best(max(budget, least))
    parts = [
        Part(costs.operations[start:end], again)
        for start, end, again in zip(cuts.places, cuts.places[1:], cuts.is_recomputed, strict=False)
    ]
    plan = Plan(
        int(cuts.peak),
        int(choices.plain_peak),
        cuts.extra_cost / max(choices.total_cost, 1e-30),
        tuple(
            Segment(part.operations[0].name, int(kept), part.is_recomputed)
            for part, kept in zip(parts, cuts.kept, strict=True)
        ),
        tuple(cuts.course),
        tuple(map(float, choices.plain_course)),
    )
    return plan, parts
