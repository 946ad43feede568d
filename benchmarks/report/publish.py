"""Puts the figures of `benchmarks/results` into the documentation: tables between marks, and charts.

`python -m benchmarks.report.publish` does it; a test compares.
"""

import json
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any

from absl import app

from ..harness.record import ROOT
from . import table

RESULTS = ROOT / "benchmarks" / "results"
# The parts of each page, by the name in its marks.
PAGES: dict[pathlib.Path, dict[str, Callable[[dict[str, Any]], str]]] = {
    ROOT / "docs" / "performance.md": {
        "origin": table.origin,
        "targets": table.targets,
        "memory": table.memory,
        "growth": table.growth,
        "models": table.models,
        "size": table.size,
    },
    ROOT / "docs" / "memory.md": {
        "origin": table.origin,
        "blocks": table.blocks,
        "loops": table.loops,
        "times": table.times_of_loops,
    },
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


def charts(text: str) -> list[pathlib.Path]:
    """The paths of the charts of a page that a run has written; examples draw the others."""
    paths = [RESULTS / name for name in re.findall(r"!\[.*?\]\(figures/(\w+\.png)\)", text, re.DOTALL)]
    return [path for path in paths if path.exists()]


def main(_: list[str]) -> None:
    """Writes the pages and copies the charts."""
    run = json.loads((RESULTS / "results.json").read_text())
    for path in PAGES:
        text = fill(path, path.read_text(), run)
        path.write_text(text)
        for chart in charts(text):
            shutil.copyfile(chart, FIGURES / chart.name)


if __name__ == "__main__":
    app.run(main)
