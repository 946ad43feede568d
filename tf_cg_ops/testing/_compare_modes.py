"""Compares the values, gradients and tangents of each mode with their references."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_cg_ops._src.core import text

from . import _hints, _modes
from ._flat_function import Arrays, FlatFunction, Results, numbered, to_double_precision, to_tensors
from ._references import RandomNumbers
from ._report import GradientComparison, Hint, Reference, Tolerances, compare, exact_reference

# The number of different arguments and upstreams in a batch.
_BATCH = 3
# Between these, multiples of gradients neither overflow nor underflow in float64; nor do most intermediate results.
_MIN_MAGNITUDE, _MAX_MAGNITUDE = 1e-280, 1e280
_EAGER = "eager mode"


@dataclasses.dataclass(frozen=True)
class _Case:
    """A further call whose derivatives are known: with multiples of the direction, or fewer arguments or outputs."""

    name: str
    factors: list[float]  # One for each part of the direction.
    source: str
    hint: str = ""
    options: Mapping[str, slice] = dataclasses.field(default_factory=dict)  # Of `FlatFunction.gradients`.

    @property
    def needed(self) -> slice:
        """The arguments whose derivatives it has."""
        return self.options.get("needed", slice(None))


def _alone(references: Sequence[Reference], num_outputs: int) -> Iterator[_Case]:
    """A gradient does not change if no other argument is watched, or if other outputs, without upstream, are unused."""
    for i, reference in enumerate(references if len(references) > 1 else ()):
        name, options = f"if only '{reference.name}' is needed", {"needed": slice(i, i + 1)}
        yield _Case(name, [1.0] * num_outputs, "if all are", options=options)
    for k in range(num_outputs) if num_outputs > 1 else ():
        factors, options = [float(i == k) for i in range(num_outputs)], {"used": slice(k, k + 1)}
        yield _Case(f"if only value[{k}] is used", factors, "if all are", options=options)


@dataclasses.dataclass
class ModeComparisons:
    """The comparisons of one `check_gradient`, and the last exception that a mode raised."""

    modes: Sequence[str]
    tolerances: Tolerances
    tangents_are_linear: bool = True  # Otherwise gradients look like other mistakes: the rule has no transpose.
    comparisons: list[GradientComparison] = dataclasses.field(default_factory=list)
    error: Exception | None = None

    def compare(
        self,
        order: str,
        function: FlatFunction,
        direction: Arrays,
        references: list[Reference],
        numbers: RandomNumbers,
        intended: FlatFunction | None = None,
    ) -> None:
        """Compares the tangents along a direction of the arguments, or the gradients for an upstream gradient.

        `intended` is the function whose gradient `function` should have, if there is one.
        """
        derive = FlatFunction.tangents if order == "tangent" else FlatFunction.gradients
        inputs = [to_tensors(function.values + direction)]
        for _ in range(1, _BATCH):
            values = [numbers.move_towards_zero(x) for x in function.values]
            inputs.append(to_tensors(values + [numbers.draw_like(part) for part in direction]))

        def hint(reference: Reference, derivative: np.ndarray) -> str:
            if not self.tangents_are_linear:
                return _hints.TANGENT_NOT_LINEAR
            # The reference is right if another mode agrees with it.
            is_trusted = any(c.passed and (c.order, c.name) == (order, reference.name) for c in self.comparisons)
            others = references if order == "first" else []
            text = _hints.hint_from_numbers(reference, others, derivative, is_trusted)
            if not text and intended is not None:
                argument = references.index(reference)
                text = _hints.hint_from_upstreams(function, intended, direction, argument, reference, derivative)
            return text or _hints.hint_from_ratio(reference, derivative)

        def add(reference: Reference, actual: Any, hint: Hint | None = None, order: str = order) -> GradientComparison:
            tolerances = _modes.tolerances_in(mode, self.tolerances, reference.size)
            self.comparisons.append(compare(mode, order, reference, actual, tolerances, hint))
            return self.comparisons[-1]

        for mode in self.modes:
            if order == "tangent" and mode not in _modes.FORWARD_MODES:
                continue
            try:
                run = functools.partial(derive, _modes.wrap(mode, function))
                (derivatives, values), *rest = _modes.run(mode, run, inputs)
                rest_in_eager_mode = [derive(function, tensors)[0] for tensors in inputs[1 : 1 + len(rest)]]
                cases: list[_Case] = []
                if order == "tangent" or (intended is not None and mode == self.modes[0]):
                    cases += self._multiples(order, len(direction))
                if order == "first" and mode == self.modes[0]:
                    cases += _alone(references, len(direction))
                others = self._in_other_cases(mode, order, run, function, direction, references, derivatives, cases)
                changed = list(others)
                self.tangents_are_linear &= order != "tangent" or not changed
            except Exception as error:
                self.add_exception(mode, order, [reference.name for reference in references], error)
                continue
            if order == "first":
                outputs = function.call(inputs[0][: len(function.values)])
                for name, value, y in zip(numbered("value", len(values)), values, outputs, strict=True):
                    add(exact_reference(name, to_double_precision(y), y.dtype, _EAGER), value, order="value")
            for reference, derivative in zip(references, derivatives, strict=True):
                comparison = add(reference, derivative, hint)
                if comparison.passed:
                    self.comparisons += [c for original, c in changed if original is reference]
            for k, ((found, _), expected) in enumerate(zip(rest, rest_in_eager_mode, strict=True), start=2):
                for first, derivative, wanted in zip(references, found, expected, strict=True):
                    add(_another(first, f"{k} of {len(rest) + 1} in a batch", wanted, _EAGER), derivative)

    def _multiples(self, order: str, count: int) -> list[_Case]:
        """A derivative is linear in the tangents, or in the upstream gradients."""
        what, factors = ("tangents", (-2.0,)) if order == "tangent" else ("an upstream", _hints.FACTORS)
        is_rule = order == "tangent" or not self.tangents_are_linear
        text = _hints.TANGENT_NOT_LINEAR if is_rule else _hints.NOT_LINEAR
        source = f"linear in the {what.split()[-1]}"
        return [_Case(f"for {what} {f:g} times as large", [f] * count, source, text) for f in factors]

    def _in_other_cases(
        self,
        mode: str,
        order: str,
        run: Callable[..., Results],
        function: FlatFunction,
        direction: Arrays,
        references: list[Reference],
        derivatives: list[Any],
        cases: Sequence[_Case],
    ) -> Iterator[tuple[Reference, GradientComparison]]:
        """Makes these calls, and yields a failure for each derivative that is not the known one."""
        for case in cases:
            pairs = zip(case.factors, direction, strict=True)
            inputs = to_tensors(function.values + [factor * part for factor, part in pairs])
            compute = functools.partial(_modes.run, mode, inputs=[inputs] * (_BATCH if mode == "vectorized" else 1))
            factor = case.factors[0] if len({*case.factors}) == 1 else 1.0
            expected = derivatives if len({*case.factors}) == 1 else compute(run)[0][0]
            try:
                found, _ = compute(functools.partial(run, **case.options))[0]
            except Exception as error:
                names = [f"{reference.name} ({case.name})" for reference in references[case.needed]]
                self.add_exception(mode, order, names, error)
                continue
            for original, wanted, got in zip(references[case.needed], expected[case.needed], found, strict=True):
                reference = _another(original, case.name, wanted, case.source)
                if factor != 1:
                    if not _MIN_MAGNITUDE < reference.size < _MAX_MAGNITUDE or reference.shape != original.shape:
                        continue
                    # Terms that cancel leave rounding of their size.
                    value = reference.estimate.value[original.elements]
                    estimate = dataclasses.replace(original.estimate, value=value).multiply(factor)
                    reference = dataclasses.replace(reference, elements=original.elements, estimate=estimate)
                tolerances = Tolerances(self.tolerances.rtol, self.tolerances.atol * max(abs(factor), 1.0))
                tolerances = _modes.tolerances_in(mode, tolerances, reference.size)
                comparison = compare(mode, order, reference, got, tolerances, lambda *_, hint=case.hint: hint)
                if not comparison.passed:
                    yield original, comparison

    def add_exception(self, mode: str, order: str, names: Sequence[str], error: Exception) -> None:
        """Adds an exception as a failure of its mode. The other modes are still compared."""
        where = (mode, order, ", ".join(names))
        self.comparisons.append(GradientComparison(*where, passed=False, problem=text.in_one_line(error), raised=True))
        self.error = error


def _another(original: Reference, case: str, wanted: Any, source: str) -> Reference:
    """The reference for the same argument in another case."""
    array = np.zeros(original.shape) if wanted is None else to_double_precision(wanted)
    return exact_reference(f"{original.name} ({case})", array, original.dtype, source)
