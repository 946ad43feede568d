"""The Python side of `numpy_function`: calls the user's functions with arrays, and checks what they return."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, text
from tf_cg_ops._src.core.signature import mismatched_signature
from tf_cg_ops._src.external.arguments import API, Arguments, Input

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """One call of the function."""

    arguments: Arguments
    output: Any  # TensorSpecs in the structure of the value.
    elementwise: bool
    batched: bool

    @functools.cached_property
    def specs(self) -> list[tf.TensorSpec]:
        """The leaves of the output: the shapes and dtypes of one value, without the batch."""
        return tf.nest.flatten(self.output)

    @functools.cached_property
    def _shapes(self) -> list[tuple[int | None, ...]]:
        return [tuple(spec.shape.as_list()) for spec in self.specs]

    def expected_shapes(self, x_shapes: list[Shape]) -> list[tuple[int | None, ...]]:
        """The shape of each leaf of the value, for these shapes of the differentiable inputs."""
        if self.elementwise:
            return [x_shapes[0] if len(x_shapes) == 1 else np.broadcast_shapes(*x_shapes)]
        if not self.batched:
            return self._shapes
        self.arguments.check_batch([tf.TensorShape(shape) for shape in x_shapes])
        batch = x_shapes[0][:1] if x_shapes else (None,)
        return [(*batch, *shape) for shape in self._shapes]


class ValueWithGradients(_Call):
    """A call of a function that computes value and gradients together."""

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """Takes one array for each input; returns the value, and one gradient for each differentiable input."""
        answer, x_shapes, _ = self.arguments.call(arrays)
        subject = self.arguments.subject
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise TypeError(
                f"{subject} must return a pair (value, gradients), got {text.describe_type(answer)}. End it with: "
                "return value, gradients"
            )
        value = _to_array(subject, answer[0], "value", self.output.dtype)
        (expected,) = self.expected_shapes(x_shapes)
        self._check_shape("value", value.shape, expected)
        gradients = one_for_each_input(subject, answer[1], self.arguments)
        rows = zip(gradients, self.arguments.x, x_shapes, strict=True)
        return [
            value.astype(self.dtype.as_numpy_dtype, copy=False),
            *(self._gradient(*row, value.shape) for row in rows),
        ]

    def value_specs(self) -> list[tf.TensorSpec]:
        """The static shapes and the dtype of the arrays that a call returns."""
        x = self.arguments.x
        if self.batched:
            self.arguments.check_batch([spec.shape for spec in x])
        shape = tf.TensorShape([None] if self.batched else []).concatenate(self.output.shape)
        shapes = [shape]
        for spec in x:
            size = spec.shape[1:].num_elements() if self.batched and spec.shape.rank else None
            event_shape = tf.TensorShape([size]) if self.batched else spec.shape
            shapes.append(shape if self.elementwise else shape.concatenate(event_shape))
        return [tf.TensorSpec(shape, self.dtype) for shape in shapes]

    @property
    def dtype(self) -> tf.DType:
        """The dtype of value and gradients: complex if an input is, because its gradient is complex."""
        if self.output.dtype.is_complex or not any(spec.dtype.is_complex for spec in self.arguments.x):
            return self.output.dtype
        return tf.complex128 if self.output.dtype == tf.float64 else tf.complex64

    def _gradient(self, gradient: Any, spec: Input, x_shape: Shape, value_shape: Shape) -> np.ndarray:
        may_be_complex = spec.dtype.is_complex or self.output.dtype.is_complex
        dtype = self.dtype if may_be_complex else self.output.dtype
        noun, array = _gradient_to_array(self.arguments.subject, gradient, spec.name, dtype)
        event_shape = () if self.elementwise else x_shape[1:] if self.batched else x_shape
        self._check_shape(noun, array.shape, (*value_shape, *event_shape))
        array = array.astype(self.dtype.as_numpy_dtype, copy=False)
        return array.reshape(*value_shape, int(np.prod(event_shape))) if self.batched else array

    def _check_shape(self, noun: str, got: Shape, expected: tuple[int | None, ...]) -> None:
        hint = "The value has output.shape and a gradient output.shape + x.shape."
        if self.elementwise:
            hint = (
                "Without an output, value and gradients have the shape to which the inputs broadcast. For any other "
                "shape, pass output=tf.TensorSpec(shape, dtype)."
            )
        elif self.batched:
            hint = (
                "With batched=True the value is [batch] + output.shape and a gradient [batch] + output.shape + "
                "x.shape[1:]."
            )
        _check_shape(self.arguments.subject, noun, got, expected, hint)


class Kept(NamedTuple):
    """What a call keeps for its derivatives: residuals, arguments without a gradient, and shapes."""

    residuals: Any
    nondiff: dict[str, Any]
    x_shapes: list[Shape]
    value_shapes: list[Shape]


@dataclasses.dataclass(frozen=True, eq=False)
class AdjointCall(_Call):
    """A call of a function that returns residuals, and later of its `vjp` and `jvp`."""

    vjp: Callable[..., Any]
    jvp: Callable[..., Any] | None
    takes_needed: bool

    def value(self, *arrays: Any) -> tuple[list[np.ndarray], Kept]:
        """Takes one array for each input; returns the leaves of the value."""
        subject = self.arguments.subject
        answer, x_shapes, nondiff = self.arguments.call(arrays)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(
                f"{subject} must return a pair (value, residuals), since there is a vjp, got "
                f"{text.describe_type(answer)}. End it with: return value, residuals"
            )
        values = []
        all_expected = self.expected_shapes(x_shapes)
        leaves = zip(self._leaves("value", answer[0], subject), self.specs, self._nouns, strict=True)
        for (leaf, spec, noun), expected in zip(leaves, all_expected, strict=True):
            value = _to_array(subject, leaf, noun, spec.dtype)
            if value.shape != expected:  # Compared first, because the check below is slow.
                hint = f"It has the shape {'[batch] + ' if self.batched else ''}output.shape."
                if self.elementwise:
                    hint = "Without an output, it has the shape to which the inputs broadcast."
                _check_shape(subject, noun, value.shape, expected, hint)
            values.append(value)
        return values, Kept(answer[1], nondiff, x_shapes, [value.shape for value in values])

    def gradients(self, kept: Kept, needed: Sequence[bool], dys: Sequence[Any]) -> list[np.ndarray]:
        """The needed vector-Jacobian products, from one upstream gradient for each leaf of the value."""
        options = kept.nondiff | ({"needed": tuple(needed)} if self.takes_needed else {})
        subject = f"{API}: vjp of '{self.arguments.name}'"
        answer = _call(subject, "vjp", self.vjp, kept, dys, options)
        gradients = one_for_each_input(subject, answer, self.arguments)
        checked = []
        for gradient, spec, shape, is_needed in zip(gradients, self.arguments.x, kept.x_shapes, needed, strict=True):
            if is_needed:
                noun, array = _gradient_to_array(subject, gradient, spec.name, spec.dtype)
                _check_shape(subject, noun, array.shape, shape, "A gradient has the shape of its input.")
                checked.append(array)
        return checked

    def tangents(self, kept: Kept, tangents: Sequence[Any]) -> list[np.ndarray]:
        """The tangents of the differentiable leaves of the value, from one tangent for each differentiable input."""
        assert self.jvp is not None
        subject = f"{API}: jvp of '{self.arguments.name}'"
        leaves = self._leaves("tangent", _call(subject, "jvp", self.jvp, kept, tangents, kept.nondiff), subject)
        checked = []
        for leaf, spec, noun, shape in zip(leaves, self.specs, self._nouns, kept.value_shapes, strict=True):
            if spec.dtype in convert.DTYPES:
                noun = noun.replace("value", "tangent")
                checked.append(_to_array(subject, leaf, noun, spec.dtype))
                _check_shape(subject, noun, checked[-1].shape, shape, "It has the shape of the value.")
        return checked

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
                f"{subject} must return a {noun} with the structure of output, {self.output}, got "
                f"{text.describe(answer)}. Return one array for each TensorSpec."
            ) from None

    @functools.cached_property
    def _nouns(self) -> list[str]:
        count = len(self.specs)
        return ["value"] if count == 1 else [f"value (leaf {i} of {count})" for i in range(count)]


def _call(
    subject: str, kind: str, function: Callable[..., Any], kept: Kept, vectors: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Calls a `vjp` or `jvp`; TypeError if its parameters do not fit."""
    args = [kept.residuals, *[np.array(vector) for vector in vectors]]
    try:
        return function(*args, **options)
    except TypeError as error:
        signature = mismatched_signature(function, args, options)
        if signature is None:
            raise
        noun, name = ("upstream gradient", "dy") if kind == "vjp" else ("tangent", "tangents")
        named = f", and {text.quoted(kept.nondiff)} (from nondiff_argnames)" if kept.nondiff else ""
        parameters = ", ".join(["residuals", f"*{name}", *options])
        raise TypeError(
            f"{subject} must take residuals, {text.count(len(vectors), noun)}{named}, got {kind}{signature}. Write "
            f"{kind}({parameters})."
        ) from error


