"""Turns a function of any structures into one from a list of tensors to a list of tensors, to differentiate it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, slices, text, variables
from tf_cg_ops._src.keras.dispatch import package_of_keras_tensors

API = "check_gradient"
Arrays = list[np.ndarray]
# Derivatives, or None for some of them, and values.
Results = tuple[list[Any], list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class FlatFunction:
    """A function and the point at which it is differentiated.

    Attributes:
      names: The names of the arguments.
      values: The point: the values of the arguments.
      call: Maps tensors like `values` to the outputs. Integers and bools among them have no derivative.
      step: The step of numeric differentiation, relative to each element, if the user chose one.
      derived_from: If this is a gradient, its function and the upstream gradients.
    """

    names: list[str]
    values: Arrays
    call: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]
    step: float | None
    derived_from: "tuple[FlatFunction, Arrays] | None" = None

    def outputs(self, values: Sequence[np.ndarray]) -> Arrays:
        """The outputs that have derivatives, in eager mode and in double precision."""
        return [to_double_precision(output) for output in self.call(to_tensors(values)) if has_derivative(output)]

    def gradients(
        self, tensors: Sequence[tf.Tensor], needed: slice = slice(None), used: slice = slice(None)
    ) -> Results:
        """The gradient of each argument, or None, and the outputs, for arguments and upstream gradients.

        Only the arguments in `needed` are watched, and only the outputs in `used` are differentiated.
        """
        count = len(self.values)
        sources = list(tensors[:count])[needed]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = self.call(tensors[:count])
        differentiable = list(filter(has_derivative, outputs))[used]
        gradients = tape.gradient(differentiable, sources, output_gradients=list(tensors[count:])[used])
        return [slices.to_dense(gradient) for gradient in gradients], outputs

    def tangents(self, tensors: Sequence[tf.Tensor]) -> Results:
        """The tangent of each differentiable output, or None, and the outputs, for arguments and their tangents."""
        count = len(self.values)
        with tf.autodiff.ForwardAccumulator(tensors[:count], tensors[count:]) as accumulator:
            outputs = self.call(tensors[:count])
        return [accumulator.jvp(output) for output in outputs if has_derivative(output)], outputs

    def gradient_function(self, upstream: Arrays) -> "FlatFunction":
        """The gradient as a function of the arguments and of the upstream."""

        def call(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            pairs = zip(self.gradients(tensors)[0], tensors, strict=False)  # The first tensors are the arguments.
            return [tf.zeros_like(x) if gradient is None else gradient for gradient, x in pairs]

        names = self.names + numbered("upstream", len(upstream))
        return FlatFunction(names, self.values + upstream, call, self.step, (self, upstream))


def numbered(name: str, count: int) -> list[str]:
    """The name of one Tensor, or the names of several."""
    return [name] if count == 1 else [f"{name}[{i}]" for i in range(count)]


def to_tensors(arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
    """Each array as a tensor of its dtype."""
    return [tf.constant(array) for array in arrays]


def to_double_precision(x: Any) -> np.ndarray:
    """The Tensor or array as an array of float64 or complex128."""
    array = x.numpy() if tf.is_tensor(x) else x
    return np.asarray(array, np.complex128 if np.iscomplexobj(array) else np.float64)


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
        self._leaves = [_to_double_precision(leaf) for leaf in tf.nest.flatten(self._structure)]
        numbers = tf.nest.pack_sequence_as(self._structure, range(len(self._leaves)))
        ordered = pytree.flatten_arguments(API, function, *numbers)
        components = {i: _components(self._leaves[i]) for i in ordered.values}
        self._components = {i: tensors for i, tensors in components.items() if tensors}
        self._names = [
            name for i, name in zip(ordered.values, ordered.names, strict=True) for _ in self._components.get(i, [])
        ]

    def replace_tensors(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with these tensors, or arrays, instead of the differentiable ones."""
        leaves, places = list(self._leaves), list(self._components)
        replaced = pytree.replace_tensors([leaves[i] for i in places], list(self._components.values()), values)
        for i, leaf in zip(places, replaced, strict=True):
            leaves[i] = leaf
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def flatten_function(self, function: Callable[..., Any], step: float | None) -> FlatFunction:
        """A function of these arguments as a function of their differentiable tensors."""

        def call(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            args, kwargs = self.replace_tensors(tensors)
            leaves = [pytree.to_output(leaf) for leaf in tf.nest.flatten(function(*args, **kwargs))]
            parts = tf.nest.flatten(leaves, expand_composites=True)
            flat = [part for part in parts if tf.is_tensor(part) or package_of_keras_tensors([part])]
            dtypes = [tf.as_dtype(part.dtype) for part in flat]
            return [t for t, d in zip(flat, dtypes, strict=True) if has_derivative(t) or d.is_integer or d.is_bool]

        values = [np.array(tensor) for tensors in self._components.values() for tensor in tensors]
        return FlatFunction(self._names, values, call, step)


def _to_double_precision(leaf: Any) -> Any:
    """The leaf in float64 or complex128, as a Tensor, if it is a floating-point or complex number, array or Tensor."""
    if isinstance(leaf, float):
        return tf.constant(leaf, tf.float64)  # By default it would be rounded to float32.
    if isinstance(leaf, complex) or convert.is_inexact_array(leaf) or variables.as_variable(leaf) is not None:
        leaf = tf.convert_to_tensor(leaf)
    if isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)) and has_derivative(leaf):
        return tf.cast(leaf, tf.complex128 if leaf.dtype.is_complex else tf.float64)
    return leaf


def _components(leaf: Any) -> list[tf.Tensor]:
    """The differentiable tensors of a leaf; a composite tensor can have several."""
    tensors = pytree.tensors_for_gradients(leaf)
    return tensors if all(map(has_derivative, tensors)) else []
