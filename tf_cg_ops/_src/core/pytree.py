"""Arguments and results of a decorated function as flat lists of leaves, and their Tensors that have gradients."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.core.signature import bind, signature_of
from tf_cg_ops._src.core.variables import as_variable


class Leaves:
    """Flattened values and their names as the user writes them: `x`, `x[0]`, `options['rate']`."""

    def __init__(self, values: list[Any], find_names: Callable[[], list[str]]) -> None:
        self.values = values
        self._find_names = find_names

    @functools.cached_property
    def names(self) -> list[str]:
        """The names, computed when a message first needs them: that takes longer than a call."""
        return self._find_names()


def flatten_arguments(
    api: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    constants: Collection[str] = (),
) -> Leaves:
    """The leaves of all arguments but `constants`, in the order of the signature.

    Raises TypeError if the arguments do not fit the signature. Positional Tensors alone are in its order and are not
    compared with it: if calling the function then fails, `signature.check_arguments` has the message.
    """
    if not kwargs and not constants and all(isinstance(arg, tf.Tensor) for arg in args):
        return Leaves(list(args), lambda: _flatten(api, function, args, kwargs, constants)[1])
    values, names = _flatten(api, function, args, kwargs, constants)
    return Leaves(values, lambda: names)


def _flatten(
    api: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], constants: Collection[str]
) -> tuple[list[Any], list[str]]:
    signature = signature_of(function)
    if signature is None:
        named: list[tuple[str, Any]] = [(f"argument {i}", arg) for i, arg in enumerate(args)]
        named += sorted(kwargs.items())
    else:
        named = list(bind(api, function, signature, args, kwargs).arguments.items())
    all_values: list[Any] = []
    all_names: list[str] = []
    for name, value in named:
        if name in constants:
            continue
        values = tf.nest.flatten(value)
        names = tf.nest.flatten(paths(name, value))
        if len(names) != len(values):  # Only tf.nest knows the inside of this structure.
            names = [f"{name}[{i}]" for i in range(len(values))]
        all_values.extend(values)
        all_names.extend(names)
    return all_values, all_names


def paths(name: str, value: Any) -> Any:
    """Replaces each leaf of a structure by its name."""
    if isinstance(value, dict):
        return {key: paths(f"{name}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [paths(f"{name}.{field}", item) for field, item in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [paths(f"{name}[{i}]", item) for i, item in enumerate(value)]
    return name


def flatten_up_to(structure: Any, value: Any) -> list[Any]:
    """One part of the value for each leaf of the structure; ValueError if the value has not that structure.

    A part may be a list of numbers, which stands for an array.
    """
    if isinstance(structure, dict):
        if not isinstance(value, dict) or set(value) != set(structure):
            raise ValueError
        return [part for key in sorted(structure) for part in flatten_up_to(structure[key], value[key])]
    if isinstance(structure, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(structure):
            raise ValueError
        return [part for inner, item in zip(structure, value, strict=True) for part in flatten_up_to(inner, item)]
    return [value]


def tensors_for_gradients(value: Any) -> list[tf.Tensor]:
    """The Tensors that stand for a value in gradients; none for numbers, arrays, None and other objects."""
    if isinstance(value, tf.Tensor):
        return [value]
    if as_variable(value) is not None:
        return [tf.convert_to_tensor(value)]
    if isinstance(value, (tf.SparseTensor, tf.IndexedSlices)):
        return [value.values]  # The indices have no gradient.
    if not tf.is_tensor(value) and not isinstance(value, tf.experimental.ExtensionType):
        return []
    return tf_internal.get_flat_tensors_for_gradients([value])


def upstream_gradients(outputs: list[Any], components: list[list[tf.Tensor]], dys: Sequence[Any]) -> list[Any]:
    """The upstream gradient of each output; None for an output without Tensors."""
    if all(isinstance(output, tf.Tensor) for output in outputs):
        return [slices.upstream(dy, output) for dy, output in zip(dys, outputs, strict=True)]
    return regroup(outputs, components, [slices.to_dense(dy) for dy in dys])


def replace_tensors(values: list[Any], components: list[list[tf.Tensor]], tensors: Sequence[Any]) -> list[Any]:
    """The values with new Tensors instead of their components."""
    if all(isinstance(value, tf.Tensor) for value in values):
        return list(tensors)
    remaining = iter(tensors)
    replaced = []
    for value, parts in zip(values, components, strict=True):
        new = [next(remaining) for _ in parts]
        if not parts:
            replaced.append(value)
        elif isinstance(value, tf.Tensor):
            replaced.append(new[0])
        elif isinstance(value, tf.SparseTensor):
            replaced.append(tf.SparseTensor(value.indices, new[0], value.dense_shape))
        elif isinstance(value, tf.IndexedSlices):
            replaced.append(tf.IndexedSlices(new[0], value.indices, value.dense_shape))
        else:
            replaced.extend(tf_internal.replace_flat_tensors_for_gradients([value], new))
    return replaced


def regroup(values: list[Any], components: list[list[tf.Tensor]], tensors: Sequence[Any]) -> list[Any]:
    """Each value with new Tensors instead of its components; None for a value that has none, or none that is new."""
    remaining = iter(tensors)
    regrouped: list[Any] = []
    for value, parts in zip(values, components, strict=True):
        new = [next(remaining) for _ in parts]
        if not parts or any(tensor is None for tensor in new):
            regrouped.append(None)
        elif isinstance(value, tf.Tensor) or as_variable(value) is not None:
            regrouped.append(new[0])
        else:
            regrouped.extend(replace_tensors([value], [parts], new))
    return regrouped


def gradient_components(gradient: Any, value: Any, tensors: list[tf.Tensor]) -> list[Any]:
    """The part of a gradient for each Tensor of its input. A sparse gradient of a dense input stays whole."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values if isinstance(value, tf.IndexedSlices) else gradient]
    if len(tensors) == 1 and not isinstance(gradient, (tf.RaggedTensor, tf.SparseTensor)):
        return [gradient]
    return tensors_for_gradients(gradient)


def to_output(leaf: Any) -> Any:
    """The leaf of a result as a value: a Tensor for a Variable, an array or a number, otherwise the leaf itself."""
    if isinstance(leaf, tf.Tensor):
        return leaf
    is_number = isinstance(leaf, (np.ndarray, np.generic, int, float, complex))
    return tf.convert_to_tensor(leaf) if is_number or as_variable(leaf) is not None else leaf


def map_tensors(structure: Any, replace: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]) -> Any:
    """The structure with the Tensors that `replace` returns for its own; Variables and all other leaves stay."""
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
    """The Tensors of a structure, those of composites too, in the order of `map_tensors`."""
    found: list[tf.Tensor] = []

    def note(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        found.extend(tensors)
        return tensors

    map_tensors(structure, note)
    return found
