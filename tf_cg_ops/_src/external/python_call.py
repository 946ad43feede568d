"""The Python side of `numpy_function`: calls the user's function with arrays and checks what it returns."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import text

_API = "numpy_function"


@dataclasses.dataclass(frozen=True)
class Input:
    """What is known about a Tensor among the arguments, and where it stands among their leaves."""

    position: int
    name: str
    shape: tf.TensorShape
    dtype: tf.DType
    differentiable: bool


@dataclasses.dataclass(frozen=True, eq=False)
class PythonCall:
    """One call of the function. It holds no Tensor: it lives as long as the graph that calls it, or longer.

    `structure` is that of the arguments, `leaves` are those that are no Tensors, in their places.
    """

    function: Callable[..., Any]
    structure: Any
    leaves: list[Any]
    inputs: list[Input]
    output: tf.TensorSpec
    elementwise: bool
    batched: bool

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """From one array for each input to the value and one gradient for each differentiable one."""
        leaves = list(self.leaves)
        for own, array in zip(self.inputs, arrays, strict=True):
            # A copy: the array may be the memory of a Tensor.
            leaves[own.position] = np.array(array, dtype=object if own.dtype == tf.string else None)
        shapes = [leaves[own.position].shape for own in self._x]  # Before the function may change them.
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        answer = self.function(*args, **kwargs)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise TypeError(errors.NUMPY_NOT_A_PAIR.format(**self._where, got=text.describe_type(answer)))
        value = self._to_array(answer[0], "value", self.output.dtype)
        expected, domains = self._expected(shapes)
        self._check_shape("value", value.shape, expected)
        gradients = self._list_of_gradients(answer[1])
        return [
            value.astype(self.dtype.as_numpy_dtype, copy=False),
            *(self._gradient(*row, value.shape) for row in zip(gradients, self._x, domains, strict=True)),
        ]

    def specs(self) -> list[tf.TensorSpec]:
        """What is known about the arrays that a call gives."""
        if self.batched:
            self._check_batch([own.shape for own in self._x])
        shape = tf.TensorShape([None] if self.batched else []).concatenate(self.output.shape)
        shapes = [shape]
        for own in self._x:
            size = own.shape[1:].num_elements() if self.batched and own.shape.rank else None
            domain = tf.TensorShape([size]) if self.batched else own.shape
            shapes.append(shape if self.elementwise else shape.concatenate(domain))
        return [tf.TensorSpec(shape, self.dtype) for shape in shapes]

    @property
    def dtype(self) -> tf.DType:
        """That of value and gradients: the gradient of a real value by a complex input is complex."""
        if self.output.dtype.is_complex or not any(own.dtype.is_complex for own in self._x):
            return self.output.dtype
        return tf.complex128 if self.output.dtype == tf.float64 else tf.complex64

    @property
    def _x(self) -> list[Input]:
        return [own for own in self.inputs if own.differentiable]

    @property
    def _where(self) -> dict[str, Any]:
        return {"api": _API, "function": text.name_of(self.function)}

    def _expected(self, x: list[tuple[int, ...]]) -> tuple[tuple[int | None, ...], list[tuple[int, ...]]]:
        """The shape of the value, and for each input what a gradient has behind it."""
        if self.elementwise:
            return np.broadcast_shapes(*x), [()] * len(x)
        shape = tuple(self.output.shape.as_list())
        if not self.batched:
            return shape, x
        self._check_batch([tf.TensorShape(own) for own in x])
        return (x[0][0] if x else None, *shape), [own[1:] for own in x]

    def _check_batch(self, x: Sequence[tf.TensorShape]) -> None:
        leading = [shape[:1] for shape in x if shape.rank is not None]
        if not all(size.rank == 1 and size.is_compatible_with(leading[0]) for size in leading):
            got = ", ".join(f"shape {shape} for {own.name!r}" for shape, own in zip(x, self._x, strict=True))
            raise ValueError(errors.NUMPY_BATCH_SIZES.format(**self._where, got=got))

    def _gradient(self, gradient: Any, own: Input, domain: tuple[int, ...], value: tuple[int, ...]) -> np.ndarray:
        kind = f"gradient for {own.name!r}"
        if gradient is None:
            raise ValueError(errors.NUMPY_NO_GRADIENT.format(**self._where, argument=own.name))
        may_be_complex = own.dtype.is_complex or self.output.dtype.is_complex
        array = self._to_array(gradient, kind, self.dtype if may_be_complex else self.output.dtype)
        self._check_shape(kind, array.shape, (*value, *domain))
        array = array.astype(self.dtype.as_numpy_dtype, copy=False)
        return array.reshape(*value, int(np.prod(domain))) if self.batched else array

    def _list_of_gradients(self, gradients: Any) -> list[Any]:
        expected = len(self._x)
        is_list = isinstance(gradients, (tuple, list))
        # Where there is one input, a list may also be the array.
        if expected == 1 and not (is_list and len(gradients) == 1 and isinstance(gradients[0], np.ndarray)):
            return [gradients]
        if expected == 0 and gradients is None:
            return []
        if not is_list or len(gradients) != expected:
            got = str(len(gradients)) if is_list else text.describe_type(gradients)
            names = ", ".join(repr(own.name) for own in self._x)
            raise ValueError(errors.NUMPY_COUNT.format(**self._where, expected=expected, names=names, got=got))
        return list(gradients)

    def _to_array(self, result: Any, kind: str, dtype: tf.DType) -> np.ndarray:
        """A copy in that dtype: the function may go on to use its own memory."""
        try:
            array = np.asarray(result)
        except ValueError:  # A list of lists of several lengths.
            array = np.asarray(None)
        if array.dtype.kind in "OSUmM":
            raise ValueError(errors.NUMPY_NO_NUMBERS.format(**self._where, kind=kind, got=text.describe(result)))
        if array.dtype.kind == "c" and not dtype.is_complex:
            where = self._where | {"kind": kind, "expected": dtype.name, "got": array.dtype.name}
            raise ValueError(errors.NUMPY_COMPLEX.format(**where))
        return array.astype(dtype.as_numpy_dtype)

    def _check_shape(self, kind: str, got: tuple[int, ...], expected: tuple[int | None, ...]) -> None:
        if tf.TensorShape(expected).is_compatible_with(got):
            return
        remedy = (
            (
                "With batched=True the value is [batch] + output.shape and a gradient [batch] + output.shape + "
                "x.shape[1:]."
            )
            if self.batched
            else ("The value has output.shape and a gradient output.shape + x.shape.")
        )
        if self.elementwise:
            remedy = (
                "Without an output, value and gradients have the shape to which the inputs broadcast: for "
                "anything else pass output=tf.TensorSpec(shape, dtype)."
            )
        where = self._where | {"kind": kind, "expected": tf.TensorShape(expected), "got": tf.TensorShape(got)}
        raise ValueError(errors.NUMPY_SHAPE.format(**where, remedy=remedy))