_as_numpy = functools.cache(lambda dtype: dtype.as_numpy_dtype)  # The property is slower than the copy below.


def _to_array(subject: str, result: Any, noun: str, dtype: tf.DType) -> np.ndarray:
    """A copy of a result in this dtype."""
    try:
        array = np.asarray(result)
    except convert.refusals(result):  # Lists of different lengths.
        array = np.asarray(None)
    kind = array.dtype.kind
    if kind in "OSUmM":
        raise TypeError(
            f"{subject} must return an array of numbers as the {noun}, got {text.describe(result)}. Return a NumPy "
            "array."
        )
    if kind == "c" and not dtype.is_complex:
        raise TypeError(
            f"{subject} must return real numbers as the {noun}, got {array.dtype.name}. Return the real part, or make "
            "the dtype of output complex."
        )
    return array.astype(_as_numpy(dtype))  # A copy, because the function can reuse its memory.


def _gradient_to_array(subject: str, gradient: Any, name: str, dtype: tf.DType) -> tuple[str, np.ndarray]:
    """The noun for a gradient, and the gradient as `_to_array`; ValueError if it is None."""
    noun = f"gradient for {name!r}"
    if gradient is None:
        raise ValueError(
            f"{subject} must return a {noun}, got None. Name an input that has no gradient in nondiff_argnames."
        )
    return noun, _to_array(subject, gradient, noun, dtype)


