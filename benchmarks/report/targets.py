"""The library's targets: ratios and figures of one run, each with a limit."""

import dataclasses
import fnmatch
from typing import Any

from ..harness import names
from ..harness.names import DECORATOR, EMBED, KERNEL, LOG, SQRT, TF, of_length


@dataclasses.dataclass(frozen=True)
class Target:
    """In every matching case, `of` divided by the fastest of `over` must be at most `limit`."""

    name: str
    # A pattern for the names of cases.
    case: str
    of: str
    # If empty, the number itself counts.
    over: tuple[str, ...]
    limit: float

    @property
    def expression(self) -> str:
        """The ratio as text."""
        over = self.over[0] if len(self.over) == 1 else f"the fastest of {', '.join(self.over)}"
        return f"{self.of} / {over}" if self.over else self.of


_PRODUCTS = (names.MULTIPLY, names.STREAM)
_SMALLEST, _LARGEST = (f"{EMBED}, {size:,}" for size in (1, 100_000_000))

# By the subject of the cases.
TARGETS: dict[str, tuple[Target, ...]] = {
    "dispatch": (
        Target("forward, against the raw op", "forward, no tape", EMBED, (names.RAW_OP,), 2.5),
        Target("forward, 20 times faster than TFP", "forward, no tape", EMBED, (names.TFP,), 1 / 20),
        Target("forward, 4 times faster than TensorFlow", "forward, no tape", EMBED, (TF,), 1 / 4),
        Target("forward, the same time for one element and for 100 million", "*elements", _LARGEST, (_SMALLEST,), 1.1),
        Target("forward and backward, against TensorFlow", "forward and backward", EMBED, (TF,), 0.6),
        Target("forward and backward, against TFP", "forward and backward", EMBED, (names.TFP,), 0.2),
        Target("forward and backward, against tf.identity", "forward and backward", EMBED, (names.IDENTITY,), 1.15),
        Target("the decorator, against tf.identity", "forward and backward", DECORATOR, (names.IDENTITY,), 1.35),
        Target("the decorator's eager overhead", "forward*", DECORATOR, (TF,), 0.8),
    ),
    "tracing": (
        Target("the decorator's trace time, forward", "time, forward, *", DECORATOR, (TF,), 1.5),
        Target("the same with the gradient", "time, forward and*", DECORATOR, (TF,), 1.1),
        Target("the trace time of embed_gradient", "time, one op*", EMBED, (names.MULTIPLY,), 1.3),
    ),
    "recursive_rules": (
        Target("trace of a value, 1 call", "trace, value, *1 times", DECORATOR, (TF,), 1 + 1.5),
        Target("trace of a value, 2 calls", "trace, value, *2 times", DECORATOR, (TF,), 2 + 1.5),
        Target("trace of a value, 3 calls", "trace, value, *3 times", DECORATOR, (TF,), 3 + 1.5),
        Target("trace of its gradient", "trace, gradient*", DECORATOR, (TF,), 2.5),
        Target("trace of its second derivative", "trace, second*", DECORATOR, (TF,), 3),
    ),
    "special_functions": (
        Target("nodes of TFP's special functions", "nodes*", DECORATOR, (TF,), 2.5),
        Target("trace time of TFP's special functions", "time*", DECORATOR, (TF,), 2.5),
    ),
    "eager_steps": (
        Target("eager step of recompute_grad", "*block*", names.RECOMPUTED, (names.TF_RECOMPUTED,), 1.3),
        Target("first call under XLA of recompute_grad", "first call*", names.RECOMPUTED, (names.TF_RECOMPUTED,), 1.3),
        Target("eager step of scan", "*steps", names.SCAN, (names.TF_SCAN,), 1),
    ),
    "elementwise": (
        Target("backward, 10 million", "backward, 10,000,000", KERNEL, _PRODUCTS, 1.05),
        Target("backward, 100 million", "backward, 100,000,000", KERNEL, _PRODUCTS, 1.05),
    ),
    "dtypes": (
        Target("backward, half against float32", "backward*", "cg half", ("cg float32",), 0.6),
        Target("backward, bfloat16 against float32", "backward*", "cg bfloat16", ("cg float32",), 0.6),
    ),
    "reductions": (
        Target("sums, against reading both inputs once", "sum*", KERNEL, (names.READ_BOTH,), 1.08),
        Target("sums over tiny inner dimensions, against reading", "tiny*", KERNEL, (names.READ_BOTH,), 1.5),
        Target("sums, 3 times faster than TensorFlow", "sum*", KERNEL, (names.REDUCE_SUM,), 1 / 3),
    ),
    "broadcast": (
        Target("broadcasts, against the traffic of the large operand", "product*", KERNEL, (names.TRAFFIC,), 1.05),
        Target("the same with a sum", "sum*", KERNEL, (names.TRAFFIC,), 1.1),
    ),
    "peak_memory": (
        Target("peak memory forward, in tensors", "forward*", EMBED, (), 0.01),
        Target("peak memory backward, in tensors", "backward, *", EMBED, (), 1.01),
        Target("the same for dy and dx together, if dy can be reused", "backward with*", EMBED, (), 1.01),
    ),
    "loops": (
        Target(
            "memory of a segmented loop, sqrt: twice as much for four times the steps",
            "peak memory",
            of_length(SQRT, 16384),
            (of_length(SQRT, 4096),),
            2.2,
        ),
        Target(
            "memory of a segmented loop, log: a constant more for four times the steps",
            "peak memory",
            of_length(LOG, 16384),
            (of_length(LOG, 4096),),
            1.4,
        ),
        Target("time of a segmented loop, sqrt", "time*", SQRT, (names.TF_LOOP,), 1.35),
    ),
    "numpy_calls": (Target("a call of NumPy in a graph", "value of*", names.NUMPY_VJP, (names.NUMPY_CALL,), 1.5),),
    "import_time": (Target("import after TensorFlow, in seconds", "import", names.IMPORT, (), 0.04),),
    "build_time": (Target("cold build without nvcc, in seconds", "cold build", names.WITHOUT_NVCC, (), 60),),
    "library_size": (Target("the size of the op library, in kB", "parts*", names.LIBRARY_FILE, (), 5000),),
    "masked": (Target("a training step with masked gradients", "time*", names.MASKED, (names.UNMASKED,), 1.05),),
    "import_cost": (
        Target("graphs without our ops, once the library is imported", "*", names.WITH, (names.WITHOUT,), 1.02),
    ),
    "inference": (
        Target("inference, against a function without gradient", "*", EMBED, (names.PLAIN,), 1.05),
        Target("inference, the decorator", "*", DECORATOR, (names.PLAIN,), 1.05),
    ),
}


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """A target with the worst of its cases, or without figures if the run had no such case."""

    target: Target
    case: str | None = None
    measured: dict[str, float] | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None if it was not measured."""
        return self.measured["median"] <= self.target.limit if self.measured else None


def evaluate(cases: list[dict[str, Any]]) -> list[Evaluated]:
    """All targets, for the cases of a run."""
    return [
        evaluate_one(target, [case for case in cases if case["subject"] == subject])
        for subject, targets in TARGETS.items()
        for target in targets
    ]


def evaluate_one(target: Target, cases: list[dict[str, Any]]) -> Evaluated:
    """One target, for the cases of its subject."""
    measured = {}
    for case in cases:
        if fnmatch.fnmatchcase(case["case"], target.case):
            summary = _measure(target, case)
            if summary is not None:
                measured[case["case"]] = summary
    if not measured:
        return Evaluated(target)
    worst = max(measured, key=lambda name: measured[name]["median"])
    return Evaluated(target, worst, measured[worst])


def _measure(target: Target, case: dict[str, Any]) -> dict[str, float] | None:
    found = case["implementations"]
    if target.of not in found or not target.over:
        return found.get(target.of)
    present = [name for name in target.over if name in found]
    if not present:
        return None
    fastest = min(present, key=lambda name: found[name]["median"])
    return case["ratios"][target.of].get(fastest)
