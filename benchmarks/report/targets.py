"""The targets of the library: ratios and figures of one run, each with its limit."""

import dataclasses
import fnmatch
from typing import Any

from ..harness import quantiles
from ..harness.names import (
    DECORATOR,
    EMBED,
    IDENTITY,
    IMPORT,
    KERNEL,
    LIBRARY_FILE,
    LOG,
    MULTIPLY,
    NUMPY_CALL,
    NUMPY_VJP,
    ONE_BY_ONE,
    PLAIN,
    RAW_OP,
    READ_BOTH,
    REDUCE_SUM,
    SQRT,
    STREAM,
    TF,
    TF_LOOP,
    TFP,
    TRAFFIC,
    WITH,
    WITHOUT,
    WITHOUT_NVCC,
    of_length,
)


@dataclasses.dataclass(frozen=True)
class Target:
    """In every matching case, `of` over the fastest of `over` is at most `limit`."""

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
        """The ratio as text."""
        over = self.over[0] if len(self.over) == 1 else f"the fastest of {', '.join(self.over)}"
        return f"{self.of} / {over}" if self.over else self.of


_PRODUCTS = (MULTIPLY, STREAM)

TARGETS = (
    Target("forward, against the raw op", "dispatch", "forward, no tape", EMBED, (RAW_OP,), 2.5),
    Target("forward, 20 times faster than TFP", "dispatch", "forward, no tape", EMBED, (TFP,), 1 / 20),
    Target("forward, 4 times faster than TensorFlow", "dispatch", "forward, no tape", EMBED, (TF,), 1 / 4),
    Target(
        "forward, the same time for one element and for 100 million",
        "dispatch",
        "forward by number of elements",
        f"{EMBED}, 100,000,000",
        (f"{EMBED}, 1",),
        1.1,
    ),
    Target("forward and backward, against TensorFlow", "dispatch", "forward and backward", EMBED, (TF,), 0.6),
    Target("forward and backward, against TFP", "dispatch", "forward and backward", EMBED, (TFP,), 0.2),
    Target("forward and backward, against tf.identity", "dispatch", "forward and backward", EMBED, (IDENTITY,), 1.15),
    Target(
        "the decorator, forward and backward, against tf.identity",
        "dispatch",
        "forward and backward",
        DECORATOR,
        (IDENTITY,),
        1.35,
    ),
    Target("the decorator's eager overhead", "dispatch", "forward*", DECORATOR, (TF,), 0.8),
    Target("the decorator's trace time, forward", "tracing", "time, forward, *", DECORATOR, (TF,), 1.5),
    Target("the same with the gradient", "tracing", "time, forward and*", DECORATOR, (TF,), 1.1),
    Target("the trace time of embed_gradient", "tracing", "time, one op*", EMBED, (MULTIPLY,), 1.3),
    Target("backward, 10 million", "elementwise", "backward, 10,000,000", KERNEL, _PRODUCTS, 1.05),
    Target("backward, 100 million", "elementwise", "backward, 100,000,000", KERNEL, _PRODUCTS, 1.05),
    Target("backward, half against float32", "dtypes", "backward*", "cg half", ("cg float32",), 0.6),
    Target("backward, bfloat16 against float32", "dtypes", "backward*", "cg bfloat16", ("cg float32",), 0.6),
    Target("sums, against reading both inputs once", "reductions", "sum*", KERNEL, (READ_BOTH,), 1.08),
    Target("sums over tiny inner dimensions, against reading", "reductions", "tiny*", KERNEL, (READ_BOTH,), 1.5),
    Target("sums, 3 times faster than TensorFlow", "reductions", "sum*", KERNEL, (REDUCE_SUM,), 1 / 3),
    Target("sums, different results in 20 runs", "reductions", "results of*", KERNEL, (), 1),
    Target(
        "sums, error against that of adding one by one in float32",
        "reductions",
        "error of*",
        KERNEL,
        (ONE_BY_ONE,),
        1.0,
    ),
    Target(
        "broadcast forms, against the traffic of the large operand", "broadcast", "product*", KERNEL, (TRAFFIC,), 1.05
    ),
    Target("the same with a sum", "broadcast", "sum*", KERNEL, (TRAFFIC,), 1.1),
    Target("peak memory forward, in tensors", "peak_memory", "forward*", EMBED, (), 0.01),
    Target("peak memory backward, in tensors", "peak_memory", "backward, *", EMBED, (), 1.01),
    Target("the same for dy and dx together, where dy may be reused", "peak_memory", "backward with*", EMBED, (), 1.01),
    Target("slices of a large table, against TensorFlow", "live_rules", "gather*", DECORATOR, (TF,), 1.1),
    Target("memory of a loop, against TensorFlow", "live_rules", "peak memory*", DECORATOR, (TF,), 1.05),
    Target(
        "memory of a segmented loop, sqrt: twice as much for four times the steps",
        "loops",
        "peak memory",
        of_length(SQRT, 16384),
        (of_length(SQRT, 4096),),
        2.2,
    ),
    Target(
        "memory of a segmented loop, log: a constant more for four times the steps",
        "loops",
        "peak memory",
        of_length(LOG, 16384),
        (of_length(LOG, 4096),),
        1.4,
    ),
    Target("time of a segmented loop, sqrt", "loops", "time*", SQRT, (TF_LOOP,), 1.35),
    Target("a call of NumPy in a graph", "numpy_calls", "value of*", NUMPY_VJP, (NUMPY_CALL,), 1.5),
    Target("import after TensorFlow, in seconds", "import_time", "import", IMPORT, (), 0.04),
    Target("cold build without nvcc, in seconds", "build_time", "cold build", WITHOUT_NVCC, (), 60),
    Target("the size of the op library, in kB", "library_size", "parts*", LIBRARY_FILE, (), 5000),
    Target("graphs without our ops, once the library is imported", "import_cost", "*", WITH, (WITHOUT,), 1.02),
    Target("inference, against a function without gradient", "inference", "*", EMBED, (PLAIN,), 1.05),
    Target("inference, the decorator", "inference", "*", DECORATOR, (PLAIN,), 1.05),
)


def evaluate(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each target with the worst of its cases; without figures where the run had no such case."""
    return [_evaluate(target, results) for target in TARGETS]


def _evaluate(target: Target, results: list[dict[str, Any]]) -> dict[str, Any]:
    found = {"name": target.name, "subject": target.subject, "expression": target.expression, "limit": target.limit}
    measured = {}
    for result in results:
        if result["subject"] == target.subject and fnmatch.fnmatchcase(result["case"], target.case):
            summary = _measure(target, result["implementations"])
            if summary is not None:
                measured[result["case"]] = dataclasses.asdict(summary)
    if not measured:
        return {**found, "case": None, "measured": None, "reached": None}
    worst = max(measured, key=lambda case: measured[case]["median"])
    reached = measured[worst]["median"] <= target.limit
    return {**found, "case": worst, "measured": measured[worst], "reached": reached, "cases": measured}


def _measure(target: Target, implementations: dict[str, Any]) -> quantiles.Summary | None:
    if target.of not in implementations:
        return None
    of = implementations[target.of]
    if not target.over:
        return quantiles.Summary(of["median"], of["p20"], of["p80"])
    present = [implementations[name] for name in target.over if name in implementations]
    if not present:
        return None
    fastest = min(present, key=lambda implementation: implementation["median"])
    return quantiles.ratio(of["samples"], fastest["samples"])
