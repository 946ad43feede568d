"""The arguments of a user's Python function: which are Tensors, and which have a gradient."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, text
from tf_cg_ops._src.core.signature import arguments_by_name
from tf_cg_ops._src.core.variables import as_variable

API = "numpy_function"


@dataclasses.dataclass(frozen=True)
class Input:
    """A Tensor among the arguments: its position among the leaves, and its static properties."""

    position: int
    name: str
    shape: tf.TensorShape
    dtype: tf.DType
    differentiable: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of one call, without their Tensors: a graph keeps this object, and must not keep Tensors with it.

    `structure` is the structure of the arguments; `leaves` are their leaves, with None for each Tensor.
    """

    function: Callable[..., Any]
    structure: Any
    leaves: list[Any]
    inputs: list[Input]
    nondiff_argnames: Collection[str]

    # These properties are cached because the Python side of a call is slower than the op around it.
    @functools.cached_property
    def x(self) -> list[Input]:
        """The inputs that have a gradient."""
        return [spec for spec in self.inputs if spec.differentiable]

    @functools.cached_property
    def name(self) -> str:
        """The name of the function."""
        return text.name_of(self.function)

    @functools.cached_property
    def subject(self) -> str:
        """How messages about results begin."""
        return f"{API}: '{self.name}'"

    def call(self, arrays: Sequence[Any]) -> tuple[Any, list[tuple[int, ...]], dict[str, Any]]:
        """Calls the function with one array for each input.

        Returns its result, the shapes of the inputs that have a gradient, and the arguments in `nondiff_argnames`.
        """
        leaves = list(self.leaves)
        for (position, dtype), array in zip(self._places, arrays, strict=True):
            leaves[position] = np.array(array, dtype=dtype)  # A copy, because the array can share memory with a Tensor.
        shapes = [leaves[spec.position].shape for spec in self.x]  # Read before the call, which can change the arrays.
        if self._is_flat and not self.nondiff_argnames:
            return self.function(*leaves), shapes, {}
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        nondiff = arguments_by_name(API, self.function, args, kwargs, self.nondiff_argnames)
        nondiff = tf.nest.map_structure(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, nondiff)
        return self.function(*args, **kwargs), shapes, nondiff

    @functools.cached_property
    def _places(self) -> list[tuple[int, Any]]:
        return [(spec.position, object if spec.dtype == tf.string else None) for spec in self.inputs]

    @functools.cached_property
    def _is_flat(self) -> bool:
        args, kwargs = self.structure
        return not kwargs and not any(tf.nest.is_nested(arg) for arg in args)

    def check_batch(self, x: Sequence[tf.TensorShape]) -> None:
        """ValueError unless all these shapes, of the inputs with a gradient, have the same leading dimension."""
        leading = [shape[:1] for shape in x if shape.rank is not None]
        if not all(size.rank == 1 and size.is_compatible_with(leading[0]) for size in leading):
            got = ", ".join(f"shape {shape} for {spec.name!r}" for shape, spec in zip(x, self.x, strict=True))
            raise ValueError(
                f"{API}: with batched=True, the differentiable inputs of '{self.name}' must have the same leading "
                f"dimension, got {got}. Broadcast them, or name an input that has no gradient in nondiff_argnames."
            )


def find_tensors(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    nondiff_argnames: Collection[str],
    dtype: tf.DType | None,
) -> tuple[list[tf.Tensor], Arguments]:
    """The Tensors in the order of the signature, and the arguments without them.

    A Python float gets this dtype, by default the dtype of the first argument that has one.
    """
    structure = (list(args), kwargs)
    leaves = tf.nest.flatten(structure)
    # Each leaf is replaced by its position, so that flattening by the signature gives a name to each position.
    position_args, position_kwargs = tf.nest.pack_sequence_as(structure, list(range(len(leaves))))
    named = pytree.flatten_arguments(API, function, position_args, position_kwargs, nondiff_argnames)
    values = [leaves[position] for position in named.values]
    dtypes = [tf.as_dtype(value.dtype) for value in values if _is_tensor(value) or convert.is_inexact_array(value)]
    float_dtype = dtype or next((dtype for dtype in dtypes if dtype in convert.DTYPES), tf.float32)
    names = dict(zip(named.values, named.names, strict=True))
    tensors, inputs = [], []
    for position in [*named.values, *sorted(set(range(len(leaves))) - set(names))]:
        leaf, name = leaves[position], names.get(position)
        if name is not None:
            pytree.refuse_hidden_tensors(API, function, name, leaf)
        is_number = name is not None and (convert.is_inexact_array(leaf) or isinstance(leaf, (float, complex)))
        if _is_tensor(leaf) or is_number:
            tensor = _to_tensor(function, name or "", leaf, float_dtype)
            has_gradient = name is not None and tensor.dtype in convert.DTYPES
            tensors.append(tensor)
            inputs.append(Input(position, name or "", tensor.shape, tensor.dtype, has_gradient))
            leaves[position] = None
    packed = tf.nest.map_structure(lambda _: None, structure)
    return tensors, Arguments(function, packed, leaves, inputs, nondiff_argnames)


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or as_variable(value) is not None


def _to_tensor(function: Callable[..., Any], name: str, value: Any, float_dtype: tf.DType) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value, dtype=float_dtype.real_dtype if type(value) is float else None)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{API}: the argument {name!r} of '{text.name_of(function)}' must be a Tensor or an array, got a "
            f"{type(value).__name__}. Convert it before the call."
        ) from error


def elementwise_output(arguments: Arguments) -> tf.TensorSpec:
    """The shape to which the differentiable inputs broadcast, and the dtype of the first."""
    x = arguments.x
    if not x:
        raise TypeError(
            f"{API}: without an output, '{arguments.name}' must get a floating-point or complex input, got none. Pass "
            "output=tf.TensorSpec(shape, dtype)."
        )
    try:
        shape = functools.reduce(tf.broadcast_static_shape, [spec.shape for spec in x])
    except ValueError as error:
        raise ValueError(
            f"{API}: without an output, the differentiable inputs of '{arguments.name}' must broadcast, got "
            f"{', '.join(f'{spec.shape} for {spec.name!r}' for spec in x)}. If it is not elementwise, pass "
            "output=tf.TensorSpec(shape, dtype)."
        ) from error
    return tf.TensorSpec(shape, x[0].dtype)
