"""The plan of a recomputation: what is kept, what is computed again, and what that costs."""

from __future__ import annotations

import bisect
import dataclasses
import importlib
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import calls, text
from tf_cg_ops._src.memory.cuts import Choices, Cuts
from tf_cg_ops._src.memory.flat_trace import LARGE_BATCH, OTHER_SIZE, FlatTrace
from tf_cg_ops._src.memory.graph_costs import GraphCosts

# "auto", a number of bytes, a number with a unit, or a share of what the plain gradient needs.
Memory = str | int | float

_UNITS = {unit: 1024**power for power, unit in enumerate(["B", "KiB", "MiB", "GiB", "TiB"])}
_UNITS |= {unit: 1000**power for power, unit in enumerate(["KB", "MB", "GB", "TB"], 1)}
# "auto" says why if the peak stays above this share of the plain one.
_LITTLE = 0.9
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
      unknown_shapes: The shapes of Tensors whose sizes are not known while tracing. A batch counts as 1,048,576 there,
        another dimension as 512, so the cuts are the ones for a large batch. `at` shows the numbers for other sizes.
      note: Why recomputation saves next to nothing; empty if it does not.
    """

    peak_bytes: int
    plain_bytes: int
    extra_compute: float
    segments: tuple[Segment, ...]
    course: tuple[float, ...] = dataclasses.field(repr=False)
    plain_course: tuple[float, ...] = dataclasses.field(repr=False)
    unknown_shapes: tuple[tf.TensorShape, ...] = ()
    note: str = ""
    _at: Callable[[Sequence[Any]], Plan] | None = dataclasses.field(default=None, repr=False, compare=False)

    def at(self, *args: Any, **kwargs: Any) -> Plan:
        """Returns the plan with the same cuts and the numbers for these arguments, Tensors or their `tf.TensorSpec`.

        It is for a plan whose sizes are not all known, such as `plan(tf.TensorSpec([None, 8])).at(x)`.
        """
        leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
        if self._at is None:
            return self
        return self._at([leaf.shape for leaf in leaves if tf.is_tensor(leaf) or isinstance(leaf, tf.TensorSpec)])

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
        if self.unknown_shapes:
            shapes = ", ".join(map(str, dict.fromkeys(self.unknown_shapes)))
            summary += (
                f"\nnot known while tracing: sizes of {shapes}; a batch counts as {LARGE_BATCH:,}, other sizes as "
                f"{OTHER_SIZE}"
            )
        return "\n".join([summary, *([self.note] if self.note else []), *table])


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


class SegmentOps(NamedTuple):
    """The ops of a segment."""

    operations: Sequence[Any]
    is_recomputed: bool


class _SizedCosts:
    """The costs of a trace at some sizes of its inputs, and the place there of each op of the trace."""

    def __init__(self, flat: FlatTrace, sources: Sequence[bool], is_kept: Callable[[Any], bool], shapes: Any) -> None:
        graph, inputs, self.places = flat.graph, flat.inside, list(range(len(flat.operations)))
        if shapes is not None:
            graph, inputs, self.places = flat.sized(shapes)
        chosen = [tensor for tensor, has_gradient in zip(inputs, sources, strict=True) if has_gradient]
        self.costs = GraphCosts(graph, inputs, chosen, is_kept)
        self.places.append(len(self.costs.operations))


def make_plan(
    api: str, name: str, memory: Memory, flat: FlatTrace, sources: Sequence[bool], is_kept: Callable[[Any], bool]
) -> tuple[Plan, Sequence[SegmentOps]]:
    """Plans the gradient of a traced graph. `sources` tells which of its inputs have gradients."""
    unknown = flat.unknown_shapes
    if unknown and isinstance(memory, int):
        raise ValueError(
            f"{api}: memory must be 'auto' or a share of the plain peak if '{name}' gets Tensors whose sizes are only "
            f"known at run time, got {memory} bytes. Ask tf_cg_ops.recompute_grad(f, memory='auto').plan(x) how large "
            "the share is, for a Tensor x of the right shape, or trace with known shapes."
        )
    if not flat.operations:
        return Plan(0, 0, 0.0, (), (), ()), []
    try:
        sized = _SizedCosts(flat, sources, is_kept, flat.shapes_of_large_batch() if unknown else None)
    except ValueError:
        if not unknown:
            raise
        # The function does not take these sizes, for example because it adds the Tensor to one of known size.
        sized = _SizedCosts(flat, sources, is_kept, None)
    choices = Choices(sized.costs)
    least = choices.least_peak
    budget = float(least if isinstance(memory, str) else memory)
    if isinstance(memory, float):
        budget = memory * choices.plain_peak
    if math.ceil(budget) < math.floor(least):  # A plan shows whole bytes.
        share = math.ceil(1000 * least / choices.plain_peak) / 1000
        unit = f"{math.ceil(least)} bytes for '{name}', {share:.3f} of the {int(choices.plain_peak)} bytes that"
        unit += " the plain gradient needs"
        if unknown:
            unit = f"{share:.3f} for '{name}', as a share of what the plain gradient needs for a large batch"
        raise ValueError(
            f"{api}: memory must be at least {unit}, got {text.describe(memory)}. Give more memory, or write "
            "memory='auto' for the least."
        )
    cuts = choices.best(max(budget, least))
    # The first op whose place is at or behind each cut.
    starts = [bisect.bisect_left(sized.places, place) for place in cuts.places]
    parts = [
        SegmentOps(flat.operations[start:end], again)
        for (start, end), again in zip(itertools.pairwise(starts), cuts.is_recomputed, strict=True)
        if start < end
    ]

    def plan_of(choices: Choices, cuts: Cuts) -> Plan:
        return Plan(
            int(cuts.peak),
            int(choices.plain_peak),
            cuts.extra_cost / max(choices.total_cost, 1e-30),
            tuple(
                Segment(flat.operations[start].name, int(kept), again)
                for start, kept, again in zip(starts, cuts.kept, cuts.is_recomputed, strict=False)
            ),
            tuple(cuts.course),
            tuple(map(float, choices.plain_course)),
        )

    def at(shapes: Sequence[tf.TensorShape]) -> Plan:
        expected = [tensor.shape for tensor in flat.inside]
        expected, others = expected[: flat.num_arguments], expected[flat.num_arguments :]
        if len(shapes) != len(expected) or not all(map(tf.TensorShape.is_compatible_with, expected, shapes)):
            raise ValueError(
                f"plan.at: the arguments must fit '{name}', with shapes {', '.join(map(str, expected))}, got "
                f"{', '.join(map(str, shapes)) or 'no Tensors'}."
            )
        other = _SizedCosts(flat, sources, is_kept, [*shapes, *others])
        choices = Choices(other.costs, [other.places[start] for start in starts])
        return plan_of(choices, choices.cut_at([other.places[start] for start in starts], cuts.is_recomputed))

    plan = plan_of(choices, cuts)
    note = _why_little_is_saved(sized.costs, plan) if memory == "auto" else ""
    return dataclasses.replace(plan, unknown_shapes=unknown, note=note, _at=at if unknown else None), parts


def _why_little_is_saved(costs: GraphCosts, plan: Plan) -> str:
    if plan.peak_bytes <= _LITTLE * plan.plain_bytes:
        return ""
    if costs.weight_bytes > plan.peak_bytes / 2:
        why = f"the gradients of the variables take {_mib(costs.weight_bytes)} in any case"
    else:
        op = costs.operations[int(np.argmax(costs.in_flight))]
        why = f"most of it is needed at once around '{op.name}'"
        if op.type in calls.TYPES:
            why += ", and loops, branches and compiled functions are not cut"
    return f"recomputation saves less than a tenth of {_mib(plan.plain_bytes)}, because {why}"
