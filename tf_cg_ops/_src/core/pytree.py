"""The arguments and results of a decorated function as flat lists, with names for messages."""

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import slices, tf_internal


class Leaves:
    """Flattened values and, for each, what the user calls it: `x`, `x[0]`, `options['rate']`."""

    def __init__(self, values: list[Any], find_names: Callable[[], list[str]]) -> None:
        self.values = values
        self._find_names = find_names

    @functools.cached_property
    def names(self) -> list[str]:
        """Found where they are first needed: it takes longer than a call."""
        return self._find_names()


def name_of(function: Callable[..., Any]) -> str:
    """What messages call a function: its name, with that of its class but not of the functions around it."""
    return getattr(function, "__qualname__", type(function).__name__).rsplit("<locals>.")[-1]


def flatten_arguments(
    api: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    constants: Collection[str] = (),
) -> Leaves:
    """The leaves of the arguments in the order of the signature, however they were passed, but for `constants`.

    TypeError if they do not fit the signature. Not so for positional Tensors alone, which are in its order: whoever
    calls the function finds out, and `check_arguments` then has the message.
    """
    if not kwargs and not constants and all(isinstance(arg, tf.Tensor) for arg in args):
        return Leaves(list(args), lambda: _flatten(api, function, args, kwargs, constants)[1])
    values, names = _flatten(api, function, args, kwargs, constants)
    return Leaves(values, lambda: names)


def check_arguments(api: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises TypeError if the arguments do not fit the signature."""
    _flatten(api, function, args, kwargs, ())


def _flatten(
    api: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], constants: Collection[str]
) -> tuple[list[Any], list[str]]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some callables written in C have none.
        signature = None
    if signature is None:
        named: list[tuple[str, Any]] = [(f"argument {i}", arg) for i, arg in enumerate(args)]
        named += sorted(kwargs.items())
    else:
        named = list(_bind(api, function, signature, args, kwargs).arguments.items())
    all_values: list[Any] = []
    all_names: list[str] = []
    for name, value in named:
        if name in constants:
            continue
        values = tf.nest.flatten(value)
        names = tf.nest.flatten(_paths(name, value))
        if len(names) != len(values):  # A structure of which only tf.nest knows the inside.
            names = [f"{name}[{i}]" for i in range(len(values))]
        all_values.extend(values)
        all_names.extend(names)
    return all_values, all_names


def _bind(
    api: str, function: Callable[..., Any], signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        name = name_of(function)
        shown = f"{name.rpartition('.')[2]}{signature}"
        message = (
            f"{api}: the arguments do not fit '{name}'; expected {shown}, got a call for which Python says: "
            f"{error}. Pass what the signature asks for."
        )
        raise TypeError(message) from None


def refusing_signature(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> inspect.Signature | None:
    """The signature, if it does not take these arguments; None if it does, or there is none."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some callables written in C have none.
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return signature
    return None


def check_names(api: str, function: Callable[..., Any], names: Collection[str]) -> tuple[str, ...]:
    """The names as a tuple, or ValueError if they are not all arguments of the function."""
    known = list(inspect.signature(function).parameters) if names else []
    if isinstance(names, str) or any(name not in known for name in names):
        message = errors.NONDIFF_ARGNAMES
        raise ValueError(message.format(api=api, function=name_of(function), names=known, got=repr(names)))
    return tuple(names)


def named_arguments(
    api: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], names: Collection[str]
) -> dict[str, Any]:
    """The arguments of these names, however they were passed."""
    if not names:
        return {}
    bound = _bind(api, function, inspect.signature(function), args, kwargs)
    bound.apply_defaults()
    return {name: bound.arguments[name] for name in names}


