"""Calls a decorated function: computes the value and attaches the gradient function."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree, tapes, text, tf_internal
from tf_cg_ops._src.core.signature import bind
from tf_cg_ops._src.core.tf_internal import EagerTensor
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient import attaching, traced_rule, unused_outputs
from tf_cg_ops._src.custom_gradient.checks import GradientChecks, takes_variables
from tf_cg_ops._src.custom_gradient.variables import (
    call_and_note_reads,
    can_have_gradient,
    captured_variables,
    merged,
    reference_variables,
    variables_in,
)
from tf_cg_ops._src.custom_gradient.wording import CUSTOM_GRADIENT, Wording
from tf_cg_ops._src.keras import dispatch, keras_internal


@dataclasses.dataclass(eq=False)
class GradFn:
    """A `grad_fn` that a function of this library makes, with more options than a user's `grad_fn`.

    Attributes:
      function: Like the `grad_fn` of `custom_gradient`. With captures it returns a pair: what such a function returns,
        and one gradient for each capture.
      captures: Tensors that the function closes over and that also have gradients.
      variables: With captures, the variables that the function reads, since a cached trace does not read them again.
      takes_needed: Whether the function has a parameter `needed`, which says for each leaf of the arguments whether its
        gradient can be used.
      on_tapes: Another function for the tapes that record the call. In a graph, only they know what they watch.
      materialize: Whether the function gets zeros instead of None for an unused output.
      tangents: Takes a tangent (or None) for each leaf of the arguments, the variables, their tangents, and all inputs
        as Tensors; returns a tangent (or None) for each leaf of the value. Without it, forward mode transposes the
        gradient.
    """

    function: Callable[..., Any]
    captures: list[tf.Tensor] | None = None
    variables: Sequence[tf.Variable] = ()
    takes_needed: bool = False
    on_tapes: Callable[..., Any] | None = None
    materialize: bool = True
    tangents: Callable[..., Sequence[Any]] | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Backward:
    """The gradient function of one call, for tapes, live rules and traced rules alike.

    Takes the upstream gradients of all components of the value; returns the gradients of all flat inputs.
    """

    grad_fn: Callable[..., Any]
    checks: GradientChecks
    outputs: list[Any]  # The leaves of the value.
    components: list[list[tf.Tensor]]  # The Tensors of each leaf.
    scopes: tuple[Any, ...] | None  # The Keras scopes of the call, in which `grad_fn` runs.
    has_captures: bool = False
    passed: Sequence[int] = ()  # The components whose upstream gradients pass to the last flat inputs.
    needed: tuple[bool, ...] | None = None  # What `grad_fn` gets as `needed`, if it takes that.
    is_marked: bool = False  # Whether `grad_fn` gets None for the outputs that are not used.

    def __call__(self, upstream: Sequence[Any]) -> list[Any]:
        if keras_internal.current_scopes() != self.scopes:
            with keras_internal.scopes_entered(self.scopes):
                return self(upstream)
        is_eager_value = type(upstream[0]) is not EagerTensor and type(self.outputs[0]) is EagerTensor
        if is_eager_value and not tf.executing_eagerly() and traced_rule.current_order() == 0:
            # In a graph, for example of tape.jacobian, this is a first derivative.
            with traced_rule.computing_derivative(1):
                return self(upstream)
        if self.is_marked:
            upstream = unused_outputs.with_none(upstream)
        dys = pytree.upstream_gradients(self.outputs, self.components, upstream)
        if not all(self.components):
            dys = [dy for dy, output in zip(dys, self.outputs, strict=True) if output is not None]
        kwargs: dict[str, Any] = {} if self.needed is None else {"needed": self.needed}
        if self.checks.variables:
            kwargs["variables"] = self.checks.variables
        answer = self.checks.answer(self.grad_fn, dys, kwargs)
        if not self.has_captures:
            gradients = self.checks.checked_gradients(answer)
        else:
            answer, by_capture = answer
            gradients = [*self.checks.checked_gradients(answer), *by_capture]
        return [*gradients, *map(upstream.__getitem__, self.passed)] if self.passed else gradients

    def alone(self) -> Iterator[tuple[str, Callable[[Sequence[Any]], list[Any]], Sequence[int], Sequence[int]]]:
        """Variants of the gradient function, for one argument that is needed alone or one component that is used alone.

        A `grad_fn` that cannot see this has none. Each comes with its name, and the positions of the flat inputs and
        components that matter.
        """
        inputs, components = itertools.count(), range(sum(map(len, self.components)))
        arguments = zip(self.checks.arguments.names, self.checks.inputs, strict=True)
        for k, (name, tensors) in enumerate(arguments if self.needed and sum(self.needed) > 1 else ()):
            needed = tuple(i == k for i in range(len(self.checks.inputs)))
            positions = [next(inputs) for _ in tensors]
            yield f"only '{name}' is needed", dataclasses.replace(self, needed=needed), positions, components
        every = range(sum(map(len, self.checks.inputs)) + len(self.checks.variables))
        for k in components if self.is_marked and len(components) > 1 else ():
            backward = lambda dys, k=k: self([dy if i == k else tf.identity(dy) for i, dy in enumerate(dys)])  # noqa: E731
            yield f"only output {k} is used", backward, every, [k]

    def tangents(self, tangents_of: Callable[..., Sequence[Any]], inputs: list[tf.Tensor], *flat: Any) -> list[Any]:
        """Turns tangents of all flat inputs into tangents of all components, with the `tangents` of a `GradFn`."""
        checks, first_passed = self.checks, len(flat) - len(self.passed)
        first_variable = first_passed - len(checks.variables)
        by_leaf = pytree.regroup(checks.arguments.values, checks.inputs, flat[:first_variable])
        answer = tangents_of(by_leaf, checks.variables, list(flat[first_variable:first_passed]), inputs)
        parts = [pytree.tensors_for_gradients(tangent) for tangent in answer]
        pairs = zip(parts, self.components, strict=True)
        result = [tangent for part, tensors in pairs for tangent in part or [None] * len(tensors)]
        for position, tangent in zip(self.passed, flat[first_passed:], strict=True):
            if tangent is not None:
                result[position] = tangent if result[position] is None else result[position] + tangent
        return result


def call_with_gradient(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    wording: Wording = CUSTOM_GRADIENT,
    compute: Callable[..., Any] | None = None,
    nondiff_argnames: Collection[str] = (),
    saved_orders: int | None = None,
) -> Any:
    """Returns the value of a call, with its gradient: on the tapes in eager mode, in an op in a graph.

    Args:
      function: The user's function, for its name and signature.
      args: Its positional arguments.
      kwargs: Its keyword arguments.
      wording: The words of the API.
      compute: Returns `(value, grad_fn)` for the arguments, if the function itself does not. `grad_fn` is a function or
        a `GradFn`.
      nondiff_argnames: The arguments without a gradient, for which `grad_fn` does not return an entry.
      saved_orders: The highest order of derivative in a file if the rule calls decorated functions; by default 1.
    """
    is_eager = tf.executing_eagerly()
    name = text.name_of(function)
    arguments = pytree.flatten_arguments(wording.api, function, args, kwargs, nondiff_argnames)
    # Read before the call, which can assign a variable: the gradient belongs to the values that the function got.
    inputs = [pytree.tensors_for_gradients(value) for value in arguments.values]

    scope = contextlib.nullcontext() if compute or is_eager else traced_rule.computing_value(saved_orders)
    with scope:
        value, grad_fn, variables = _compute(compute or function, function, args, kwargs, wording, arguments, is_eager)
    scopes = keras_internal.current_scopes()
    if is_eager and type(value) is EagerTensor and not variables and not isinstance(grad_fn, GradFn):
        # A shortcut for nearly every eager call: the rest would do the same in twice the time.
        checks = GradientChecks(wording, name, arguments, inputs, variables)
        backward = Backward(grad_fn, checks, [value], [[value]], scopes)
        return tapes.recorded_copies(name, [value], list(itertools.chain(*inputs)), backward)[0]
    grad_fn = grad_fn if isinstance(grad_fn, GradFn) else GradFn(grad_fn)
    leaves = differentiable_leaves(wording.api, name, value)
    returned = _only_returned(leaves, variables, arguments.values)
    if returned and grad_fn.captures is None and takes_variables(wording, grad_fn.function):
        variables = merged(variables, [v for i in returned if (v := as_variable(leaves[i])) is not None])
        returned = [i for i in returned if as_variable(leaves[i]) is None]
    checks = GradientChecks(wording, name, arguments, inputs, variables)
    checks.check_takes_variables(grad_fn.function)
    flat_inputs = [*itertools.chain(*inputs), *map(tf.convert_to_tensor, variables), *(grad_fn.captures or ())]

    outputs = [pytree.to_output(leaf) for leaf in leaves]
    components = [pytree.tensors_for_gradients(output) for output in outputs]
    flat_outputs = list(itertools.chain(*components))
    if not flat_outputs:
        return value

    backward = Backward(
        grad_fn.function, checks, outputs, components, scopes, has_captures=grad_fn.captures is not None
    )
    if returned:
        backward.passed = [sum(map(len, components[:i])) for i in returned]
        flat_inputs += [flat_outputs[position] for position in backward.passed]
    backward.is_marked = not grad_fn.materialize
    for_tapes = backward
    if grad_fn.takes_needed:
        backward.needed = tuple(map(bool, inputs))
        watched = tuple(bool(tf_internal.possible_gradient_types(tensors)) for tensors in inputs)
        for_tapes = dataclasses.replace(backward, grad_fn=grad_fn.on_tapes or grad_fn.function, needed=watched)
    tangents = grad_fn.tangents and functools.partial(backward.tangents, grad_fn.tangents, flat_inputs)
    flat_outputs = attaching.attach(
        wording, name, flat_outputs, flat_inputs, backward, for_tapes, tangents, saved_orders=saved_orders
    )
    if not grad_fn.materialize:
        flat_outputs = unused_outputs.marked(name, flat_outputs)
    if isinstance(value, tf.Tensor):
        return flat_outputs[0]
    return tf.nest.pack_sequence_as(value, pytree.replace_tensors(outputs, components, flat_outputs))


def _compute(
    compute: Callable[..., Any],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    wording: Wording,
    arguments: pytree.Leaves,
    is_eager: bool,
) -> tuple[Any, Callable[..., Any] | GradFn, list[tf.Variable]]:
    """The value, its gradient function, and the variables that the function reads beside its arguments."""
    # In eager mode, get_default_graph would create a graph for each thread.
    graph: Any = None if is_eager else tf.compat.v1.get_default_graph()
    is_of_session = graph is not None and not graph.building_function
    num_operations = graph.num_operations() if is_of_session else 0
    with explained_errors(wording, function, args, kwargs):
        result, read = call_and_note_reads(compute, args, kwargs, is_eager)
    is_pair = isinstance(result, (tuple, list)) and len(result) == 2
    if not is_pair or not (callable(result[1]) or isinstance(result[1], GradFn)):
        bind(wording.api, function, args, kwargs, wording.how_to_call)
        advice = "End it with: return value, grad_fn"
        if keras_internal.is_layer(function):
            advice = "Decorate a function that calls it. For other gradients inside it, use override_gradients."
        raise TypeError(
            f"{wording.api}: '{text.name_of(function)}' must return a pair (value, grad_fn), got "
            f"{text.describe_type(result)}. {advice}"
        )
    if is_of_session:
        # TensorFlow does not report reads of these variables.
        names = reference_variables(graph.get_operations()[num_operations:], arguments.values)
        if names:
            raise TypeError(
                f"{wording.api}: '{text.name_of(function)}' must not use reference variables of TensorFlow 1, got "
                f"{text.quoted(names)}. Make them with use_resource=True, or pass them as arguments."
            )
    value, grad_fn = result
    watched: Sequence[tf.Variable] = read
    if isinstance(grad_fn, GradFn) and grad_fn.captures is not None:
        watched = grad_fn.variables
    return value, grad_fn, captured_variables(watched, arguments.values)


@contextlib.contextmanager
def explained_errors(
    wording: Wording, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[None]:
    """A context for a call of the user's function, which explains errors of calls that do not fit and of NumPy."""
    try:
        yield
    except (TypeError, NotImplementedError, AttributeError) as error:
        bind(wording.api, function, args, kwargs, wording.how_to_call)
        wording.add_note_about_numpy(f"'{text.name_of(function)}'", error)
        raise


def differentiable_leaves(api: str, name: str, value: Any) -> list[Any]:
    """The leaves of a value; an error if the function would lose gradients of some."""
    if isinstance(value, tf.Tensor):
        return [value]
    if dispatch.package_of_keras_tensors(tf.nest.flatten(value)):  # They come from a closure or an object.
        raise TypeError(
            f"{api}: '{name}' computes with KerasTensors that are not among its arguments, so its gradient would be "
            "lost. Pass them as arguments, or in lists, tuples and dictionaries, or call it in the call() of a "
            "keras.layers.Layer."
        )
    return pytree.check_leaves(api, name, value)


def _only_returned(leaves: list[Any], variables: Sequence[tf.Variable], arguments: Sequence[Any]) -> list[int]:
    """The positions of leaves that are, or contain, variables that the function only returns and does not read."""
    found = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, tf.Tensor):
            continue
        inside = variables_in(leaf)
        are_new = len(captured_variables(inside, [*variables, *arguments])) == len(inside)
        if inside and are_new and pytree.is_read_as_tensor(leaf) and all(map(can_have_gradient, inside)):
            found.append(i)
    return found
