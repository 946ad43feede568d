"""The Python side of `numpy_function`: calls the user's function with arrays and checks its results."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text

_API = "numpy_function"


@dataclasses.dataclass(frozen=True)
class Input:
    """A Tensor among the arguments: its position among their leaves, and its static properties."""

    position: int
    name: str
    shape: tf.TensorShape
    dtype: tf.DType
    differentiable: bool


@dataclasses.dataclass(frozen=True, eq=False)
class PythonCall:
    """One call of the function. It holds no Tensors, since it lives as long as the graph that calls it, or longer.

    `structure` is that of the arguments; `leaves` are their leaves, with None for each Tensor.
    """

    function: Callable[..., Any]
    structure: Any
    leaves: list[Any]
    inputs: list[Input]
    output: tf.TensorSpec
    elementwise: bool
    batched: bool

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """Takes one array for each input; returns the value, and one gradient for each differentiable input."""
        leaves = list(self.leaves)
        for spec, array in zip(self.inputs, arrays, strict=True):
            # A copy: the array may be the memory of a Tensor.
            leaves[spec.position] = np.array(array, dtype=object if spec.dtype == tf.string else None)
        shapes = [leaves[spec.position].shape for spec in self._x]  # Before the function may change them.
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        answer = self.function(*args, **kwargs)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise TypeError(
                f"{self._subject} did not return its value with its gradient; expected a pair (value, gradients), got "
                f"{text.describe_type(answer)}. End it with: return value, gradients"
            )
        value = self._to_array(answer[0], "value", self.output.dtype)
        value_shape, event_shapes = self._expected_shapes(shapes)
        self._check_shape("value", value.shape, value_shape)
        gradients = self._list_of_gradients(answer[1])
        return [
            value.astype(self.dtype.as_numpy_dtype, copy=False),
            *(self._gradient(*row, value.shape) for row in zip(gradients, self._x, event_shapes, strict=True)),
        ]

    def specs(self) -> list[tf.TensorSpec]:
        """The static shapes and the dtype of the arrays that a call returns."""
        if self.batched:
            self._check_batch([spec.shape for spec in self._x])
        shape = tf.TensorShape([None] if self.batched else []).concatenate(self.output.shape)
        shapes = [shape]
        for spec in self._x:
            size = spec.shape[1:].num_elements() if self.batched and spec.shape.rank else None
            event_shape = tf.TensorShape([size]) if self.batched else spec.shape
            shapes.append(shape if self.elementwise else shape.concatenate(event_shape))
        return [tf.TensorSpec(shape, self.dtype) for shape in shapes]

    @property
    def dtype(self) -> tf.DType:
        """The dtype of value and gradients: a real value has complex gradients with respect to complex inputs."""
        if self.output.dtype.is_complex or not any(spec.dtype.is_complex for spec in self._x):
            return self.output.dtype
        return tf.complex128 if self.output.dtype == tf.float64 else tf.complex64

    @property
    def _x(self) -> list[Input]:
        return [spec for spec in self.inputs if spec.differentiable]

    @property
    def _subject(self) -> str:
        """The start of the messages about results."""
        return f"{_API}: '{text.name_of(self.function)}'"

    def _expected_shapes(self, x: list[tuple[int, ...]]) -> tuple[tuple[int | None, ...], list[tuple[int, ...]]]:
        """The shape of the value, and the event shape of each input: a gradient has the shape value + event."""
        if self.elementwise:
            return np.broadcast_shapes(*x), [()] * len(x)
        shape = tuple(self.output.shape.as_list())
        if not self.batched:
            return shape, x
        self._check_batch([tf.TensorShape(x_shape) for x_shape in x])
        return (x[0][0] if x else None, *shape), [x_shape[1:] for x_shape in x]

    def _check_batch(self, x: Sequence[tf.TensorShape]) -> None:
        leading = [shape[:1] for shape in x if shape.rank is not None]
        if not all(size.rank == 1 and size.is_compatible_with(leading[0]) for size in leading):
            got = ", ".join(f"shape {shape} for {spec.name!r}" for shape, spec in zip(x, self._x, strict=True))
            raise ValueError(
                f"{_API}: the differentiable inputs of '{text.name_of(self.function)}' are not one batch; expected the "
                f"same leading dimension for all, got {got}. Broadcast them, or name an input that has no gradient in "
                "nondiff_argnames."
            )

    def _gradient(
        self, gradient: Any, spec: Input, event_shape: tuple[int, ...], value_shape: tuple[int, ...]
    ) -> np.ndarray:
        noun = f"gradient for {spec.name!r}"
        if gradient is None:
            raise ValueError(
                f"{self._subject} returned no {noun}; expected an array, got None. Name an input that has no gradient "
                "in nondiff_argnames."
            )
        may_be_complex = spec.dtype.is_complex or self.output.dtype.is_complex
        array = self._to_array(gradient, noun, self.dtype if may_be_complex else self.output.dtype)
        self._check_shape(noun, array.shape, (*value_shape, *event_shape))
        array = array.astype(self.dtype.as_numpy_dtype, copy=False)
        return array.reshape(*value_shape, int(np.prod(event_shape))) if self.batched else array

    def _list_of_gradients(self, gradients: Any) -> list[Any]:
        expected = len(self._x)
        is_list = isinstance(gradients, (tuple, list))
        # With one input, a list may be the gradient itself.
        if expected == 1 and not (is_list and len(gradients) == 1 and isinstance(gradients[0], np.ndarray)):
            return [gradients]
        if expected == 0 and gradients is None:
            return []
        if not is_list or len(gradients) != expected:
            got = str(len(gradients)) if is_list else text.describe_type(gradients)
            raise ValueError(
                f"{self._subject} returned a wrong number of gradients; expected {expected} (one for each "
                f"differentiable input: {text.quoted(spec.name for spec in self._x)}), got {got}. Name inputs that "
                "have no gradient in nondiff_argnames."
            )
        return list(gradients)

    def _to_array(self, result: Any, noun: str, dtype: tf.DType) -> np.ndarray:
        """A copy in this dtype: the function may reuse its memory."""
        try:
            array = np.asarray(result)
        except ValueError:  # Lists of different lengths.
            array = np.asarray(None)
        if array.dtype.kind in "OSUmM":
            raise ValueError(
                f"{self._subject} returned a {noun} that is not an array of numbers; expected numbers, got "
                f"{text.describe(result)}. Return NumPy arrays."
            )
        if array.dtype.kind == "c" and not dtype.is_complex:
            raise ValueError(
                f"{self._subject} returned a complex {noun}; expected {dtype.name}, got {array.dtype.name}. Return its "
                "real part, or make the dtype of output complex."
            )
        return array.astype(dtype.as_numpy_dtype)

    def _check_shape(self, noun: str, got: tuple[int, ...], expected: tuple[int | None, ...]) -> None:
        if tf.TensorShape(expected).is_compatible_with(got):
            return
        if self.elementwise:
            hint = (
                "Without an output, value and gradients have the shape to which the inputs broadcast: for anything "
                "else pass output=tf.TensorSpec(shape, dtype)."
            )
        elif self.batched:
            hint = (
                "With batched=True the value is [batch] + output.shape and a gradient [batch] + output.shape + "
                "x.shape[1:]."
            )
        else:
            hint = "The value has output.shape and a gradient output.shape + x.shape."
        raise ValueError(
            f"{self._subject} returned a {noun} of the wrong shape; expected {tf.TensorShape(expected)}, got "
            f"{tf.TensorShape(got)}. {hint}"
        )