def _check_shape(subject: str, noun: str, got: Shape, expected: tuple[int | None, ...], hint: str) -> None:
    """ValueError if a result has another shape than this one; None stands for any size."""
    if got != expected and not tf.TensorShape(expected).is_compatible_with(got):
        raise ValueError(
            f"{subject} must return a {noun} of shape {tf.TensorShape(expected)}, got {tf.TensorShape(got)}. {hint}"
        )


# Because people return gradients for these, too.
_HAVE_NONE = "Integers, bools and other values without a derivative have none."


def one_for_each_input(subject: str, gradients: Any, arguments: Arguments) -> list[Any]:
    """The gradients as a list, one for each input that has one."""
    expected = len(arguments.x)
    if tf.nest.is_nested(gradients) and not isinstance(gradients, (tuple, list, Mapping)):
        gradients = tuple(tf.nest.flatten(gradients))  # An object of a class that tf.nest opens.
    is_list = isinstance(gradients, (tuple, list))
    # With one differentiable input, a list is the gradient itself, unless it holds one array.
    if expected == 1 and not isinstance(gradients, tuple):
        is_list = is_list and len(gradients) == 1 and isinstance(gradients[0], np.ndarray)
        return list(gradients) if is_list else [gradients]
    if expected == 0 and gradients is None:
        return []
    if not is_list or len(gradients) != expected:
        got = str(len(gradients)) if is_list else text.describe_type(gradients)
        raise ValueError(
            f"{subject} must return {text.count(expected, 'gradient')} (one for each differentiable input: "
            f"{text.quoted(spec.name for spec in arguments.x)}), got {got}. {_HAVE_NONE} Name other inputs "
            "that have no gradient in nondiff_argnames."
        )
    return list(gradients)