def _paths(name: str, value: Any) -> Any:
    """The structure with each leaf replaced by its name."""
    if isinstance(value, dict):
        return {key: _paths(f"{name}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [_paths(f"{name}.{field}", item) for field, item in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [_paths(f"{name}[{i}]", item) for i, item in enumerate(value)]
    return name


def tensors_for_gradients(value: Any) -> list[tf.Tensor]:
    """The Tensors that stand for a value in gradients: none for numbers, arrays, None and everything else."""
    if isinstance(value, tf.Tensor):
        return [value]
    if as_variable(value) is not None:
        return [tf.convert_to_tensor(value)]
    if isinstance(value, (tf.SparseTensor, tf.IndexedSlices)):
        return [value.values]  # The indices have no gradient.
    if not tf.is_tensor(value) and not isinstance(value, tf.experimental.ExtensionType):
        return []
    return tf_internal.get_flat_tensors_for_gradients([value])


def upstream_of(outputs: list[Any], components: list[list[tf.Tensor]], tensors: Sequence[Any]) -> list[Any]:
    """The upstream gradient of each output; None for what is no tensor."""
    if all(isinstance(output, tf.Tensor) for output in outputs):
        return [slices.UpstreamSlices.of(dy) for dy in tensors]
    replaced = replace_tensors(outputs, components, [slices.to_dense(dy) for dy in tensors])
    return [dy if own else None for dy, own in zip(replaced, components, strict=True)]


def replace_tensors(values: list[Any], components: list[list[tf.Tensor]], tensors: Sequence[Any]) -> list[Any]:
    """The values with new Tensors in the place of their components."""
    if all(isinstance(value, tf.Tensor) for value in values):
        return list(tensors)
    remaining = iter(tensors)
    replaced = []
    for value, own in zip(values, components, strict=True):
        new = [next(remaining) for _ in own]
        if not own:
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


def gradient_components(gradient: Any, value: Any, tensors: list[tf.Tensor]) -> list[Any]:
    """What a gradient holds for each of the Tensors of its input. Sparse gradients of a dense input stay whole."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values if isinstance(value, tf.IndexedSlices) else gradient]
    if len(tensors) == 1 and not isinstance(gradient, (tf.RaggedTensor, tf.SparseTensor)):
        return [gradient]
    return tensors_for_gradients(gradient)


def to_output(leaf: Any) -> Any:
    """An output is a value: what a Variable holds, and a Tensor for an array or a number, as it comes from NumPy."""
    if isinstance(leaf, tf.Tensor):
        return leaf
    is_number = isinstance(leaf, (np.ndarray, np.generic, int, float, complex))
    return tf.convert_to_tensor(leaf) if is_number or as_variable(leaf) is not None else leaf


def as_variable(value: Any) -> tf.Variable | None:
    """The tf.Variable behind a Variable of TensorFlow or Keras."""
    if isinstance(value, tf.Variable):
        return value
    inner = getattr(value, "_value", None) if type(value).__module__.startswith("keras") else None
    return inner if isinstance(inner, tf.Variable) else None


def captured_variables(watched: Sequence[tf.Variable], arguments: Sequence[Any]) -> list[tf.Variable]:
    """The variables that were read but not passed, told apart by their handles, in the order of their creation."""
    if not watched:
        return []
    passed = {i for variable in map(as_variable, arguments) if variable is not None for i in _identities(variable)}
    return [variable for variable in watched if not passed & _identities(variable)]


def _identities(variable: tf.Variable) -> set[int]:
    identities = {id(variable)}
    try:
        identities.add(id(variable.handle))
    except AttributeError:
        pass  # A reference variable.
    except ValueError:
        # A distributed variable has no handle outside of a replica: what is read there is one of its components.
        identities.update(map(id, tf.distribute.get_strategy().experimental_local_results(variable)))
    return identities


def replace_all(structure: Any, replace: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]) -> Any:
    """The structure with other Tensors in the place of its own; Variables and what is no tensor stay."""
    leaves = tf.nest.flatten(structure)
    places = [i for i, leaf in enumerate(leaves) if tf.is_tensor(leaf) and as_variable(leaf) is None]
    if places:
        own = [leaves[i] for i in places]
        flat = tf.nest.flatten(own, expand_composites=True)
        new = tf.nest.pack_sequence_as(own, list(replace(flat)), expand_composites=True)
        for place, leaf in zip(places, new, strict=True):
            leaves[place] = leaf
    return tf.nest.pack_sequence_as(structure, leaves)


def reference_variables(operations: Sequence[tf.Operation], arguments: Sequence[Any]) -> list[str]:
    """The names of TensorFlow 1's reference variables that the operations make or read, but for the arguments."""
    passed = {variable.op.name for variable in map(as_variable, arguments) if variable is not None}
    tensors = [tensor for op in operations for tensor in (*op.inputs, *op.outputs)]
    # What a reference variable is read by stands beside it, made when the variable was.
    tensors += [source for tensor in tensors if tensor.op.type == "Identity" for source in tensor.op.inputs]
    found = {tensor.op.name for tensor in tensors if tensor.dtype != tensor.dtype.base_dtype}
    return sorted(found - passed)
