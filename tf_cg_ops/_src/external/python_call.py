"""The Python side of `numpy_function` without `vjp`: the user's function returns its value with its gradients."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.external import results
from tf_cg_ops._src.external.arguments import Arguments, Input


@dataclasses.dataclass(frozen=True, eq=False)
class PythonCall:
    """One call of the function, which computes value and gradients together."""

    arguments: Arguments
    output: tf.TensorSpec
    elementwise: bool
    batched: bool

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """Takes one array for each input; returns the value, and one gradient for each differentiable input."""
        answer, shapes = self.arguments.call(arrays)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise TypeError(
                f"{self.arguments.subject} did not return its value with its gradient; expected a pair (value, "
                f"gradients), got {text.describe_type(answer)}. End it with: return value, gradients"
            )
        value = results.to_array(self.arguments.subject, answer[0], "value", self.output.dtype)
        value_shape, event_shapes = self._expected_shapes(shapes)
        self._check_shape("value", value.shape, value_shape)
        gradients = results.one_for_each_input(self.arguments.subject, answer[1], self.arguments)
        rows = zip(gradients, self.arguments.x, event_shapes, strict=True)
        return [
            value.astype(self.dtype.as_numpy_dtype, copy=False),
            *(self._gradient(*row, value.shape) for row in rows),
        ]

    def specs(self) -> list[tf.TensorSpec]:
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
        """The dtype of value and gradients: a real value has complex gradients with respect to complex inputs."""
        if self.output.dtype.is_complex or not any(spec.dtype.is_complex for spec in self.arguments.x):
            return self.output.dtype
        return tf.complex128 if self.output.dtype == tf.float64 else tf.complex64

    def _expected_shapes(self, x: list[tuple[int, ...]]) -> tuple[tuple[int | None, ...], list[tuple[int, ...]]]:
        """The shape of the value, and the event shape of each input: a gradient has the shape value + event."""
        if self.elementwise:
            return np.broadcast_shapes(*x), [()] * len(x)
        shape = tuple(self.output.shape.as_list())
        if not self.batched:
            return shape, x
        self.arguments.check_batch([tf.TensorShape(x_shape) for x_shape in x])
        return (x[0][0] if x else None, *shape), [x_shape[1:] for x_shape in x]

    def _gradient(
        self, gradient: Any, spec: Input, event_shape: tuple[int, ...], value_shape: tuple[int, ...]
    ) -> np.ndarray:
        noun = f"gradient for {spec.name!r}"
        gradient = results.not_none(self.arguments.subject, gradient, noun)
        may_be_complex = spec.dtype.is_complex or self.output.dtype.is_complex
        dtype = self.dtype if may_be_complex else self.output.dtype
        array = results.to_array(self.arguments.subject, gradient, noun, dtype)
        self._check_shape(noun, array.shape, (*value_shape, *event_shape))
        array = array.astype(self.dtype.as_numpy_dtype, copy=False)
        return array.reshape(*value_shape, int(np.prod(event_shape))) if self.batched else array

    def _check_shape(self, noun: str, got: tuple[int, ...], expected: tuple[int | None, ...]) -> None:
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
        results.check_shape(self.arguments.subject, noun, got, expected, hint)
