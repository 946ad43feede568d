"""Writes the results in `docs/reliability/` into the tables of docs/reliability.md: python -m qa.page."""

import json
import re

from tests.support.sources import ROOT

PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "docs" / "reliability"


def table(rows):
    """A Markdown table of rows with the same keys."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    cells = ([f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def page(text):
    """The text of the page, with the table behind each `<!-- name -->` made from the results."""

    def render(found):
        return f"<!-- {found[1]} -->\n\n{table(json.loads((RESULTS / f'{found[1]}.json').read_text()))}\n"

    return re.sub(r"<!-- (\w+) -->\n(?:\n(?:\|.*\n)+)?", render, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
