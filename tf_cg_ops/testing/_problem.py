"""What is differentiated: a function of any structures, seen as a function from flat tensors to flat tensors."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import pytree, slices
from tf_cg_ops._src.core.variables import as_variable

API = "check_gradient"
Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Problem:
    """`call` maps tensors like `values` to the outputs that have derivatives, and to the others.

    `step` is that of numeric differentiation, relative to each element, if the user chose one.
    """

    names: list[str]
    values: Arrays
    call: Callable[[Sequence[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor]]]
    step: float | None

    def outputs(self, values: Sequence[np.ndarray]) -> Arrays:
        """The outputs that have derivatives, in eager mode and in double precision."""
        return [wide(output) for output in self.call(tensors_of(values))[0]]

    def gradients(self, tensors: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> tuple[list, list, list]:
        """Both kinds of outputs, and the gradient of each argument, which may be None."""
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs, others = self.call(tensors)
        found = tape.gradient(outputs, list(tensors), output_gradients=list(upstream))
        return outputs, others, [slices.to_dense(gradient) for gradient in found]

    def derived(self, upstream: Arrays) -> "Problem":
        """The gradient as a function of its own: of the arguments, and of the upstream."""
        count = len(self.values)

        def call(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            _, _, gradients = self.gradients(tensors[:count], tensors[count:])
            return zeros_for_none(gradients, tensors[:count]), []

        names = ["upstream"] if len(upstream) == 1 else [f"upstream[{i}]" for i in range(len(upstream))]
        return Problem(self.names + names, self.values + upstream, call, self.step)


def zeros_for_none(gradients: Sequence[Any], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """A gradient of None stands for zeros."""
    return [tf.zeros_like(t) if g is None else g for g, t in zip(gradients, tensors, strict=True)]


def tensors_of(arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
    """Each array as a tensor of its dtype."""
    return [tf.constant(array) for array in arrays]


def wide(tensor: Any) -> np.ndarray:
    """The numbers in double precision."""
    return np.asarray(tf.cast(tensor, tf.complex128 if tensor.dtype.is_complex else tf.float64))


def has_derivative(tensor: Any) -> bool:
    """Integers, bools and strings have none."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


class Arguments:
    """The arguments of a call, and the tensors among them that there are derivatives by, in the signature's order."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None) -> None:
        if not isinstance(args, (list, tuple)):
            raise TypeError(
                f"{API}: args holds the arguments of the function; expected a list or a tuple, got "
                f"{type(args).__name__}. Pass [x] for one."
            )
        self._structure = (list(args), dict(kwargs or {}))
        self._leaves = [_in_double_precision(leaf) for leaf in tf.nest.flatten(self._structure)]
        places, places_by_name = tf.nest.pack_sequence_as(self._structure, list(range(len(self._leaves))))
        ordered = pytree.flatten_arguments(API, function, places, places_by_name)
        self._places = [place for place in ordered.values if tensors_in(self._leaves[place])]
        by_place = dict(zip(ordered.values, ordered.names, strict=True))
        self._names = [by_place[place] for place in self._places for _ in tensors_in(self._leaves[place])]

    def replaced(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with other tensors, or arrays, in the place of their own."""
        remaining = iter(values)
        leaves = list(self._leaves)
        for place in self._places:
            if isinstance(leaves[place], tf.Tensor):
                leaves[place] = next(remaining)
            else:
                parts = tf.nest.flatten(leaves[place], expand_composites=True)
                parts = [next(remaining) if has_derivative(part) else part for part in parts]
                leaves[place] = tf.nest.pack_sequence_as(leaves[place], parts, expand_composites=True)
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def problem(self, function: Callable[..., Any], step: float | None) -> Problem:
        """A function of these arguments."""

        def call(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            args, kwargs = self.replaced(tensors)
            leaves = [pytree.to_output(leaf) for leaf in tf.nest.flatten(function(*args, **kwargs))]
            flat = [part for part in tf.nest.flatten(leaves, expand_composites=True) if tf.is_tensor(part)]
            others = [t for t in flat if t.dtype.is_integer or t.dtype.is_bool]
            return [t for t in flat if has_derivative(t)], others

        tensors = [tensor for place in self._places for tensor in tensors_in(self._leaves[place])]
        return Problem(self._names, [np.array(tensor) for tensor in tensors], call, step)


def _in_double_precision(leaf: Any) -> Any:
    is_number = isinstance(leaf, (float, complex))
    if isinstance(leaf, (np.ndarray, np.generic)):
        is_number = np.issubdtype(leaf.dtype, np.inexact) or leaf.dtype == tf.bfloat16.as_numpy_dtype
    if isinstance(leaf, float):
        leaf = tf.constant(leaf, tf.float64)  # By itself it would be rounded to float32.
    elif is_number or as_variable(leaf) is not None:
        leaf = tf.convert_to_tensor(leaf)
    if not tensors_in(leaf):
        return leaf
    if isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        return tf.cast(leaf, tf.complex128 if leaf.dtype.is_complex else tf.float64)
    return leaf


def tensors_in(leaf: Any) -> list[tf.Tensor]:
    """The tensors of a leaf, which may be composite, that there are derivatives by."""
    if not tf.is_tensor(leaf):
        return []
    return [part for part in tf.nest.flatten(leaf, expand_composites=True) if has_derivative(part)]
