"""The common part of `scan` and `while_loop`: the carry, the step that is traced once, and eager mode."""

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree, text, tf_internal
from tf_cg_ops._src.core.weak import WeakIdentityDict
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import dispatch
from tf_cg_ops._src.memory.loop_step import LoopStep
from tf_cg_ops._src.memory.recompute_grad import call_with_recomputation
from tf_cg_ops._src.memory.segments import Checkpoint, Segments, factors_of
from tf_cg_ops._src.rewrite.traced_call import ThreadSafeFunction


def to_tensors(api: str, argument: str, structure: Any, remedy: str) -> Any:
    """The structure with a Tensor for each Variable, array and number; TypeError for other leaves."""
    leaves = tf.nest.flatten(structure)
    names = tf.nest.flatten(pytree.paths(argument, structure))
    if dispatch.package_of_keras_tensors(leaves):
        raise TypeError(
            f"{api}: {argument} holds KerasTensors, and a functional model cannot save the function; expected Tensors, "
            f"got a KerasTensor. Call {api} in the call() of a keras.layers.Layer."
        )
    for i, leaf in enumerate(leaves):
        if leaf is None or (tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable)):
            continue
        try:
            leaves[i] = tf.convert_to_tensor(leaf)
        except (TypeError, ValueError) as error:
            name = names[i] if len(names) == len(leaves) else argument
            raise TypeError(
                f"{api}: {name} is no Tensor; expected Tensors, arrays and numbers, got {text.describe_type(leaf)}. "
                f"{remedy}"
            ) from error
    return tf.nest.pack_sequence_as(structure, leaves)


@contextlib.contextmanager
def explain_int_carry(api: str, argument: str, structure: Any) -> Iterator[None]:
    """Says why a step fails that computes with floats, if the first carry has an int such as `0`."""
    leaves = tf.nest.flatten(structure)
    names = tf.nest.flatten(pytree.paths(argument, structure))
    ints = [name for name, leaf in zip(names, leaves, strict=False) if type(leaf) is int]
    try:
        yield
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        if not ints or "int32" not in str(error) or str(error).startswith(api):
            raise
        raise TypeError(
            f"{api}: the step fails with a carry that is int32, {text.quoted(ints)} ({str(error).splitlines()[0]}) "
            "Begin with a float such as 0.0 where the step computes with floats."
        ) from error


class Carry:
    """The values that a step gets from the step before, as leaves and in the user's structure."""

    def __init__(self, api: str, argument: str, structure: Any, function: str) -> None:
        self._api = api
        self._function = function
        # Without the values, which would live as long as the trace.
        self._structure = tf.nest.map_structure(
            lambda leaf: leaf if leaf is None else tf.type_spec_from_value(leaf), structure
        )
        self.leaves = [tf.TensorSpec(t.shape, t.dtype) for t in tf.nest.flatten(structure, expand_composites=True)]
        names = tf.nest.flatten(pytree.paths(argument, structure))
        # The Tensors of a composite have no names of their own.
        self._names = names if len(names) == len(self.leaves) else [argument] * len(self.leaves)

    def pack(self, leaves: Sequence[tf.Tensor]) -> Any:
        """The structure with these leaves."""
        return tf.nest.pack_sequence_as(self._structure, list(leaves), expand_composites=True)

    def leaves_of(self, value: Any) -> list[tf.Tensor]:
        """The leaves of the carry that a step returned; an error if it is not like the one that the step got."""
        try:
            tf.nest.assert_same_structure(self._structure, value, check_types=False, expand_composites=True)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self._api}: '{self._function}' changed the structure of what it carries; expected "
                f"{_structure_of(self._structure)}, got {_structure_of(value)}. Return what it got, in the same lists, "
                "tuples and dictionaries."
            ) from error
        new = tf.nest.flatten(value, expand_composites=True)
        return [self._checked(*triple) for triple in zip(self._names, self.leaves, new, strict=True)]

    def _checked(self, name: str, old: tf.TensorSpec, new: Any) -> tf.Tensor:
        if not tf.is_tensor(new):
            new = tf.convert_to_tensor(new, old.dtype)
        new = tf.convert_to_tensor(new)
        if new.dtype != old.dtype:
            raise TypeError(
                f"{self._api}: '{self._function}' changed the dtype of {name}; expected {old.dtype.name}, got "
                f"{new.dtype.name}. Cast it, or begin with a value of {new.dtype.name}."
            )
        if not new.shape.is_compatible_with(old.shape):
            raise ValueError(
                f"{self._api}: '{self._function}' changed the shape of {name}; expected {old.shape}, got {new.shape}. "
                "Each step must carry the same shapes."
            )
        if old.shape.is_fully_defined() and not new.shape.is_fully_defined():
            return tf.ensure_shape(new, old.shape)
        return new


