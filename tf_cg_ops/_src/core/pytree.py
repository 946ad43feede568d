"""Flattens the arguments and results of a decorated function, and finds the Tensors that have gradients."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.core.signature import bind
from tf_cg_ops._src.core.tf_internal import EagerTensor
from tf_cg_ops._src.core.variables import as_variable


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of a call and its name. `star` is "*" for `*args` and "**" for `**kwargs`."""

    name: str
    value: Any
    star: str = ""


class Leaves:
    """The flat values of arguments, and their names as a user writes them: `x`, `x[0]`, `options['rate']`."""

    def __init__(
        self, values: list[Any], find_arguments: Callable[[], list[Argument]], has_keywords: bool = False
    ) -> None:
        self.values = values
        self.has_keywords = has_keywords
        self._find_arguments = find_arguments

    @functools.cached_property
    def arguments(self) -> list[Argument]:
        """The arguments in their structure. Finding them takes longer than a call, so they are found when needed."""
        return self._find_arguments()

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the leaves, computed when needed."""
        return [name for argument in self.arguments for name in leaf_names(argument.name, argument.value)]


def are_eager_tensors(values: Sequence[Any]) -> bool:
    """Whether all values are EagerTensors, as in nearly every eager call; slower checks come later."""
    for value in values:  # noqa: SIM110 (A generator takes three times as long.)
        if type(value) is not EagerTensor:
            return False
    return True


def flatten_arguments(
    api: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    constants: Collection[str] = (),
) -> Leaves:
    """Flattens all arguments except `constants`, in the order of the signature.

    Raises TypeError if the arguments do not fit the signature. Positional Tensors are not compared with it, because
    they are in its order: if the call fails, `signature.bind` has the message.
    """
    if not kwargs and not constants and (are_eager_tensors(args) or all(isinstance(arg, tf.Tensor) for arg in args)):
        return Leaves(list(args), functools.partial(_arguments, api, function, args, kwargs, constants))
    arguments = _arguments(api, function, args, kwargs, constants)
    leaves = Leaves(
        [leaf for argument in arguments for leaf in tf.nest.flatten(argument.value)], lambda: arguments, bool(kwargs)
    )
    _ = leaves.names  # Now, because the caller can change a list or dict before a gradient needs the names.
    return leaves


def _arguments(
    api: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], constants: Collection[str]
) -> list[Argument]:
    bound = bind(api, function, args, kwargs)
    if bound is None:
        arguments = [Argument(f"argument {i}", arg) for i, arg in enumerate(args)]
        arguments += [Argument(name, kwargs[name]) for name in sorted(kwargs)]
    else:
        stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
        arguments = [Argument(name, value, stars.get(kinds[name], "")) for name, value in bound.arguments.items()]
    return [argument for argument in arguments if argument.name not in constants]


def spread(arguments: list[Argument]) -> list[Argument]:
    """Splits `*args` and `**kwargs` into one argument for each item."""
    spread = []
    for argument in arguments:
        if argument.star == "**":
            spread += [Argument(key, argument.value[key]) for key in sorted(argument.value)]
        elif argument.star == "*":
            spread += [Argument(f"{argument.name}[{i}]", item) for i, item in enumerate(argument.value)]
        else:
            spread.append(argument)
    return spread


def leaf_names(name: str, value: Any) -> list[str]:
    """The name of each leaf of a structure of this name."""
    names, num_leaves = tf.nest.flatten(paths(name, value)), len(tf.nest.flatten(value))
    # Some structures only tf.nest can look into.
    return names if len(names) == num_leaves else [f"{name}[{i}]" for i in range(num_leaves)]


def paths(name: str, value: Any) -> Any:
    """Replaces each leaf of a structure by its name."""
    if isinstance(value, Mapping):
        return {key: paths(f"{name}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [paths(f"{name}.{field}", item) for field, item in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [paths(f"{name}[{i}]", item) for i, item in enumerate(value)]
    return name


def flatten_up_to(structure: Any, value: Any) -> list[Any]:
    """One part of the value for each leaf of the structure; ValueError if the value does not have that structure.

    A list of numbers can be one part, since it stands for an array.
    """
    if isinstance(structure, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(structure):
            raise ValueError
        return [part for key in sorted(structure) for part in flatten_up_to(structure[key], value[key])]
    if isinstance(structure, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(structure):
            raise ValueError
        return [part for inner, item in zip(structure, value, strict=True) for part in flatten_up_to(inner, item)]
    return [value]


def tensors_for_gradients(value: Any) -> list[tf.Tensor]:
    """The Tensors of a value that can have gradients; an empty list for numbers, arrays, None and other objects."""
    if isinstance(value, tf.Tensor):
        return [value]
    if as_variable(value) is not None:
        return [tf.convert_to_tensor(value)]
    if isinstance(value, (tf.SparseTensor, tf.IndexedSlices)):
        return [value.values]  # The indices have no gradient.
    if not is_composite(value):
        return []
    if hasattr(type(value), "__composite_gradient__"):
        return tf_internal.get_flat_tensors_for_gradients([value])
    tensor = _as_tensor(value)
    if tensor is not None:
        return [tensor]
    parts = tf.nest.flatten(value, expand_composites=True)
    return [tf.convert_to_tensor(part) for part in parts if _is_inexact(part)]


def is_composite(value: Any) -> bool:
    """Whether a value holds Tensors, and TensorFlow knows which: a RaggedTensor, an ExtensionType, a distribution."""
    if isinstance(value, tf.Tensor) or as_variable(value) is not None:
        return False
    return tf.is_tensor(value) or isinstance(value, tf.experimental.ExtensionType)


def _as_tensor(value: Any) -> tf.Tensor | None:
    """The Tensor that a composite such as a `tfp.util.TransformedVariable` converts to; None for other composites."""
    if isinstance(value, tf.experimental.ExtensionType) or not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return None
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return None


def is_read_as_tensor(leaf: Any) -> bool:
    """Whether a leaf is a Variable, or a composite that converts to a Tensor."""
    if as_variable(leaf) is not None:
        return True
    known = isinstance(leaf, (tf.SparseTensor, tf.IndexedSlices)) or hasattr(type(leaf), "__composite_gradient__")
    return is_composite(leaf) and not known and _as_tensor(leaf) is not None


def _is_inexact(part: Any) -> bool:
    dtype = getattr(part, "dtype", None)
    return dtype is not None and (dtype.is_floating or dtype.is_complex)


def _replace_components(value: Any, tensors: Sequence[Any]) -> Any:
    """Replaces the `tensors_for_gradients` of a composite."""
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensor(value.indices, tensors[0], value.dense_shape)
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(tensors[0], value.indices, value.dense_shape)
    if hasattr(type(value), "__composite_gradient__"):
        return tf_internal.replace_flat_tensors_for_gradients([value], list(tensors))[0]
    if is_read_as_tensor(value):
        return tensors[0]
    remaining = iter(tensors)
    parts = tf.nest.flatten(value, expand_composites=True)
    parts = [next(remaining) if _is_inexact(part) else part for part in parts]
    return tf.nest.pack_sequence_as(value, parts, expand_composites=True)


def upstream_gradients(outputs: list[Any], components: list[list[tf.Tensor]], dys: Sequence[Any]) -> Sequence[Any]:
    """The upstream gradient of each output; None for an output without Tensors."""
    if are_eager_tensors(dys) and are_eager_tensors(outputs):
        return dys
    if all(isinstance(output, tf.Tensor) for output in outputs):
        return [slices.upstream(dy, output) for dy, output in zip(dys, outputs, strict=True)]
    return regroup(outputs, components, [slices.to_dense(dy) for dy in dys])


def replace_tensors(values: list[Any], components: list[list[tf.Tensor]], tensors: Sequence[Any]) -> list[Any]:
    """Replaces the components of each value by new Tensors."""
    if all(isinstance(value, tf.Tensor) for value in values):
        return list(tensors)
    rows = zip(values, components, regroup(values, components, tensors), strict=True)
    return [new if parts else value for value, parts, new in rows]


def regroup(values: list[Any], components: list[list[tf.Tensor]], tensors: Sequence[Any]) -> list[Any]:
    """Replaces the components of each value by new Tensors; None for a value without components or new Tensors.

    If only some of the components of a value are new, the others become zeros.
    """
    remaining = iter(tensors)
    regrouped: list[Any] = []
    for value, parts in zip(values, components, strict=True):
        new = [next(remaining) for _ in parts]
        if all(tensor is None for tensor in new):
            regrouped.append(None)
        elif isinstance(value, tf.Tensor) or as_variable(value) is not None:
            regrouped.append(new[0])
        else:
            pairs = zip(new, parts, strict=True)
            new = [tf.zeros_like(part) if tensor is None else tensor for tensor, part in pairs]
            regrouped.append(_replace_components(value, new))
    return regrouped


def gradient_components(gradient: Any, value: Any, tensors: list[tf.Tensor]) -> list[Any]:
    """Splits a gradient into one part for each Tensor of its input. A sparse gradient of a dense input stays whole."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values if isinstance(value, tf.IndexedSlices) else gradient]
    if is_composite(gradient):
        return tensors_for_gradients(gradient)
    return [gradient]


