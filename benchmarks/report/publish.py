"""Puts the figures of `benchmarks/results.json` into the documentation: tables between marks, and charts.

A subject that another machine measured lies in a file of its own, as in `results_plans.json`.

Run `python -m benchmarks.report.publish`. A test compares the pages with the results.
"""

import pathlib
import re
from collections.abc import Callable
from typing import Any

from ..harness.record import ROOT, read
from . import table

# The parts of each page, by the name in its marks.
PAGES: dict[pathlib.Path, dict[str, Callable[[dict[str, Any]], str]]] = {
    ROOT / "docs" / "performance.md": {
        "origin": table.origin,
        "targets": table.targets,
        "memory": table.memory,
        "growth": table.growth,
        "models": table.models,
        "compiled": table.compiled,
        "masked": table.masked,
        "size": table.size,
    },
    ROOT / "docs" / "memory.md": {
        "origin": table.origin,
        "blocks": table.blocks,
        "plans": lambda run: table.plans(read("plans")),
        "zoo": lambda run: table.zoo(read("zoo")),
        "loops": table.loops,
        "times": table.times_of_loops,
    },
    ROOT / "docs" / "gpu.md": {"gpu": table.gpu},
}
FIGURES = ROOT / "docs" / "figures"


def fill(path: pathlib.Path, text: str, run: dict[str, Any]) -> str:
    """The text of a page, with the parts between `<!-- name -->` and `<!-- end -->` made from the results."""
    for name, make in PAGES[path].items():
        part = make(run).rstrip()
        text, found = re.subn(
            rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->\n)",
            lambda _, part=part: f"\n{part}\n\n",
            text,
            flags=re.DOTALL,
        )
        if found != 1:
            raise ValueError(f"benchmarks: the marks of '{name}' stand {found} times in {path.name}; expected once")
    return text


def main() -> None:
    """Writes the pages and draws the charts."""
    from . import charts  # Only charts need matplotlib.

    run = read()
    for path in PAGES:
        path.write_text(fill(path, path.read_text(), run))
    charts.draw(run, FIGURES)


if __name__ == "__main__":
    main()
