"""Values, gradients and tangents as each mode computes them, compared with what they should be."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from . import _errors, _hints, _modes
from ._exceptions import in_one_line
from ._problem import Arrays, Problem, tensors_of, wide
from ._references import RandomNumbers, names_of_values
from ._report import Comparison, Reference, Tolerances, compare, exactly

# How many different arguments and upstreams a batch has.
_BATCH = 3
# Gradients whose multiples neither overflow nor underflow in float64, nor are numbers in between likely to.
_LEAST, _MOST = 1e-280, 1e280

# Says what a wrong derivative is instead.
Hint = Callable[[Reference, np.ndarray], str]


class ModeComparisons:
    """The comparisons of one `check_gradient`, and the last exception that a mode failed with."""

    def __init__(self, modes: Sequence[str], tolerances: Tolerances) -> None:
        self.comparisons: list[Comparison] = []
        self.error: Exception | None = None
        self._modes = modes
        self._tolerances = tolerances

    def gradients(
        self,
        order: str,
        problem: Problem,
        meant: Problem | None,
        upstream: Arrays,
        references: list[Reference],
        numbers: RandomNumbers,
    ) -> None:
        """The gradients and, at first order, the values. In a batch, all but the first are compared to eager mode.

        `meant` is the function whose gradient is meant, if there is one: for hints.
        """
        count = len(problem.values)

        def function(tensors: list[tf.Tensor]) -> _modes.Computed:
            outputs, others, gradients = problem.gradients(tensors[:count], tensors[count:])
            return gradients, outputs + others

        def hint(reference: Reference, gradient: np.ndarray) -> str:
            place = references.index(reference)
            # What another mode agrees with is known well enough.
            is_known = any(c.passed and (c.order, c.name) == (order, reference.name) for c in self.comparisons)
            text = _hints.from_numbers(reference, references if order == "first" else [], gradient, is_known)
            if not text and meant is not None:
                text = _hints.from_upstreams(problem, meant, upstream, place, reference, gradient)
            return text or _hints.from_ratio(reference, gradient)

        inputs = [tensors_of(problem.values + upstream)]
        for _ in range(1, _BATCH):
            near = [numbers.near(x) for x in problem.values]
            inputs.append(tensors_of(near + [numbers.like(dy) for dy in upstream]))
        outputs, others = problem.call(inputs[0][:count])
        for mode in self._modes:
            try:
                results = _modes.run(mode, function, inputs)
                in_eager_mode = [_modes.run("eager", function, [own])[0] for own in inputs[1 : len(results)]]
            except Exception as error:
                self.raised(mode, order, problem.names, error)
                continue
            gradients, values = results[0]
            if order == "first":
                self._values(mode, values, outputs + others)
            for reference, gradient in zip(references, gradients, strict=True):
                self._compare(mode, order, reference, gradient, hint)
            if meant is not None and order == "first" and mode == self._modes[0]:
                self._linearity(mode, function, problem, upstream, references, gradients)
            for k, ((gradients, _), (expected, _)) in enumerate(zip(results[1:], in_eager_mode, strict=True), start=1):
                for own, gradient, in_eager in zip(references, gradients, expected, strict=True):
                    array = np.zeros(own.shape, own.dtype.as_numpy_dtype) if in_eager is None else wide(in_eager)
                    reference = exactly(
                        f"{own.name}, {k + 1} of {len(results)} in a batch", array, own.dtype, "eager mode"
                    )
                    self._compare(mode, order, reference, gradient, None)

    def _linearity(
        self,
        mode: str,
        function: Callable[[list[tf.Tensor]], _modes.Computed],
        problem: Problem,
        upstream: Arrays,
        references: list[Reference],
        gradients: list[Any],
    ) -> None:
        """Only what is not linear in the upstream is reported, and not what is wrong already."""
        wrong = {c.name for c in self.comparisons if c.mode == mode and c.order == "first" and not c.passed}
        for factor in _hints.FACTORS:
            tolerances = Tolerances(self._tolerances.rtol, self._tolerances.atol * max(factor, 1.0))
            scaled = tensors_of(problem.values + [factor * dy for dy in upstream])
            try:
                ((found, _),) = _modes.run(mode, function, [scaled] * (_BATCH if mode == "vectorized" else 1))[:1]
            except Exception as error:
                self.raised(mode, "first", problem.names, error)
                return
            for own, gradient, multiple in zip(references, gradients, found, strict=True):
                if gradient is None or own.name in wrong:
                    continue
                array = wide(gradient).ravel()[own.elements]
                if not _LEAST < np.max(np.abs(array), initial=0.0) < _MOST:
                    continue
                estimate = dataclasses.replace(own.estimate, value=array).times(factor)
                name = f"{own.name}, for an upstream {factor:g} times as large"
                reference = Reference(name, own.shape, own.dtype, "linear in the upstream", own.elements, estimate)
                self._compare(mode, "first", reference, multiple, lambda *_: _errors.HINT_NOT_LINEAR, tolerances)
                if self.comparisons[-1].passed:
                    self.comparisons.pop()

    def _values(self, mode: str, values: Sequence[tf.Tensor], expected: Sequence[tf.Tensor]) -> None:
        for name, value, eager in zip(names_of_values(len(expected)), values, expected, strict=True):
            self._compare(mode, "value", exactly(name, wide(eager), eager.dtype, "eager mode"), value, None)

    def tangents(self, problem: Problem, directions: Arrays, references: list[Reference]) -> None:
        """The tangents of the outputs, in the modes that have forward mode."""
        count = len(problem.values)

        def function(tensors: list[tf.Tensor]) -> _modes.Computed:
            with tf.autodiff.ForwardAccumulator(tensors[:count], tensors[count:]) as accumulator:
                outputs, _ = problem.call(tensors[:count])
            return [accumulator.jvp(output) for output in outputs], outputs

        def hint(reference: Reference, tangent: np.ndarray) -> str:
            return _hints.from_numbers(reference, [], tangent, False) or _hints.from_ratio(reference, tangent)

        for mode in self._modes:
            if mode not in _modes.FORWARD_MODES:
                continue
            try:
                ((found, _),) = _modes.run(mode, function, [tensors_of(problem.values + directions)])
            except Exception as error:
                self.raised(mode, "tangent", [reference.name for reference in references], error)
                continue
            for reference, tangent in zip(references, found, strict=True):
                self._compare(mode, "tangent", reference, tangent, hint)

    def raised(self, mode: str, order: str, names: Sequence[str], error: Exception) -> None:
        """An exception is a failure of its mode, and no reason not to look at the others."""
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
    ) -> None:
        is_none = actual is None
        array = np.zeros(reference.shape) if is_none else wide(actual)
        comparison = compare(
            reference,
            array,
            reference.dtype if is_none else actual.dtype,
            tolerances or self._tolerances,
            nonfinite_may_agree=hint is None,
            mode=mode,
            order=order,
            is_none=is_none,
        )
        if hint is not None and not comparison.passed and not comparison.problem:
            with np.errstate(all="ignore"):
                text = (
                    ("The gradient is None: the value does not depend on it for TensorFlow.")
                    if is_none
                    else hint(reference, array)
                )
            comparison = dataclasses.replace(comparison, hint=text)
        self.comparisons.append(comparison)
