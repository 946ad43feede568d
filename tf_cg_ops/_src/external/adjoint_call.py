"""The Python side of `numpy_function` with `vjp`: calls the user's functions and checks their results."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, text
from tf_cg_ops._src.core.signature import mismatched_signature
from tf_cg_ops._src.external import results
from tf_cg_ops._src.external.arguments import API, Arguments


class Kept(NamedTuple):
    """The residuals of a call, and the shapes of its inputs and of its value."""

    residuals: Any
    x_shapes: list[tuple[int, ...]]
    value_shapes: list[tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class AdjointCall:
    """One call of the function, and of its `vjp` and `jvp` if somebody asks for them."""

    arguments: Arguments
    vjp: Callable[..., Any]
    jvp: Callable[..., Any] | None
    output: Any  # TensorSpecs in the structure of the value.
    elementwise: bool
    batched: bool
    takes_needed: bool

    def value(self, *arrays: Any) -> tuple[list[np.ndarray], Kept]:
        """Takes one array for each input; returns the leaves of the value."""
        subject = self.arguments.subject
        answer, x_shapes = self.arguments.call(arrays)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(
                f"{subject} did not return its value with its residuals; expected a pair (value, residuals), since "
                f"there is a vjp, got {text.describe_type(answer)}. End it with: return value, residuals"
            )
        if self.batched:
            self.arguments.check_batch([tf.TensorShape(shape) for shape in x_shapes])
        prefix = (x_shapes[0][:1] if x_shapes else (None,)) if self.batched else ()
        elementwise = self._broadcast(x_shapes) if self.elementwise else None
        values = []
        shapes = []
        for leaf, (noun, dtype, shape) in zip(self._leaves("value", answer[0], subject), self._rows, strict=True):
            value = results.to_array(subject, leaf, noun, dtype)
            expected = (prefix + shape if prefix else shape) if elementwise is None else elementwise
            if value.shape != expected:  # The check takes longer than all the rest.
                hint = f"It has the shape of output{', after that of the batch' if self.batched else ''}."
                if self.elementwise:
                    hint = "Without an output it has the shape to which the inputs broadcast."
                results.check_shape(subject, noun, value.shape, expected, hint)
            values.append(value)
            shapes.append(value.shape)
        return values, Kept(answer[1], x_shapes, shapes)

    def gradients(self, kept: Kept, needed: Sequence[bool], dys: Sequence[Any]) -> list[np.ndarray]:
        """The vector-Jacobian products that are needed, from one upstream gradient for each leaf of the value."""
        options = {"needed": tuple(needed)} if self.takes_needed else {}
        subject = f"{API}: vjp of '{text.name_of(self.arguments.function)}'"
        answer = _call(subject, "vjp", self.vjp, kept, dys, options)
        gradients = results.one_for_each_input(subject, answer, self.arguments)
        rows = zip(gradients, self.arguments.x, kept.x_shapes, needed, strict=True)
        hint = "A gradient has the shape of its input."
        checked = []
        for gradient, spec, shape, is_needed in rows:
            if is_needed:
                noun = f"gradient for {spec.name!r}"
                checked.append(results.to_array(subject, results.not_none(subject, gradient, noun), noun, spec.dtype))
                results.check_shape(subject, noun, checked[-1].shape, shape, hint)
        return checked

    def tangents(self, kept: Kept, tangents: Sequence[Any]) -> list[np.ndarray]:
        """The tangent of each leaf of the value that has one, from one tangent for each differentiable input."""
        assert self.jvp is not None
        subject = f"{API}: jvp of '{text.name_of(self.arguments.function)}'"
        answer = _call(subject, "jvp", self.jvp, kept, tangents, {})
        checked = []
        leaves = self._leaves("tangent", answer, subject)
        for leaf, (noun, dtype, _), shape in zip(leaves, self._rows, kept.value_shapes, strict=True):
            if dtype in convert.DTYPES:
                noun = noun.replace("value", "tangent")
                checked.append(results.to_array(subject, leaf, noun, dtype))
                results.check_shape(subject, noun, checked[-1].shape, shape, "It has the shape of the value.")
        return checked

    @functools.cached_property
    def specs(self) -> list[tf.TensorSpec]:
        """The leaves of the output: the shapes and dtypes of one value, without the batch."""
        return tf.nest.flatten(self.output)

    def value_specs(self) -> list[tf.TensorSpec]:
        """The static shapes and dtypes of the leaves of the value."""
        x = [spec.shape for spec in self.arguments.x]
        if not self.batched:
            return self.specs
        self.arguments.check_batch(x)
        batch = next((shape[:1] for shape in x if shape.rank and shape[0] is not None), tf.TensorShape([None]))
        return [tf.TensorSpec(batch.concatenate(spec.shape), spec.dtype) for spec in self.specs]

    def _leaves(self, noun: str, answer: Any, subject: str) -> list[Any]:
        if isinstance(self.output, tf.TensorSpec):
            return [answer]
        try:
            return pytree.flatten_up_to(self.output, answer)
        except ValueError:
            raise ValueError(
                f"{subject} returned a {noun} of another structure; expected that of output, {self.output}, got "
                f"{text.describe(answer)}. Return one array for each TensorSpec."
            ) from None

    @staticmethod
    def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return shapes[0] if len(shapes) == 1 else np.broadcast_shapes(*shapes)

    @functools.cached_property
    def _rows(self) -> list[tuple[str, tf.DType, tuple[int | None, ...]]]:
        """The name of each leaf of the value in messages, its dtype, and its shape without the batch.

        The shape is not used if the function is elementwise.
        """
        count = len(self.specs)
        nouns = ["value"] if count == 1 else [f"value (leaf {i} of {count})" for i in range(count)]
        shapes = [() if self.elementwise else tuple(spec.shape.as_list()) for spec in self.specs]
        return [(noun, spec.dtype, shape) for noun, spec, shape in zip(nouns, self.specs, shapes, strict=True)]


def _call(
    subject: str, kind: str, rule: Callable[..., Any], kept: Kept, vectors: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Calls a `vjp` or `jvp`; TypeError if its parameters do not fit."""
    args = [kept.residuals, *[np.array(vector) for vector in vectors]]
    try:
        return rule(*args, **options)
    except TypeError as error:
        signature = mismatched_signature(rule, args, options)
        if signature is None:
            raise
        noun, name = ("upstream gradient", "dy") if kind == "vjp" else ("tangent", "tangents")
        raise TypeError(
            f"{subject} does not take its residuals and {noun}s; expected parameters for residuals and "
            f"{text.count(len(vectors), noun)}, got {kind}{signature}. Write {kind}(residuals, *{name})."
        ) from error