def to_output(leaf: Any) -> Any:
    """Converts a leaf of a result to a Tensor if it is a Variable, an array or a number."""
    if isinstance(leaf, tf.Tensor):
        return leaf
    is_number = isinstance(leaf, (np.ndarray, np.generic, int, float, complex))
    return tf.convert_to_tensor(leaf) if is_number or is_read_as_tensor(leaf) else leaf


def map_tensors(structure: Any, replace: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]) -> Any:
    """Replaces the Tensors of a structure by what `replace` returns for them; Variables and other leaves stay."""
    leaves = tf.nest.flatten(structure)
    positions = [i for i, leaf in enumerate(leaves) if tf.is_tensor(leaf) and as_variable(leaf) is None]
    if positions:
        tensors = [leaves[i] for i in positions]
        components = tf.nest.flatten(tensors, expand_composites=True)
        replaced = tf.nest.pack_sequence_as(tensors, list(replace(components)), expand_composites=True)
        for position, leaf in zip(positions, replaced, strict=True):
            leaves[position] = leaf
    return tf.nest.pack_sequence_as(structure, leaves)


def tensors_in(structure: Any) -> list[tf.Tensor]:
    """The Tensors of a structure, including the ones inside composites, in the order of `map_tensors`."""
    found: list[tf.Tensor] = []

    def note(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        found.extend(tensors)
        return tensors

    map_tensors(structure, note)
    return found
