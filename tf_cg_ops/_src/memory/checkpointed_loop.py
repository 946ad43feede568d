"""The common part of `scan` and `while_loop`: the carry, the step that is traced once, and eager mode."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, signature, tapes, text, tf_internal
from tf_cg_ops._src.custom_gradient.wording import Wording, without_gradient_function
from tf_cg_ops._src.keras import dispatch
from tf_cg_ops._src.memory.loop_step import LoopStep
from tf_cg_ops._src.memory.nested_loops import Checkpoint, NestedLoops, factors_of
from tf_cg_ops._src.memory.recompute_grad import Recomputation
from tf_cg_ops._src.rewrite.built_functions import find_or_build
from tf_cg_ops._src.rewrite.traced_call import ThreadSafeFunction


def to_tensors(api: str, argument: str, structure: Any, remedy: str) -> Any:
    """The structure with each Variable, array and number as a Tensor; TypeError for any other leaf."""
    leaves = tf.nest.flatten(structure)
    names = tf.nest.flatten(pytree.paths(argument, structure))
    if dispatch.package_of_keras_tensors(leaves):
        raise TypeError(
            f"{api}: {argument} must hold Tensors, got a KerasTensor: a functional model could not save the function. "
            f"Call {api} in the call() of a keras.layers.Layer."
        )
    for i, leaf in enumerate(leaves):
        if leaf is None or (tf.is_tensor(leaf) and not isinstance(leaf, (tf.Variable, tf_internal.WeakTensor))):
            continue
        try:
            leaves[i] = tf.convert_to_tensor(leaf)
        except convert.refusals(leaf) as error:
            name = names[i] if len(names) == len(leaves) else argument
            raise TypeError(
                f"{api}: {name} must be a Tensor, an array or a number, got {text.describe_type(leaf)}. {remedy}"
            ) from error
    return tf.nest.pack_sequence_as(structure, leaves)


def leaves_of(structure: Any) -> list[Any]:
    """The leaves of a structure without None; the Tensors of a composite are leaves."""
    return [leaf for leaf in tf.nest.flatten(structure, expand_composites=True) if leaf is not None]


def pack(structure: Any, leaves: Sequence[Any]) -> Any:
    """The structure with these leaves; its Nones stay."""
    remaining = iter(leaves)
    old = tf.nest.flatten(structure, expand_composites=True)
    new = [None if leaf is None else next(remaining) for leaf in old]
    return tf.nest.pack_sequence_as(structure, new, expand_composites=True)


class Carry:
    """The values that one step passes to the next, as leaves and in the user's structure."""

    def __init__(self, api: str, argument: str, structure: Any, function: str) -> None:
        self._api = api
        self._argument = argument
        self._function = function
        # TypeSpecs, because values would live as long as the trace.
        self._structure = tf.nest.map_structure(
            lambda leaf: leaf if leaf is None else tf.type_spec_from_value(leaf), structure
        )
        self.leaves = [tf.TensorSpec(t.shape, t.dtype) for t in leaves_of(structure)]
        pairs = zip(pytree.leaf_names(argument, structure), tf.nest.flatten(structure), strict=True)
        names = [name for name, leaf in pairs if leaf is not None]
        # The Tensors of a composite have no names of their own.
        self.names = names if len(names) == len(self.leaves) else [argument] * len(self.leaves)

    def pack(self, leaves: Sequence[tf.Tensor]) -> Any:
        """The structure with these leaves."""
        return pack(self._structure, leaves)

    def leaves_of(self, value: Any) -> list[tf.Tensor]:
        """The leaves of the carry that a step returned; an error if it differs from the carry that the step got."""
        value = tf.nest.map_structure(lambda x: x.to_tensor() if isinstance(x, tf_internal.WeakTensor) else x, value)
        try:
            tf.nest.assert_same_structure(self._structure, value, check_types=False, expand_composites=True)
            if _positions_of_none(self._structure) != _positions_of_none(value):
                raise ValueError
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self._api}: '{self._function}' must keep the structure of {self._argument}, "
                f"{_structure_of(self._structure)}, got {_structure_of(value)} (* is a Tensor). Return the "
                "same lists, tuples and dicts."
            ) from error
        return [self._checked_carry(*triple) for triple in zip(self.names, self.leaves, leaves_of(value), strict=True)]

    def _checked_carry(self, name: str, old: tf.TensorSpec, new: Any) -> tf.Tensor:
        if not tf.is_tensor(new):
            new = tf.convert_to_tensor(new, old.dtype)
        new = tf.convert_to_tensor(new)
        if new.dtype != old.dtype:
            raise TypeError(
                f"{self._api}: '{self._function}' must keep the dtype of {name}, {old.dtype.name}, got "
                f"{new.dtype.name}. Cast it, or start with a value of {new.dtype.name}."
            )
        if not new.shape.is_compatible_with(old.shape):
            raise ValueError(
                f"{self._api}: '{self._function}' must keep the shape of {name}, {old.shape}, got {new.shape}. Start "
                "with a value of the shape that the steps return. To collect values, return them as y in a scan."
            )
        if old.shape.is_fully_defined() and not new.shape.is_fully_defined():
            return tf.ensure_shape(new, old.shape)
        return new