def _structure_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_structure_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(map(_structure_of, value))
        return f"({items})" if isinstance(value, tuple) else f"[{items}]"
    return "None" if value is None else "*"


def static_int(value: int | tf.Tensor) -> int | tf.Tensor:
    """The number as an int if it is known, otherwise as a Tensor of int32."""
    static_value = tf.get_static_value(value)
    return tf.cast(value, tf.int32) if static_value is None else int(static_value)


class Loop:
    """A step that is traced, and the loops that call it.

    The step calls the user's function: from the leaves of the carry and of the inputs to the new leaves of the carry
    and outputs. The inputs are stacked along their first dimension. For the rest, see `Segments`.
    """

    def __init__(
        self,
        api: str,
        user_function: Callable[..., Any],
        step: Callable[..., list[tf.Tensor]],
        carry: Sequence[tf.TensorSpec],
        inputs: Sequence[Any],
        checkpoint: Checkpoint,
        *,
        reverse: bool = False,
        keeps_going: Callable[[list[tf.Tensor]], tf.Tensor] | None = None,
    ) -> None:
        self._wording = without_gradient_function(api)
        self._name = text.name_of(user_function)
        self._num_carried = len(carry)
        self._checkpoint = checkpoint
        self._reverse = reverse
        self._keeps_going = keeps_going
        specs = [*carry, *(tf.TensorSpec(t.shape[1:], t.dtype) for t in inputs)]
        self._step = LoopStep(self._wording, step, specs)
        self._traced = self._find_traced(user_function) if tf.executing_eagerly() else None

    def __call__(
        self, carry: list[tf.Tensor], inputs: list[tf.Tensor], num_steps: int | tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The carry after the steps, and the stacked outputs of the function."""
        arguments = carry, inputs, self._step.values(), num_steps
        return self._run(*arguments) if self._traced is None else self._traced(self._run, *arguments)

    def _find_traced(self, user_function: Callable[..., Any]) -> "_TracedLoop":
        if not isinstance(user_function, types.FunctionType):
            return _TracedLoop()
        same_code = _by_code.setdefault(user_function.__code__, _LoopsOfOneCode)
        same_code.first = same_code.first or weakref.ref(user_function)
        if same_code.first() is user_function:
            return _TracedLoop()
        options = self._wording.api, self._checkpoint, self._reverse, self._num_carried
        return same_code.find((*options, self._step.fingerprint()))

    def _run(
        self, carry: list[tf.Tensor], inputs: list[tf.Tensor], values: list[tf.Tensor], num_steps: int | tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        num_carried = self._num_carried

        def run_step(carried: list[tf.Tensor], inputs: list[tf.Tensor], values: list[tf.Tensor]) -> Any:
            outputs, state = self._step([*carried[:num_carried], *inputs], carried[num_carried:], values)
            return [*outputs[:num_carried], *state], outputs[num_carried:]

        def recomputed(segment: Callable[..., Any]) -> Callable[..., Any]:
            segment.__name__ = segment.__qualname__ = self._name  # For messages.
            return lambda *args: call_with_recomputation(self._wording, (), segment, args, {})

        segments = Segments(
            run_step,
            num_steps,
            factors_of(num_steps, self._checkpoint),
            recomputed,
            self._step.outputs[num_carried:],
            self._keeps_going,
            self._reverse,
        )
        carried, outputs = segments.run([*carry, *self._step.state(values)], inputs, values)
        with tf.control_dependencies(self._step.assign(carried[num_carried:])):
            return [tf.identity(value) for value in carried[:num_carried]], outputs


def translated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as AutoGraph translates it, in a graph whose code it translates."""
    return function if tf.executing_eagerly() else tf_internal.converted_by_autograph(function)


class _TracedLoop:
    """A loop as a `tf.function`, which does not keep the object that it was traced for, with its variables."""

    def __init__(self) -> None:
        self._calling = threading.local()
        # TensorFlow counts the traces of all functions with one code, and a partial function has none.
        self._call = ThreadSafeFunction(tf.function(functools.partial(self._trace), autograph=False))

    def _trace(self, *arguments: Any) -> Any:
        return self._calling.run(*arguments)

    def __call__(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """`run(*arguments)`, or the trace of an equal one."""
        self._calling.run = run
        try:
            return self._call(*arguments)
        finally:
            del self._calling.run


class _LoopsOfOneCode:
    """The loops of functions that one piece of code made, such as a lambda in a training step.

    Such a function is new in each call. Its step is traced each time, and the loop, which takes most of the time, is
    that of an earlier function whose step computes the same. The loop of the first function goes with it.
    """

    def __init__(self) -> None:
        self.first: weakref.ref[Callable[..., Any]] | None = None
        self.find = functools.lru_cache(maxsize=4)(lambda fingerprint: _TracedLoop())


_by_code = WeakIdentityDict()
