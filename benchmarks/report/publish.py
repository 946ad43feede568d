"""Puts the figures of `benchmarks/results` into the documentation: tables between marks, and charts.

`python -m benchmarks.report.publish` does it; a test compares.
"""

import json
import pathlib
import re
import shutil
from typing import Any

from absl import app

from ..harness.record import ROOT
from . import table

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"


def page(text: str, run: dict[str, Any]) -> str:
    """The text of the page, with the parts between `<!-- name -->` and `<!-- end -->` made from the results."""
    parts = {"origin": table.origin(run) + "\n", "targets": table.targets(run), "memory": table.memory(run)}
    for name, part in parts.items():
        text, found = re.subn(
            rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->\n)", lambda _, part=part: f"\n{part}\n", text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"benchmarks: the marks of '{name}' stand {found} times in {PAGE.name}; expected once")
    return text


def charts(text: str) -> list[pathlib.Path]:
    """The paths at which a run writes the charts of the page."""
    return [RESULTS / name for name in re.findall(r"!\[.*?\]\(figures/(\w+\.png)\)", text, re.DOTALL)]


def main(_: list[str]) -> None:
    """Writes the page and copies the charts."""
    run = json.loads((RESULTS / "results.json").read_text())
    text = page(PAGE.read_text(), run)
    PAGE.write_text(text)
    for chart in charts(text):
        shutil.copyfile(chart, FIGURES / chart.name)


if __name__ == "__main__":
    app.run(main)
