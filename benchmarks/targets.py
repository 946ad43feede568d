"""What the library promises itself: ratios of one run, each with its limit."""

import dataclasses
import fnmatch
from typing import Any

from . import quantiles


@dataclasses.dataclass(frozen=True)
class Target:
    """In every case that fits, `of` over the fastest of `over` is at most `limit`."""

    name: str
    subject: str
    # A pattern for the names of cases.
    case: str
    of: str
    # Empty: the number itself.
    over: tuple[str, ...]
    limit: float

    @property
    def expression(self) -> str:
        """What is divided by what."""
        over = self.over[0] if len(self.over) == 1 else f"the fastest of {', '.join(self.over)}"
        return f"{self.of} / {over}" if self.over else self.of


_EMBED, _DECORATOR, _KERNEL = "cg.embed_gradient", "cg.custom_gradient", "cg gradient op"
_TF, _TFP = "tf.custom_gradient", "tfp.math.custom_gradient"
_SPACE = ("tf.multiply", "streaming multiply")

TARGETS = (
    Target("forward, against the raw op", "dispatch", "forward, no tape", _EMBED, ("raw op",), 2.5),
    Target("forward, 20 times faster than TFP", "dispatch", "forward, no tape", _EMBED, (_TFP,), 1 / 20),
    Target("forward, 4 times faster than TensorFlow", "dispatch", "forward, no tape", _EMBED, (_TF,), 1 / 4),
    Target(
        "forward, the same time for one element and for 100 million",
        "dispatch",
        "forward by number of elements",
        f"{_EMBED}, 100,000,000",
        (f"{_EMBED}, 1",),
        1.1,
    ),
    Target("forward and backward, against TensorFlow", "dispatch", "forward and backward", _EMBED, (_TF,), 0.6),
    Target("forward and backward, against TFP", "dispatch", "forward and backward", _EMBED, (_TFP,), 0.2),
    Target("the decorator's eager overhead", "dispatch", "forward*", _DECORATOR, (_TF,), 0.8),
    Target("the decorator's trace time", "tracing", "time*", _DECORATOR, (_TF,), 1.3),
    Target("backward, 10 million", "elementwise", "backward, 10,000,000", _KERNEL, _SPACE, 1.05),
    Target("backward, 100 million", "elementwise", "backward, 100,000,000", _KERNEL, _SPACE, 1.05),
    Target("backward, half against float32", "dtypes", "backward*", "cg half", ("cg float32",), 0.6),
    Target("backward, bfloat16 against float32", "dtypes", "backward*", "cg bfloat16", ("cg float32",), 0.6),
    Target("sums, against reading both inputs once", "reductions", "sum*", _KERNEL, ("read both",), 1.15),
    Target("sums, 3 times faster than TensorFlow", "reductions", "sum*", _KERNEL, ("tf.reduce_sum",), 1 / 3),
    Target("sums, different results in 20 runs", "reductions", "results of*", _KERNEL, (), 1),
    Target(
        "sums, error against that of adding one by one in float32",
        "reductions",
        "error of*",
        _KERNEL,
        ("one by one in float32",),
        1.0,
    ),
    Target(
        "broadcast forms, against the traffic of the large operand",
        "broadcast",
        "*",
        _KERNEL,
        ("traffic of the large operand",),
        1.05,
    ),
    Target("peak memory forward, in tensors", "peak_memory", "forward*", _EMBED, (), 0.01),
    Target("peak memory backward, in tensors", "peak_memory", "backward*", _EMBED, (), 1.01),
    Target("inference, against a function without gradient", "inference", "*", _EMBED, ("plain",), 1.05),
    Target("inference, the decorator", "inference", "*", _DECORATOR, ("plain",), 1.05),
)


def evaluate(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each target with the worst of its cases; without figures where the run had no such case."""
    return [_evaluate(target, results) for target in TARGETS]


def _evaluate(target: Target, results: list[dict[str, Any]]) -> dict[str, Any]:
    found = {"name": target.name, "subject": target.subject, "expression": target.expression, "limit": target.limit}
    measured = {}
    for result in results:
        if result["subject"] == target.subject and fnmatch.fnmatchcase(result["case"], target.case):
            summary = _measure(target, result["contenders"])
            if summary is not None:
                measured[result["case"]] = dataclasses.asdict(summary)
    if not measured:
        return {**found, "case": None, "measured": None, "reached": None}
    worst = max(measured, key=lambda case: measured[case]["median"])
    reached = measured[worst]["median"] <= target.limit
    return {**found, "case": worst, "measured": measured[worst], "reached": reached, "cases": measured}


def _measure(target: Target, contenders: dict[str, Any]) -> quantiles.Summary | None:
    if target.of not in contenders:
        return None
    of = contenders[target.of]
    if not target.over:
        return quantiles.Summary(of["median"], of["p20"], of["p80"])
    present = [contenders[name] for name in target.over if name in contenders]
    if not present:
        return None
    fastest = min(present, key=lambda contender: contender["median"])
    return quantiles.ratio(of["samples"], fastest["samples"])
