"""The report of an audit: rows, text and an HTML page."""

import dataclasses
import html
import math
import textwrap
from typing import Literal, get_args

from tf_cg_ops._src.core import text

Verdict = Literal["right", "differs", "by design", "not checked"]
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class AuditedGradient:
    """A place with a gradient of its own.

    Attributes:
      function: The name of the user's function; for `embed_gradient`, of the op.
      made_by: What made it: "custom_gradient", "embed_gradient", "straight_through", "tf.custom_gradient", ...
      node: The op in its graph.
      line: The line of code that made it, such as "model.py:12"; empty in a loaded model.
      input_shapes: The shapes of the inputs that it is differentiated by, None for what is unknown.
      output_shapes: The shapes of its values.
      runs: How often a gradient arrived.
      verdict: "right", "differs", "by design" or "not checked".
      detail: The likely mistake or the reason.
      value_norm: The norm of its values, in the last run.
      upstream_norm: The norm of the upstream gradients that arrived there.
      gradient_norm: The norm of the gradients that left.
      error: The largest error, relative to the largest that passes.
      checked: How many elements of the inputs were compared one by one.
      together: How many others were moved together, in a random direction.
      size: How many elements there are. Elements in neither count were not checked, because they are at a kink.
      is_first_nonfinite: Whether it is the first place that made a finite upstream gradient infinite or nan.
    """

    function: str
    made_by: str
    node: str
    line: str
    input_shapes: tuple[tuple[int | None, ...] | None, ...]
    output_shapes: tuple[tuple[int | None, ...] | None, ...]
    runs: int
    verdict: Verdict = "not checked"
    detail: str = ""
    value_norm: float = 0.0
    upstream_norm: float = 0.0
    gradient_norm: float = 0.0
    error: float = 0.0
    checked: int = 0
    together: int = 0
    size: int = 0
    is_first_nonfinite: bool = False


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """The rows of an `audit`, in the order of the backward pass. It prints as a table.

    Attributes:
      model: The name of the function or model.
      rows: An `AuditedGradient` for each place.
    """

    model: str
    rows: list[AuditedGradient]

    @property
    def wrong(self) -> list[AuditedGradient]:
        """The rows whose gradient differs, and the first row that makes a finite gradient infinite or nan."""
        return [row for row in self.rows if row.verdict == "differs" or row.is_first_nonfinite]

    def raise_if_wrong(self) -> None:
        """Raises AssertionError with the table if a gradient differs, or makes a finite one infinite or nan."""
        if self.wrong:
            raise AssertionError(str(self))

    def summary(self) -> str:
        """One sentence."""
        if not self.rows:
            return f"'{self.model}': nothing to audit, it has no gradients of its own."
        counts = [(sum(row.verdict == verdict for row in self.rows), verdict) for verdict in get_args(Verdict)]
        found = [
            f"{count} {'differ' if verdict == 'differs' and count > 1 else verdict}"
            for count, verdict in counts
            if count
        ]
        return f"'{self.model}': {text.count(len(self.rows), 'custom gradient')}, {', '.join(found)}."

    def __str__(self) -> str:
        if not self.rows:
            return self.summary()
        head = ("", "function", "at", "runs", "value", "upstream", "gradient", "checked", "verdict")
        table = [head, *(_cells(i + 1, row) for i, row in enumerate(self.rows))]
        widths = [max(len(line[i]) for line in table) for i in range(len(head))]
        left = _WIDTH - sum(widths) + widths[1] + widths[2] - 2 * (len(head) - 1)
        widths[2] = min(widths[2], max(left - widths[1], left // 2))
        widths[1] = min(widths[1], left - widths[2])
        lines = textwrap.wrap(self.summary(), _WIDTH)
        for cells, row in zip(table, [None, *self.rows], strict=True):
            fitted = (_shortened(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=True))
            lines.append("  ".join(fitted).rstrip())
            if row is not None:
                lines += [f"{' ' * (widths[0] + 2)}{remark}" for remark in _remarks(row)]
        if any(row.together for row in self.rows):
            lines.append("checked: elements one by one + elements together, in a random direction")
        return "\n".join(lines)

    def to_html(self) -> str:
        """A page with one table, which needs no network."""
        norms = [n for row in self.rows for n in (row.upstream_norm, row.gradient_norm) if 0 < n < math.inf]
        low, high = math.log10(min(norms, default=1.0)), math.log10(max(norms, default=1.0))
        body = "".join(_html_row(i + 1, row, low, max(high - low, 1e-9)) for i, row in enumerate(self.rows))
        return _PAGE.format(title=html.escape(self.summary()), rows=body)


def _cells(number: int, row: AuditedGradient) -> tuple[str, ...]:
    norms = (row.value_norm, row.upstream_norm, row.gradient_norm)
    shown = [f"{n:.2g}" if row.runs else "" for n in norms]
    return (str(number), row.function, row.line or row.node, str(row.runs), *shown, _checked(row), row.verdict)


def _checked(row: AuditedGradient) -> str:
    if row.checked == row.size:
        return f"all {row.size}" if row.size else ""
    shown = f"{row.checked}+{row.together}" if row.together else f"{row.checked}"
    return shown if row.checked + row.together == row.size else f"{shown} of {row.size}"


def _remarks(row: AuditedGradient) -> list[str]:
    remarks = [row.detail] if row.detail else []
    if row.is_first_nonfinite:
        remarks.append("Here a finite upstream gradient became infinite or nan for the first time.")
    return [line for remark in remarks for line in textwrap.wrap(remark, _WIDTH - 6)]


def _shortened(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"...{cell[3 - width :]}"


def _html_row(number: int, row: AuditedGradient, low: float, span: float) -> str:
    style = "wrong" if row.verdict == "differs" or row.is_first_nonfinite else row.verdict.replace(" ", "-")
    cells = [str(number), row.function, row.made_by, row.line or row.node, str(row.runs)]
    first = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    bars = "".join(f"<td>{_bar(n, low, span) if row.runs else ''}</td>" for n in (row.upstream_norm, row.gradient_norm))
    detail = html.escape(" ".join(_remarks(row)))
    mark = ' id="first-nonfinite"' if row.is_first_nonfinite else ""
    return (
        f'<tr class="{style}"{mark}>{first}{bars}<td>{_checked(row)}</td><td><b>{row.verdict}</b> {detail}</td></tr>\n'
    )


def _bar(norm: float, low: float, span: float) -> str:
    if not math.isfinite(norm):
        return f'<span class="bar nonfinite" style="width:8em"></span> {norm}'
    width = 0.0 if norm == 0 else 0.4 + 7.6 * (math.log10(norm) - low) / span
    return f'<span class="bar" style="width:{width:.2f}em"></span> {norm:.2g}'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; --bar: #1b6ca8; --wrong: #c0392b; }}
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th {{ position: sticky; top: 0; background: Canvas; text-align: left; }}
th, td {{ padding: .3em .6em; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }}
td:last-child {{ white-space: normal; min-width: 16em; }}
tr.wrong {{ background: color-mix(in srgb, var(--wrong) 18%, Canvas); }}
.bar {{ display: inline-block; height: .7em; background: var(--bar); }}
.bar.nonfinite {{ background: var(--wrong); }}
</style></head><body>
<h2>{title}</h2>
<p>The places with a gradient of their own, in the order of the backward pass. The bars show norms on a logarithmic
axis. Checked are elements one by one + elements together, in a random direction.</p>
<div><table>
<tr><th></th><th>function</th><th>made by</th><th>at</th><th>runs</th><th>upstream</th><th>gradient</th>
<th>checked</th><th>verdict</th></tr>
{rows}</table></div>
<script>document.querySelector("#first-nonfinite, tr.wrong")?.scrollIntoView({{block: "center"}})</script>
</body></html>
"""
