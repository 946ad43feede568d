"""The text that the command line prints for reports and findings."""

from collections.abc import Mapping, Sequence

from tf_cg_ops._src.core.text import count

from ._adopt import AdoptedGradient, AdoptReport
from ._compare_models import NOT_COMPARED, ROUNDING, Comparison
from ._graphs import place_of
from ._inspect import EmbeddedGradient
from ._override import OverrideReport
from ._strip import StripReport


def of_strip(report: StripReport) -> str:
    """The report of `strip` as text, with a line for each thing that was done or found."""
    replaced = _counts(report.replaced) or "0 operations: the model has none of this library, and was copied unchanged"
    lines = [("replaced", replaced)]
    if report.replaced:
        nodes, functions = count(report.nodes_dropped, "operation"), count(report.functions_dropped, "function")
        lines.append(("dropped", f"{nodes} and {functions} that only gradients need"))
    hosts = [
        f"{host} calls Python, and fails outside of the process that made the model" for host in report.host_functions
    ]
    return _text(report, lines, [("attention", host) for host in hosts])


def of_override(report: OverrideReport) -> str:
    """The report of `override` as text."""
    return _text(report, [("overridden", _counts(report.overridden))])


def of_adopt(report: AdoptReport) -> str:
    """The report of `adopt` as text."""
    adopted = [_adopted_text(found) for found in report.adopted]
    nothing = "nothing: the model has no gradients of tf.custom_gradient, and was copied unchanged"
    return _text(report, [("adopted", line) for line in adopted or [nothing]])


def _adopted_text(found: AdoptedGradient) -> str:
    place = place_of(found.function, found.node)
    if found.difference is None:
        return f"{place}: {found.gradients}; the file and autodiff could not be compared: {found.detail}"
    return f"{place}: {found.gradients}; the file and autodiff differ by {found.difference:.2g} of the largest element"


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {op}" for op, number in numbers.items())


def _text(
    report: StripReport | OverrideReport | AdoptReport,
    before: Sequence[tuple[str, str]],
    after: Sequence[tuple[str, str]] = (),
) -> str:
    """The lines before, about, and after the check, with their labels in a column."""
    compared = [_comparison_text(comparison) for comparison in report.comparisons or []]
    if not compared:
        reason = "the check was turned off" if report.comparisons is None else "there is nothing that could be called"
        compared = [f"nothing: {reason}"]
    lines = [*before, *(("compared", line) for line in compared), *after, ("written", report.target)]
    width = max(9, *(len(label) for label, _ in lines))
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)


def _comparison_text(comparison: Comparison) -> str:
    detail = {ROUNDING: f" ({comparison.detail})", NOT_COMPARED: f": {comparison.detail}"}.get(comparison.verdict, "")
    return f"{comparison.name}: {comparison.verdict}{detail}"


def gradient_table(found: Sequence[EmbeddedGradient]) -> str:
    """The findings of `inspect` as a table, with a row for each gradient, and the errors below it."""
    if not found:
        return "The model has no custom gradients."
    head = ("function", "operation", "kind", "of", "value", "gradients", "rule")
    rows = [head, *(_table_row(gradient) for gradient in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    errors = [f"{gradient.node}: {gradient.error}" for gradient in found if gradient.error]
    return "\n".join([*lines, *(["", *errors] if errors else [])])


def _table_row(gradient: EmbeddedGradient) -> tuple[str, ...]:
    values = zip(gradient.dtypes, gradient.shapes, strict=True)
    rule = "" if gradient.rule_ops is None else count(gradient.rule_ops, "operation")
    return (
        gradient.function or "(graph)",
        gradient.node,
        gradient.kind,
        gradient.user_function,
        ", ".join(dtype + _shape_text(shape) for dtype, shape in values),
        str(gradient.inputs_with_gradients),
        "error, see below" if gradient.error else rule,
    )


def _shape_text(shape: tuple[int | None, ...] | None) -> str:
    return "[...]" if shape is None else "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
