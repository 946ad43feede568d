"""Flattens the arguments and results of a decorated function, and finds the Tensors that have gradients."""

import copy
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import slices, text, tf_internal
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
        self,
        values: list[Any],
        find_arguments: Callable[[], list[Argument]],
        has_keywords: bool = False,
        has_empty: bool = False,
    ) -> None:
        self.values = values
        self.has_keywords = has_keywords
        self.has_empty = has_empty  # Whether an argument, such as an empty list, has no leaves.
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
    # A copy, because the caller can change a list or dict before a gradient needs the names.
    arguments = [
        dataclasses.replace(argument, value=with_own_containers(argument.value))
        for argument in _arguments(api, function, args, kwargs, constants)
    ]
    leaves = [(argument.name, leaf) for argument in arguments for leaf in tf.nest.flatten(argument.value)]
    for name, leaf in leaves:
        refuse_hidden_tensors(api, function, name, leaf)
    has_empty = len({name for name, _ in leaves}) < len(arguments)
    return Leaves([leaf for _, leaf in leaves], lambda: arguments, bool(kwargs), has_empty)


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


def with_own_containers(value: Any) -> Any:
    """The value with the same leaves in new lists and dicts, so that it does not change with the caller's."""
    if isinstance(value, Mapping):
        items = {key: with_own_containers(item) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        own = copy.copy(value)  # Such as a defaultdict, with its options.
        own.update(items)
        return own
    if isinstance(value, tuple):
        own_items = tuple(with_own_containers(item) for item in value)
        return type(value)(*own_items) if hasattr(value, "_fields") else own_items
    if isinstance(value, list):
        return [with_own_containers(item) for item in value]
    return tf.nest.pack_sequence_as(value, tf.nest.flatten(value)) if tf.nest.is_nested(value) else value


def as_at_the_call(value: Any) -> Any:
    """The value with variables replaced by what they hold now, and with copies of arrays."""
    leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in tf.nest.flatten(value)]
    components = [tensors_for_gradients(leaf) for leaf in leaves]
    tensors = [tensor for parts in components for tensor in parts]
    return tf.nest.pack_sequence_as(value, replace_tensors(leaves, components, tensors))


# Lazy ones: to know whether they yield Tensors, one has to use them up.
_ITERATORS = (types.GeneratorType, map, zip, filter)


def refuse_hidden_tensors(api: str, function: Callable[..., Any], name: str, leaf: Any) -> None:
    """TypeError if a leaf of an argument holds Tensors that tf.nest does not find: they would have no gradient.

    Other objects, such as a model, are constants.
    """
    if not _is_tensor(leaf) and _hides_tensors(leaf):
        raise TypeError(
            f"{api}: the argument {name!r} of '{text.name_of(function)}' must hold its Tensors in a structure that "
            f"tf.nest opens, got {text.describe_type(leaf)}. Pass a list or a dict."
        )


def _hides_tensors(value: Any, seen: tuple[Any, ...] = ()) -> bool:
    if isinstance(value, (tf.TensorArray, *_ITERATORS)):
        return True
    if any(value is outer for outer in seen):
        return False
    inner: Iterable[Any] = ()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    elif isinstance(value, types.SimpleNamespace):
        inner = vars(value).values()
    elif seen and isinstance(value, Mapping):
        inner = value.values()
    elif seen and isinstance(value, (list, tuple)):
        inner = value
    # A variable is found when the function reads it.
    return any(
        (_is_tensor(part) and as_variable(part) is None) or _hides_tensors(part, (*seen, value)) for part in inner
    )


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) or as_variable(leaf) is not None or is_composite(leaf)


# What a value can hold beside Tensors.
_CONSTANTS = (bool, int, float, complex, str, bytes, np.ndarray, np.generic, tf.DType, tf.TensorShape, type(None))


def check_leaves(api: str, name: str, value: Any) -> list[Any]:
    """The leaves of what the function `name` returned.

    Raises TypeError for an object that tf.nest does not open: Tensors in it would not have the gradient.
    """
    leaves = tf.nest.flatten(value)
    for leaf in leaves:
        if not (_is_tensor(leaf) or isinstance(leaf, _CONSTANTS)):
            raise TypeError(
                f"{api}: '{name}' must return Tensors, or a structure of Tensors that tf.nest opens, got "
                f"{text.describe_type(leaf)}. Return a list or a dict."
            )
    return leaves


def pair(subject: str, names: str, value: Any, advice: str = "", types: Any = (tuple, list)) -> Any:
    """What a user's function returned, if it is a pair; otherwise TypeError with the names of its two parts."""
    if not isinstance(value, types) or len(value) != 2:
        advice = advice or f"End it with: return {names}"
        raise TypeError(f"{subject} must return a pair ({names}), got {text.describe_type(value)}. {advice}")
    return value


def spread_stars(arguments: list[Argument]) -> list[Argument]:
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
    if tf.nest.is_nested(structure):  # An object of a class that tf.nest opens.
        parts = tf.nest.flatten(value)
        if type(value) is not type(structure) or len(parts) != len(tf.nest.flatten(structure)):
            raise ValueError
        return parts
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
    leaves = _tensor_leaves(structure)
    replaced = list(replace(tensors_in(leaves))) if leaves else []
    new = iter(tf.nest.pack_sequence_as(leaves, replaced, expand_composites=True))
    return tf.nest.map_structure(lambda leaf: next(new) if _tensor_leaves(leaf) else leaf, structure)


def tensors_in(structure: Any) -> list[tf.Tensor]:
    """The Tensors of a structure, including the ones inside composites, in the order of `map_tensors`."""
    return tf.nest.flatten(_tensor_leaves(structure), expand_composites=True)


def _tensor_leaves(structure: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure) if tf.is_tensor(leaf) and as_variable(leaf) is None]
