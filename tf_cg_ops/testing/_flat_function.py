"""Turns a function of any structures into one from a list of tensors to a list of tensors, to differentiate it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import pytree, slices, text, variables
from tf_cg_ops._src.keras.dispatch import package_of_keras_tensors

API = "check_gradient"
Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class FlatFunction:
    """A function and the point at which it is differentiated.

    Attributes:
      names: The names of the arguments.
      values: The point: the values of the arguments.
      call: Maps tensors like `values` to two lists: the outputs that have derivatives, and the other outputs.
      step: The step of numeric differentiation, relative to each element, if the user chose one.
      derived_from: If this is a gradient, its function and the upstream gradients.
    """

    names: list[str]
    values: Arrays
    call: Callable[[Sequence[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor]]]
    step: float | None
    derived_from: "tuple[FlatFunction, Arrays] | None" = None

    def outputs(self, values: Sequence[np.ndarray]) -> Arrays:
        """The outputs that have derivatives, in eager mode and in double precision."""
        return [to_double_precision(output) for output in self.call(to_tensors(values))[0]]

    def gradients(self, tensors: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> tuple[list, list, list]:
        """The outputs with derivatives, the other outputs, and the gradient of each argument, or None."""
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs, others = self.call(tensors)
        gradients = tape.gradient(outputs, list(tensors), output_gradients=list(upstream))
        return outputs, others, [slices.to_dense(gradient) for gradient in gradients]

    def gradient_function(self, upstream: Arrays) -> "FlatFunction":
        """The gradient as a function of the arguments and of the upstream."""
        count = len(self.values)

        def call(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            _, _, gradients = self.gradients(tensors[:count], tensors[count:])
            return replace_none_by_zeros(gradients, tensors[:count]), []

        names = ["upstream"] if len(upstream) == 1 else [f"upstream[{i}]" for i in range(len(upstream))]
        return FlatFunction(self.names + names, self.values + upstream, call, self.step, (self, upstream))


def replace_none_by_zeros(gradients: Sequence[Any], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradients, with zeros like the tensors for None."""
    return [tf.zeros_like(t) if g is None else g for g, t in zip(gradients, tensors, strict=True)]


def to_tensors(arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
    """Each array as a tensor of its dtype."""
    return [tf.constant(array) for array in arrays]


def to_double_precision(tensor: Any) -> np.ndarray:
    """The tensor as an array of float64 or complex128."""
    return np.asarray(tf.cast(tensor, tf.complex128 if tensor.dtype.is_complex else tf.float64))


def has_derivative(tensor: Any) -> bool:
    """Whether the dtype has derivatives. Integers, bools and strings have none."""
    dtype = tf.as_dtype(tensor.dtype)
    return bool(dtype.is_floating or dtype.is_complex)


class Arguments:
    """The arguments of a call, and the differentiable tensors among them in the order of the signature."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None) -> None:
        if not isinstance(args, (list, tuple)):
            raise TypeError(
                f"{API}: args must be a list or tuple of arguments, got {text.describe_type(args)}. Pass [x] for one "
                "argument."
            )
        if not isinstance(kwargs or {}, Mapping):
            raise TypeError(f"{API}: kwargs must be a dict of arguments by name, got {text.describe_type(kwargs)}.")
        self._structure = (list(args), dict(kwargs or {}))
        self._leaves = [_leaf_to_double_precision(leaf) for leaf in tf.nest.flatten(self._structure)]
        indices, indices_by_keyword = tf.nest.pack_sequence_as(self._structure, list(range(len(self._leaves))))
        ordered = pytree.flatten_arguments(API, function, indices, indices_by_keyword)
        self._indices = [index for index in ordered.values if differentiable_tensors(self._leaves[index])]
        names = dict(zip(ordered.values, ordered.names, strict=True))
        self._names = [names[index] for index in self._indices for _ in differentiable_tensors(self._leaves[index])]

    def replace_tensors(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with these tensors, or arrays, instead of the differentiable ones."""
        remaining = iter(values)
        leaves = list(self._leaves)
        for index in self._indices:
            if isinstance(leaves[index], tf.Tensor):
                leaves[index] = next(remaining)
            else:
                parts = tf.nest.flatten(leaves[index], expand_composites=True)
                parts = [next(remaining) if has_derivative(part) else part for part in parts]
                leaves[index] = tf.nest.pack_sequence_as(leaves[index], parts, expand_composites=True)
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def flatten_function(self, function: Callable[..., Any], step: float | None) -> FlatFunction:
        """A function of these arguments as a function of their differentiable tensors."""

        def call(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            args, kwargs = self.replace_tensors(tensors)
            leaves = [pytree.to_output(leaf) for leaf in tf.nest.flatten(function(*args, **kwargs))]
            parts = tf.nest.flatten(leaves, expand_composites=True)
            flat = [part for part in parts if tf.is_tensor(part) or package_of_keras_tensors([part])]
            others = [t for t in flat if tf.as_dtype(t.dtype).is_integer or tf.as_dtype(t.dtype).is_bool]
            return [t for t in flat if has_derivative(t)], others

        tensors = [tensor for index in self._indices for tensor in differentiable_tensors(self._leaves[index])]
        return FlatFunction(self._names, [np.array(tensor) for tensor in tensors], call, step)


def _leaf_to_double_precision(leaf: Any) -> Any:
    is_number = isinstance(leaf, (float, complex))
    if isinstance(leaf, (np.ndarray, np.generic)):
        is_number = np.issubdtype(leaf.dtype, np.inexact) or leaf.dtype == tf.bfloat16.as_numpy_dtype
    if isinstance(leaf, float):
        leaf = tf.constant(leaf, tf.float64)  # By default it would be rounded to float32.
    elif is_number or variables.as_variable(leaf) is not None:
        leaf = tf.convert_to_tensor(leaf)
    if not differentiable_tensors(leaf):
        return leaf
    if isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        return tf.cast(leaf, tf.complex128 if leaf.dtype.is_complex else tf.float64)
    return leaf


def differentiable_tensors(leaf: Any) -> list[tf.Tensor]:
    """The differentiable tensors of a leaf; a composite tensor has several."""
    if not tf.is_tensor(leaf):
        return []
    return [part for part in tf.nest.flatten(leaf, expand_composites=True) if has_derivative(part)]
