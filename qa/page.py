"""Puts the results in `docs/reliability/` into the tables of docs/reliability.md: python -m qa.page.

A test compares the page with the files.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.sources import ROOT

from .faults.cpp_faults import FAULTS
from .faults.harmless_mutants import HARMLESS
from .faults.mutants import name_of
from .leaks import COUNTS

PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "docs" / "reliability"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float) -> str:
    """With commas, or with three digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def raw_ops(found: dict[str, Any]) -> str:
    """The outcomes of the calls in each mode."""
    modes = sorted({key.rpartition(" ")[0] for key in found["by_mode"]})
    rows = [
        [mode, *(number(found["by_mode"].get(f"{mode} {outcome}", 0)) for outcome in ("accepted", "refused"))]
        for mode in modes
    ]
    rows.append(["all", number(found["accepted"]), number(found["refused"])])
    return table(["mode", "right result", "exception"], rows) + f"\n\nFailures: {len(found['failures'])}."


def differential(found: dict[str, Any]) -> str:
    """How many examples there were of each kind."""
    rows = [[kind, number(count)] for kind, count in sorted(found["counts"].items())]
    return table(["kind", "examples"], rows) + f"\n\nFailures: {len(found['failures'])}."


def saved_models(found: dict[str, Any]) -> str:
    """The verdicts on the mutants, and the outcomes of each action."""
    verdicts = table(["mutants", "number"], [[k, number(n)] for k, n in found["verdicts"].items()])
    rows = []
    for action, outcomes in found["outcomes"].items():
        exceptions = sum(count for kind, count in outcomes.items() if kind != "result")
        rows.append([action, number(outcomes.get("result", 0)), number(exceptions)])
    return verdicts + "\n\n" + table(["action", "result", "exception"], rows)


def sanitizers(found: dict[str, Any]) -> str:
    """The parts that ran, their results and their extent."""
    rows = [
        [
            part["ran"],
            part["result"],
            ", ".join(f"{number(n)} {name.replace('_', ' ')}" for name, n in part["figures"].items()),
        ]
        for part in found["parts"]
    ]
    return table(["part", "result", "amount"], rows)


def exactness(found: dict[str, Any]) -> str:
    """The worst errors of each dtype and kind of numbers, over all layouts and sizes."""
    kinds = dict.fromkeys((row["dtype"], row["numbers"]) for row in found["rows"])
    rows = []
    for dtype, numbers in kinds:
        same = [row for row in found["rows"] if (row["dtype"], row["numbers"]) == (dtype, numbers)]
        worst = [max(row[which] for row in same) for which in ("ours", "reduce_sum")]
        rows.append([dtype, numbers, *(f"{error:.3g}" for error in worst)])
    return table(["dtype", "numbers", "here", "`reduce_sum`"], rows)


def leaks(found: list[dict[str, Any]]) -> str:
    """The bytes that one repetition leaves, here and with TensorFlow's own operations."""
    kinds = dict.fromkeys(row["scenario"] for row in found)
    rows = []
    for scenario in kinds:
        of = {row["with"]: row for row in found if row["scenario"] == scenario}
        ours, built_in = of["ours"], of["built-in"]
        added = ", ".join(str(ours[count]) for count in COUNTS)
        rows.append([scenario, number(ours["repetitions"]), ours["bytes each"], built_in["bytes each"], added])
    return table(["repeated", "times", "bytes each", "TensorFlow's own", ", ".join(COUNTS) + " added"], rows)


def mutants(found: list[dict[str, Any]]) -> str:
    """How many changes of each module were noticed, and those that were not."""
    rows, alive = [], []
    for module in dict.fromkeys(row["module"] for row in found):
        same = [row for row in found if row["module"] == module]
        unnoticed = [row for row in same if row["noticed_by"] is None]
        rows.append([f"`{module}`", len(same), len(same) - len(unnoticed)])
        alive += unnoticed
    rows.append(["all", len(found), len(found) - len(alive)])
    survivors = [
        [f"`{row['module']}`", f"`{row['before']}`", f"`{row['after']}`", HARMLESS.get(name_of(row), "**not judged**")]
        for row in alive
    ]
    changes = table(["module", "changes", "noticed"], rows)
    return f"{changes}\n\nNot noticed:\n\n{table(['module', 'before', 'after', 'reason'], survivors)}"


def faults(found: list[dict[str, Any]]) -> str:
    """Each injected fault, and the test that noticed it."""
    rows = [[f["fault"], f"`{f['file']}`", f"`{f['noticed_by']}`" if f["noticed_by"] else "**none**"] for f in found]
    done = f"{len(found)} of {len(FAULTS)} have been injected."
    return table(["fault", "in", "noticed first by"], rows) + f"\n\n{done}"


PARTS: dict[str, Callable[[Any], str]] = {
    "raw_ops": raw_ops,
    "differential": differential,
    "saved_models": saved_models,
    "sanitizers": sanitizers,
    "exactness": exactness,
    "leaks": leaks,
    "faults": faults,
    "mutants": mutants,
}


def page(text: str) -> str:
    """The text of the page, with what stands between `<!-- name -->` and `<!-- end -->` made from the results."""
    for name, render in PARTS.items():
        part = render(json.loads((RESULTS / f"{name}.json").read_text()))
        text, times = re.subn(
            rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->\n)", lambda _, part=part: f"\n{part}\n\n", text, flags=re.DOTALL
        )
        if times != 1:
            raise ValueError(f"qa: the marks of '{name}' stand {times} times in {PAGE.name}; expected once")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
