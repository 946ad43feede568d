"""Compares the values, gradients and tangents of each mode with their references."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from . import _hints, _modes
from ._flat_function import Arrays, FlatFunction, to_double_precision, to_tensors
from ._references import RandomNumbers, value_names
from ._report import Comparison, Reference, Tolerances, compare_with_reference, exact_reference, in_one_line

# The number of different arguments and upstreams in a batch.
_BATCH = 3
# Between these, multiples of gradients neither overflow nor underflow in float64; nor do most intermediate results.
_MIN_MAGNITUDE, _MAX_MAGNITUDE = 1e-280, 1e280

# Returns the likely mistake, given wrong numbers; or an empty string.
Hint = Callable[[Reference, np.ndarray], str]


@dataclasses.dataclass
class ModeComparisons:
    """The comparisons of one `check_gradient`, and the last exception that a mode raised."""

    modes: Sequence[str]
    tolerances: Tolerances
    has_linear_tangents: bool
    comparisons: list[Comparison] = dataclasses.field(default_factory=list)
    error: Exception | None = None

    def compare_gradients(
        self,
        order: str,
        function: FlatFunction,
        intended: FlatFunction | None,
        upstream: Arrays,
        references: list[Reference],
        numbers: RandomNumbers,
    ) -> None:
        """Compares the gradients and, at first order, the values. The references are for the first of a batch.

        `intended` is the function whose gradient `function` should have, if there is one. Hints use it.
        """

        def hint(reference: Reference, gradient: np.ndarray) -> str:
            if not self.has_linear_tangents:
                return _hints.TANGENT_NOT_LINEAR
            # The reference is right if another mode agrees with it.
            is_trusted = any(c.passed and (c.order, c.name) == (order, reference.name) for c in self.comparisons)
            text = _hints.hint_from_numbers(reference, references if order == "first" else [], gradient, is_trusted)
            if not text and intended is not None:
                argument = references.index(reference)
                text = _hints.hint_from_upstreams(function, intended, upstream, argument, reference, gradient)
            return text or _hints.hint_from_ratio(reference, gradient)

        inputs = [to_tensors(function.values + upstream)]
        for _ in range(1, _BATCH):
            values = [numbers.move_towards_zero(x) for x in function.values]
            inputs.append(to_tensors(values + [numbers.draw_like(dy) for dy in upstream]))
        outputs, others = function.call(inputs[0][: len(function.values)])
        for mode in self.modes:
            try:
                run = functools.partial(_gradients_and_values, _modes.wrap(mode, function))
                results = _modes.run(mode, run, inputs)
                eager = functools.partial(_gradients_and_values, function)
                in_eager_mode = [_modes.run("eager", eager, [tensors])[0] for tensors in inputs[1 : len(results)]]
            except Exception as error:
                self.add_exception(mode, order, function.names, error)
                continue
            gradients, values = results[0]
            if order == "first":
                for name, value, y in zip(value_names(len(values)), values, outputs + others, strict=True):
                    reference = exact_reference(name, to_double_precision(y), y.dtype, "eager mode")
                    self._compare(mode, "value", reference, value, None)
            for reference, gradient in zip(references, gradients, strict=True):
                self._compare(mode, order, reference, gradient, hint)
            if intended is not None and order == "first" and mode == self.modes[0]:
                self._compare_multiples(mode, run, function, upstream, references, gradients)
            self._compare_rest_of_batch(mode, order, references, results[1:], in_eager_mode)

    def _compare_rest_of_batch(
        self,
        mode: str,
        order: str,
        references: list[Reference],
        results: list[_modes.Results],
        in_eager_mode: list[_modes.Results],
    ) -> None:
        for k, ((gradients, _), (expected, _)) in enumerate(zip(results, in_eager_mode, strict=True), start=2):
            for first, gradient, in_eager in zip(references, gradients, expected, strict=True):
                zeros = tf.zeros(first.shape, first.dtype)
                array = to_double_precision(zeros if in_eager is None else in_eager)
                name = f"{first.name} ({k} of {len(results) + 1} in a batch)"
                self._compare(mode, order, exact_reference(name, array, first.dtype, "eager mode"), gradient, None)

    def _compare_multiples(
        self,
        mode: str,
        run: Callable[[list[tf.Tensor]], _modes.Results],
        function: FlatFunction,
        upstream: Arrays,
        references: list[Reference],
        gradients: list[Any],
    ) -> None:
        """Adds a failure for each gradient that is not linear in the upstream, unless it is wrong already."""
        wrong = {c.name for c in self.comparisons if c.mode == mode and c.order == "first" and not c.passed}
        for factor in _hints.FACTORS:
            inputs = to_tensors(function.values + [factor * dy for dy in upstream])
            try:
                ((multiples, _),) = _modes.run(mode, run, [inputs] * (_BATCH if mode == "vectorized" else 1))[:1]
            except Exception as error:
                self.add_exception(mode, "first", function.names, error)
                return
            for original, gradient, multiple in zip(references, gradients, multiples, strict=True):
                if gradient is None or original.name in wrong:
                    continue
                array = to_double_precision(gradient).ravel()[original.elements]
                if not _MIN_MAGNITUDE < np.max(np.abs(array), initial=0.0) < _MAX_MAGNITUDE:
                    continue
                reference = dataclasses.replace(
                    original,
                    name=f"{original.name} (for an upstream {factor:g} times as large)",
                    source="linear in the upstream",
                    estimate=dataclasses.replace(original.estimate, value=array).multiply(factor),
                    direction=None,
                )
                tolerances = Tolerances(self.tolerances.rtol, self.tolerances.atol * max(factor, 1.0))
                self._compare(
                    mode, "first", reference, multiple, lambda *_: _hints.NOT_LINEAR, tolerances, only_failures=True
                )

    def compare_tangents(self, function: FlatFunction, directions: Arrays, references: list[Reference]) -> None:
        """Compares the tangents of the outputs, in the modes that support forward mode."""
        run = functools.partial(_tangents_and_values, function)

        def hint(reference: Reference, tangent: np.ndarray) -> str:
            if not self.has_linear_tangents:
                return _hints.TANGENT_NOT_LINEAR
            return _hints.hint_from_numbers(reference, [], tangent, False) or _hints.hint_from_ratio(reference, tangent)

        for mode in self.modes:
            if mode not in _modes.FORWARD_MODES:
                continue
            try:
                ((tangents, _),) = _modes.run(mode, run, [to_tensors(function.values + directions)])
            except Exception as error:
                self.add_exception(mode, "tangent", [reference.name for reference in references], error)
                continue
            for reference, tangent in zip(references, tangents, strict=True):
                self._compare(mode, "tangent", reference, tangent, hint)
            ((multiples, _),) = _modes.run(mode, run, [to_tensors(function.values + [-2.0 * d for d in directions])])
            for reference, tangent, multiple in zip(references, tangents, multiples, strict=True):
                array = to_double_precision(tf.zeros(reference.shape) if tangent is None else -2.0 * tangent)
                name = f"{reference.name}, for -2 times the tangents"
                exact = exact_reference(name, array, reference.dtype, "linear in the tangents")
                not_linear = lambda *_: _hints.TANGENT_NOT_LINEAR  # noqa: E731
                self._compare(mode, "tangent", exact, multiple, not_linear, only_failures=True)

    def add_exception(self, mode: str, order: str, names: Sequence[str], error: Exception) -> None:
        """Adds an exception as a failure of its mode. The other modes are still compared."""
        where = (mode, order, ", ".join(names))
        self.comparisons.append(Comparison(*where, passed=False, problem=in_one_line(error), raised=True))
        self.error = error

    def _compare(
        self,
        mode: str,
        order: str,
        reference: Reference,
        actual: Any,
        hint: Hint | None,
        tolerances: Tolerances | None = None,
        only_failures: bool = False,
    ) -> None:
        is_none = actual is None
        array = np.zeros(reference.shape) if is_none else to_double_precision(actual)
        comparison = compare_with_reference(
            reference,
            array,
            reference.dtype if is_none else actual.dtype,
            _modes.tolerances_in(mode, tolerances or self.tolerances, reference.size),
            nonfinite_may_agree=hint is None,
            mode=mode,
            order=order,
            is_none=is_none,
        )
        if hint is not None and not comparison.passed and not comparison.problem:
            text = "The gradient is None: for TensorFlow, the value does not depend on the argument."
            if not is_none:
                with np.errstate(all="ignore"):
                    text = hint(reference, array)
            comparison = dataclasses.replace(comparison, hint=text)
        if not (only_failures and comparison.passed):
            self.comparisons.append(comparison)


def _gradients_and_values(function: FlatFunction, tensors: list[tf.Tensor]) -> _modes.Results:
    count = len(function.values)
    outputs, others, gradients = function.gradients(tensors[:count], tensors[count:])
    return gradients, outputs + others


def _tangents_and_values(function: FlatFunction, tensors: list[tf.Tensor]) -> _modes.Results:
    count = len(function.values)
    with tf.autodiff.ForwardAccumulator(tensors[:count], tensors[count:]) as accumulator:
        outputs, _ = function.call(tensors[:count])
    return [accumulator.jvp(output) for output in outputs], outputs


def has_linear_tangents(function: FlatFunction, seed: int) -> bool:
    """Whether the tangents in eager mode are linear; True if they cannot be computed, because the modes report that."""
    directions = [RandomNumbers(seed).draw_like(x) for x in function.values]

    def tangents(factor: float) -> Arrays:
        scaled = [factor * direction for direction in directions]
        found, outputs = _tangents_and_values(function, to_tensors(function.values + scaled))
        return [to_double_precision(tf.zeros_like(y) if t is None else t) for y, t in zip(outputs, found, strict=True)]

    try:
        once, multiples = tangents(1.0), tangents(-2.0)
    except Exception:
        return True
    return all(
        np.allclose(-2.0 * t, m, rtol=1e-5, atol=1e-9 * np.max(np.abs(t), initial=0.0), equal_nan=True)
        for t, m in zip(once, multiples, strict=True)
    )
