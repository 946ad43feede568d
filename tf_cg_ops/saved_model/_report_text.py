"""The text that the command line prints for reports and findings."""

from collections.abc import Sequence

from tf_cg_ops._src.core.text import count

from . import _compare_models
from ._adopt import AdoptReport
from ._adopt_meta_graph import AdoptedGradient
from ._inspect import EmbeddedGradient
from ._override import OverrideReport
from ._strip import StripReport


def of_strip(report: StripReport) -> str:
    """The report of `strip` as text: a line for each thing that was done or found."""
    replaced = ", ".join(f"{number} {op}" for op, number in report.replaced.items())
    lines = [("replaced", replaced or "0 operations: the model holds none of this library, and was copied as it is")]
    if report.replaced:
        nodes, functions = count(report.nodes_dropped, "operation"), count(report.functions_dropped, "function")
        lines.append(("dropped", f"{nodes} and {functions} that served gradients"))
    lines += _comparison_lines(report.comparisons)
    for host in report.host_functions:
        lines.append(("attention", f"{host} calls Python, and fails outside of the process that made the model"))
    return _text([*lines, ("written", report.target)])


def of_override(report: OverrideReport) -> str:
    """The report of `override` as text."""
    overridden = ", ".join(f"{number} {op}" for op, number in report.overridden.items())
    return _text([("overridden", overridden), *_comparison_lines(report.comparisons), ("written", report.target)])


def of_adopt(report: AdoptReport) -> str:
    """The report of `adopt` as text."""
    lines = [("adopted", _adopted_text(found)) for found in report.adopted]
    if not lines:
        lines = [("adopted", "nothing: the model holds no gradient of tf.custom_gradient, and was copied as it is")]
    return _text([*lines, *_comparison_lines(report.comparisons), ("written", report.target)])


def _adopted_text(found: AdoptedGradient) -> str:
    place = f"{found.function}/{found.node}" if found.function else found.node
    if found.difference is None:
        return f"{place}: {found.gradients}; the file and autodiff are not compared: {found.detail}"
    return f"{place}: {found.gradients}; the file and autodiff differ by {found.difference:.2g} of the largest element"


def _text(lines: Sequence[tuple[str, str]]) -> str:
    width = max(9, *(len(label) for label, _ in lines))
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)


def _comparison_lines(comparisons: Sequence[_compare_models.Comparison] | None) -> list[tuple[str, str]]:
    if comparisons is None:
        return [("compared", "nothing: the check was turned off")]
    if not comparisons:
        return [("compared", "nothing: there is nothing that could be called")]
    return [("compared", _comparison_text(comparison)) for comparison in comparisons]


def _comparison_text(comparison: _compare_models.Comparison) -> str:
    detail = f" ({comparison.detail})" if comparison.verdict == _compare_models.ROUNDING else ""
    detail = f": {comparison.detail}" if comparison.verdict == _compare_models.NOT_COMPARED else detail
    return f"{comparison.name}: {comparison.verdict}{detail}"


def gradient_table(found: Sequence[EmbeddedGradient]) -> str:
    """The findings of `inspect` as a table: a row for each embedded gradient, and the errors below it."""
    if not found:
        return "The model holds no embedded gradients."
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
