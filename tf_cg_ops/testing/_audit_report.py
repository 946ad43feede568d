"""The report of an audit: rows, text and an HTML page."""

import dataclasses
import html
import math
import textwrap
from typing import Literal, get_args

from tf_cg_ops._src.core import text

from ._audit_nonfinite import FirstNonfinite

Verdict = Literal["right", "differs", "by design", "not checked"]
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class AuditedGradient:
    """A place with a gradient of its own, or several of one function: then it is the one with the largest error.

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
      places: How many places of this function have this verdict.
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
    places: int = 1


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """The rows of an `audit`, in the order of the backward pass. It prints as a table.

    Attributes:
      model: The name of the function or model.
      rows: An `AuditedGradient` for each function and verdict.
      first_nonfinite: The `FirstNonfinite` op of all ops, built-in ones too; None if the gradient and the value are
        finite. Single infinite numbers in a value of several are fine.
    """

    model: str
    rows: list[AuditedGradient]
    first_nonfinite: FirstNonfinite | None = None

    @property
    def wrong(self) -> list[AuditedGradient]:
        """The rows whose gradient differs."""
        return [row for row in self.rows if row.verdict == "differs"]

    def raise_if_wrong(self) -> None:
        """Raises AssertionError with the table if a gradient differs, or if the run has a `first_nonfinite`."""
        if self.wrong or self.first_nonfinite:
            raise AssertionError(str(self))

    def summary(self) -> str:
        """One sentence."""
        if not self.rows:
            ending = "" if self.first_nonfinite else ", and its gradient is finite"
            return f"'{self.model}' has no gradients of its own{ending}."
        counts = {v: sum(row.places for row in self.rows if row.verdict == v) for v in get_args(Verdict)}
        found = [f"{n} {'differ' if v == 'differs' and n > 1 else v}" for v, n in counts.items() if n]
        return f"'{self.model}': {text.count(sum(counts.values()), 'custom gradient')}, {', '.join(found)}."

    def __str__(self) -> str:
        lines = [*([str(self.first_nonfinite)] if self.first_nonfinite else []), *textwrap.wrap(self.summary(), _WIDTH)]
        if not self.rows:
            return "\n".join(lines)
        head = ("", "function", "at", "places", "runs", "value", "upstream", "gradient", "verdict")
        table: list[tuple[str, ...]] = [head]
        for i, row in enumerate(self.rows):
            norms = (f"{n:.2g}" if row.runs else "" for n in (row.value_norm, row.upstream_norm, row.gradient_norm))
            counts = str(row.places), str(row.runs)
            table.append((str(i + 1), row.function, row.line or row.node, *counts, *norms, row.verdict))
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        left = _WIDTH - sum(widths) + widths[1] + widths[2] - 2 * (len(widths) - 1)
        widths[2] = min(widths[2], max(left - widths[1], left // 2))
        widths[1] = min(widths[1], left - widths[2])
        for cells, remark in zip(table, ["", *(row.detail for row in self.rows)], strict=True):
            shown = (c if len(c) <= w else f"...{c[3 - w :]}" for c, w in zip(cells, widths, strict=True))
            lines.append("  ".join(c.ljust(w) for c, w in zip(shown, widths, strict=True)).rstrip())
            lines += [f"{' ' * (widths[0] + 2)}{line}" for line in textwrap.wrap(remark, _WIDTH - 6)]
        return "\n".join(lines)

    def to_html(self) -> str:
        """A page with one table, which needs no network."""
        norms = [n for row in self.rows for n in (row.upstream_norm, row.gradient_norm) if 0 < n < math.inf]
        low, high = math.log10(min(norms, default=1.0)), math.log10(max(norms, default=1.0))
        body = "".join(_html_row(i + 1, row, low, max(high - low, 1e-9)) for i, row in enumerate(self.rows))
        first = "".join(
            f"<p class=wrong>{html.escape(line)}</p>\n" for line in str(self.first_nonfinite or "").splitlines()
        )
        return _PAGE.format(title=html.escape(self.summary()), first=first, rows=body)


def _html_row(number: int, row: AuditedGradient, low: float, span: float) -> str:
    style = "wrong" if row.verdict == "differs" else row.verdict.replace(" ", "-")
    cells = [number, row.function, row.made_by, row.line or row.node, row.places, row.runs]
    first = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
    bars = "".join(f"<td>{_bar(n, low, span) if row.runs else ''}</td>" for n in (row.upstream_norm, row.gradient_norm))
    verdict = f"<b>{row.verdict}</b> {html.escape(row.detail)}"
    return f'<tr class="{style}">{first}{bars}<td>{verdict}</td></tr>\n'


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
tr.wrong, p.wrong {{ background: color-mix(in srgb, var(--wrong) 18%, Canvas); }}
.bar {{ display: inline-block; height: .7em; background: var(--bar); }}
.bar.nonfinite {{ background: var(--wrong); }}
</style></head><body>
{first}<h2>{title}</h2>
<p>The functions with a gradient of their own, in the order of the backward pass. The bars show norms on a logarithmic
axis.</p>
<div><table>
<tr><th></th><th>function</th><th>made by</th><th>at</th><th>places</th><th>runs</th><th>upstream</th><th>gradient</th>
<th>verdict</th></tr>
{rows}</table></div>
<script>document.querySelector("tr.wrong")?.scrollIntoView({{block: "center"}})</script>
</body></html>
"""
