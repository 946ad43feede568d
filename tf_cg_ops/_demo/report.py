"""The findings of the demo: measured numbers and their bounds."""

import json
import operator
import pathlib
from typing import Any

_RELATIONS = {"at least": operator.ge, "at most": operator.le}


class Report:
    """Collects findings, prints them as a table and keeps them as JSON."""

    def __init__(self) -> None:
        self._findings: list[dict[str, Any]] = []

    def add(self, subject: str, measured: float, relation: str, bound: float) -> None:
        """Adds a number and its bound. A nan never holds."""
        measured = float(measured)
        holds = _RELATIONS[relation](measured, bound)
        finding = {
            "subject": subject,
            "measured": measured,
            "relation": relation,
            "bound": bound,
            "holds": holds,
        }
        self._findings.append(finding)

    def all_hold(self) -> bool:
        """Whether there are findings and all of them hold."""
        return bool(self._findings) and all(finding["holds"] for finding in self._findings)

    def save(self, path: pathlib.Path) -> None:
        """Writes the findings as JSON."""
        path.write_text(json.dumps(self._findings, indent=1) + "\n")

    def show(self) -> None:
        """Prints the table."""
        rows: list[tuple[str, ...]] = [("finding", "measured", "wanted", "holds")]
        for finding in self._findings:
            wanted = f"{finding['relation']} {finding['bound']:.4g}"
            rows.append((finding["subject"], f"{finding['measured']:.4g}", wanted, "yes" if finding["holds"] else "NO"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, tuple("-" * width for width in widths))
        print()
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
