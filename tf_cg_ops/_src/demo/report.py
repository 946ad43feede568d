"""The findings of the demo: measured numbers and their bounds."""

import dataclasses
import json
import operator
import pathlib

_RELATIONS = {"at least": operator.ge, "at most": operator.le}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One measured number and its bound."""

    subject: str
    measured: float
    relation: str  # A key of _RELATIONS.
    bound: float

    def holds(self) -> bool:
        """Whether the number keeps the bound; nan never does."""
        return bool(_RELATIONS[self.relation](self.measured, self.bound))


class Report:
    """Collects findings, prints them as a table and keeps them as JSON."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []

    def add(self, subject: str, measured: float, relation: str, bound: float) -> None:
        """Adds one finding."""
        self._findings.append(Finding(subject, float(measured), relation, bound))

    def all_hold(self) -> bool:
        """Whether there are findings and all of them hold."""
        return bool(self._findings) and all(finding.holds() for finding in self._findings)

    def save(self, path: pathlib.Path) -> None:
        """Writes the findings as JSON."""
        rows = [dataclasses.asdict(finding) | {"holds": finding.holds()} for finding in self._findings]
        path.write_text(json.dumps(rows, indent=1) + "\n")

    def show(self) -> None:
        """Prints the table."""
        rows = [("finding", "measured", "wanted", "holds")]
        for finding in self._findings:
            wanted = f"{finding.relation} {finding.bound:.4g}"
            rows.append((finding.subject, f"{finding.measured:.4g}", wanted, "yes" if finding.holds() else "NO"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        print()
        for i, row in enumerate(rows):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            if i == 0:
                print("  ".join("-" * width for width in widths))