def _positions_of_none(structure: Any) -> list[int]:
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return [i for i, leaf in enumerate(leaves) if leaf is None]


def _structure_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_structure_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(map(_structure_of, value))
        return f"({items})" if isinstance(value, tuple) else f"[{items}]"
    return "None" if value is None else "*"


def static_int(value: int | tf.Tensor) -> int | tf.Tensor:
    """The number as an int if it is known now, otherwise as an int32 Tensor."""
    static_value = tf.get_static_value(value)
    return tf.cast(value, tf.int32) if static_value is None else int(static_value)


class Loop:
    """A traced step, and the loops that call it.

    `step` takes the leaves of the carry and of one slice of the inputs; it returns the leaves of the new carry and the
    outputs. The inputs are stacked along their first dimension. `NestedLoops` describes the other arguments.
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
        specs = [*carry, *(tf.TensorSpec(t.shape[1:], t.dtype) for t in inputs)]
        wording = without_gradient_function(api)
        name = text.name_of(user_function)
        traced = LoopStep(step, specs)
        self._program = _Program(wording, name, traced, len(carry), checkpoint, reverse, keeps_going)

    def __call__(
        self, carry: list[tf.Tensor], inputs: list[tf.Tensor], num_steps: int | tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The carry after the last step, and the stacked outputs."""
        program, step = self._program, self._program.step
        values, handles = step.take_outside()
        arguments = carry, inputs, values, handles, num_steps
        if tapes.tape_records_tangents([*carry, *inputs, *values]):
            # TensorFlow loses derivatives of a loop's tangents, so its forward mode must not see the loop.
            whole = program.recomputed(
                lambda carry, inputs, values: program.run_program(carry, inputs, values, handles, num_steps)
            )
            return whole(carry, inputs, values)
        if not tf.executing_eagerly():
            return program.run_program(*arguments)
        key = program.wording.api, program.checkpoint, program.reverse, program.num_carried, num_steps
        run = find_or_build(key, step.graph, step.inputs, lambda: _in_graph(program.run_program, arguments))
        step.forget_outside()
        return run(*[tensor for tensor in tf.nest.flatten(arguments) if tf.is_tensor(tensor)])


def _in_graph(run: Callable[..., Any], arguments: Any) -> Callable[..., Any]:
    """The loop as a function of the Tensors in its arguments."""
    traced = tf.function(functools.partial(run), autograph=False).get_concrete_function(*arguments)
    return ThreadSafeFunction(functools.partial(tf_internal.call_trace, traced))


@dataclasses.dataclass(frozen=True)
class _Program:
    """A loop as a function of everything that it takes from outside. It refers to no call."""

    wording: Wording
    name: str
    step: LoopStep
    num_carried: int
    checkpoint: Checkpoint
    reverse: bool
    keeps_going: Callable[[list[tf.Tensor]], tf.Tensor] | None

    def run_program(
        self,
        carry: list[tf.Tensor],
        inputs: list[tf.Tensor],
        values: list[tf.Tensor],
        handles: list[Any],
        num_steps: int | tf.Tensor,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The carry after the last step, and the stacked outputs."""
        num_carried = self.num_carried

        def run_step(carried: list[tf.Tensor], inputs: list[tf.Tensor], values: list[tf.Tensor]) -> Any:
            outputs, state = self.step([*carried[:num_carried], *inputs], carried[num_carried:], values, handles)
            return [*outputs[:num_carried], *state], outputs[num_carried:]

        loops = NestedLoops(
            run_step,
            num_steps,
            factors_of(num_steps, self.checkpoint),
            self.recomputed,
            self.step.outputs[num_carried:],
            self.keeps_going,
            self.reverse,
        )
        carried, outputs = loops.run_steps([*carry, *self.step.state(values)], inputs, values)
        with tf.control_dependencies(self.step.assign(carried[num_carried:], handles)):
            return [tf.identity(value) for value in carried[:num_carried]], outputs

    def recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a gradient that runs it again."""
        function.__name__ = function.__qualname__ = self.name  # For messages.
        return lambda *args: Recomputation(self.wording)(function, args, {})


def translated(api: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; translated by AutoGraph where AutoGraph is on."""
    noted = signature.traced(api, function, "so that the backward pass can run its steps again")
    return noted if tf.executing_eagerly() else tf_internal.converted_by_autograph(function)
