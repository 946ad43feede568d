"""The arguments of a user's Python function: which are Tensors, and which have a gradient."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, text
from tf_cg_ops._src.core.signature import arguments_by_name, bind
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient import answers
from tf_cg_ops._src.custom_gradient.wording import Wording

API = "numpy_function"


class Input(NamedTuple):
    """A Tensor among the arguments: its position among the leaves, and its static properties."""

    position: int
    shape: tf.TensorShape
    dtype: tf.DType


@dataclasses.dataclass(eq=False)
class Arguments:
    """The arguments of one call, without their Tensors: a graph keeps this object, and must not keep Tensors with it.

    `leaves` are the leaves of the arguments in the order of tf.nest, with None for each Tensor. `structure` is their
    structure, or None if they are passed by position and not nested: packing them takes longer than a call. `x` are the
    indices of the inputs with a gradient.
    """

    function: Callable[..., Any]
    structure: Any
    leaves: list[Any]
    inputs: list[Input]
    x: list[int]
    nondiff_argnames: Collection[str] = ()

    @functools.cached_property
    def subject(self) -> str:
        """How messages about results begin."""
        return f"{API}: '{self.name}'"

    @property
    def name(self) -> str:
        """The name of the function."""
        return text.name_of(self.function)

    @functools.cached_property
    def named(self) -> pytree.Leaves:
        """The arguments by their names, with the position of each leaf instead of the leaf.

        Finding the names takes longer than a call, so only messages and some answers look at them.
        """
        args, kwargs = self.packed(range(len(self.leaves)))
        return pytree.flatten_arguments(API, self.function, args, kwargs, self.nondiff_argnames)

    @functools.cached_property
    def x_names(self) -> list[str]:
        """The names of the inputs with a gradient."""
        names = dict(zip(self.named.values, self.named.names, strict=True))
        return [names[self.inputs[i].position] for i in self.x]

    def packed(self, leaves: Sequence[Any]) -> Any:
        """The positional arguments and the keyword arguments with these leaves."""
        return (leaves, {}) if self.structure is None else tf.nest.pack_sequence_as(self.structure, list(leaves))

    def call(self, arrays: Sequence[np.ndarray]) -> tuple[Any, dict[str, Any]]:
        """Calls the function with one array for each input, which it can overwrite.

        Returns its result and the arguments in `nondiff_argnames`.
        """
        leaves = list(self.leaves)
        for spec, array in zip(self.inputs, arrays, strict=True):
            leaves[spec.position] = array
        if self.structure is None:
            try:
                return self.function(*leaves), {}
            except TypeError:
                bind(API, self.function, leaves, {})
                raise
        args, kwargs = self.packed(leaves)
        nondiff = arguments_by_name(API, self.function, args, kwargs, self.nondiff_argnames)
        nondiff = tf.nest.map_structure(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, nondiff)
        return self.function(*args, **kwargs), nondiff

    def gradients(self, wording: Wording, answer: Any) -> list[Any]:
        """The gradients that a function returned as a list, one for each input that has one."""
        if not self.x and answer is None:
            return []
        if len(self.x) == 1 and (isinstance(answer, list) or not tf.nest.is_nested(answer)):
            # A list of numbers or of rows is the gradient itself, unless it holds one array.
            is_array = isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], np.ndarray)
            return answer if is_array else [answer]
        if isinstance(answer, (tuple, list)):
            answer = [_as_array(item) for item in answer]
        subject = wording.subject_of(self.name)
        answer = answers.opened(subject, answer)
        if answers.has_mapping(answer):
            x = [self.inputs[i].position for i in self.x]
            kinds = [answers.TENSOR if position in x else answers.NOTHING for position in self.named.values]
            entries = answers.entries(wording, self.name, answer, self.named, kinds)
            entries = [entry for entry, kind in zip(entries, kinds, strict=True) if kind == answers.TENSOR]
        else:
            entries = tf.nest.flatten(answer)
        if len(entries) != len(self.x):
            got = str(len(entries)) if isinstance(answer, list) else text.describe_type(answer)
            # Because people return gradients for the others, too.
            raise ValueError(
                f"{subject} must return {text.count(len(self.x), 'gradient')} (one for each differentiable input: "
                f"{text.quoted(self.x_names)}), got {got}. Integers, bools and other values without a derivative have "
                "none. Name other inputs that have no gradient in nondiff_argnames."
            )
        return entries

    def check_batch(self, shapes: Sequence[tf.TensorShape]) -> None:
        """ValueError unless all these shapes, of the inputs with a gradient, have the same leading dimension."""
        leading = [shape[:1] for shape in shapes if shape.rank is not None]
        if not all(size.rank == 1 and size.is_compatible_with(leading[0]) for size in leading):
            got = ", ".join(f"shape {shape} for {name!r}" for shape, name in zip(shapes, self.x_names, strict=True))
            raise ValueError(
                f"{API}: with batched=True, the differentiable inputs of '{self.name}' must have the same leading "
                f"dimension, got {got}. Broadcast them, or name an input that has no gradient in nondiff_argnames."
            )

    def broadcast(self, shapes: Sequence[tf.TensorShape]) -> tf.TensorShape:
        """The shape to which the inputs with a gradient broadcast."""
        try:
            return functools.reduce(tf.broadcast_static_shape, shapes)
        except ValueError as error:
            got = ", ".join(f"{shape} for {name!r}" for shape, name in zip(shapes, self.x_names, strict=True))
            raise ValueError(
                f"{API}: without an output_signature, the differentiable inputs of '{self.name}' must broadcast, "
                f"got {got}. If it is not elementwise, pass output_signature=tf.TensorSpec(shape, dtype)."
            ) from error


def _as_array(item: Any) -> Any:
    """An array for a list of numbers or of rows of numbers, and the item itself for anything else."""
    if not isinstance(item, list) or any(isinstance(leaf, np.ndarray) for leaf in tf.nest.flatten(item)):
        return item
    try:
        return np.asarray(item)
    except ValueError:  # Rows of different lengths: their number shows in the message about the answer.
        return item


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
    if tf.executing_eagerly() and not kwargs and not nondiff_argnames and pytree.are_eager_tensors(args):
        inputs = [Input(i, arg.shape, arg.dtype) for i, arg in enumerate(args)]
        x = [i for i, spec in enumerate(inputs) if spec.dtype in convert.DTYPES]
        return list(args), Arguments(function, None, [None] * len(args), inputs, x)
    structure = (list(args), kwargs)
    leaves = tf.nest.flatten(structure)
    is_flat = not kwargs and not nondiff_argnames and not any(map(tf.nest.is_nested, args))
    packed = None if is_flat else tf.nest.map_structure(lambda _: None, structure)
    arguments = Arguments(function, packed, leaves, [], [], nondiff_argnames)
    names = dict(zip(arguments.named.values, arguments.named.names, strict=True))
    values = [leaves[position] for position in names]
    dtypes = [tf.as_dtype(value.dtype) for value in values if _is_tensor_like(value) or convert.is_inexact_array(value)]
    float_dtype = dtype or next((dtype for dtype in dtypes if dtype in convert.DTYPES), tf.float32)
    tensors: list[tf.Tensor] = []
    for position in [*names, *sorted(set(range(len(leaves))) - set(names))]:
        leaf, name = leaves[position], names.get(position)
        if name is not None:
            pytree.refuse_hidden_tensors(API, function, name, leaf)
        is_number = name is not None and (convert.is_inexact_array(leaf) or isinstance(leaf, (float, complex)))
        if _is_tensor_like(leaf) or is_number:
            tensor = _argument_to_tensor(function, name or "", leaf, float_dtype)
            if name is not None and tensor.dtype in convert.DTYPES:
                arguments.x.append(len(tensors))
            tensors.append(tensor)
            arguments.inputs.append(Input(position, tensor.shape, tensor.dtype))
            leaves[position] = None
    return tensors, arguments


def _is_tensor_like(value: Any) -> bool:
    return tf.is_tensor(value) or as_variable(value) is not None


def _argument_to_tensor(function: Callable[..., Any], name: str, value: Any, float_dtype: tf.DType) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value, dtype=float_dtype.real_dtype if type(value) is float else None)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{API}: the argument {name!r} of '{text.name_of(function)}' must be a Tensor or an array, got a "
            f"{type(value).__name__}. Convert it before the call."
        ) from error
