"""One call of a decorated function: computes the value and attaches the gradient."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree, tapes, text, tf_internal
from tf_cg_ops._src.core.signature import check_arguments
from tf_cg_ops._src.core.variables import ReadVariables, captured_variables
from tf_cg_ops._src.custom_gradient import graph_rule, returned_variables, unused_outputs
from tf_cg_ops._src.custom_gradient.checks import GradientChecks, refuse_reference_variables
from tf_cg_ops._src.custom_gradient.wording import CUSTOM_GRADIENT, Wording
from tf_cg_ops._src.keras import dispatch, keras_internal


@dataclasses.dataclass(frozen=True, eq=False)
class GradFnWithCaptures:
    """A `grad_fn` that also has gradients with respect to tensors that the function closes over.

    `function(*dys, variables=...)` returns a pair: the answer of an ordinary `grad_fn`, and one gradient for each of
    the captures. `variables` are those that the function reads, which a cached trace does not read again.
    """

    function: Callable[..., tuple[Any, Sequence[Any]]]
    captures: list[tf.Tensor]
    variables: list[tf.Variable]

    def __call__(self, *dys: Any, variables: Sequence[tf.Variable] = ()) -> tuple[Any, Sequence[Any]]:
        """The pair that the function returns."""
        return self.function(*dys, variables=variables)


def call_with_gradient(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    nondiff_argnames: Collection[str] = (),
    wording: Wording = CUSTOM_GRADIENT,
    user_function: Callable[..., Any] | None = None,
    takes_needed: bool = False,
    materialize: bool = True,
    tangents_of: Callable[..., Sequence[Any]] | None = None,
) -> Any:
    """Returns the value of a function that returns `(value, grad_fn)`, with that gradient.

    Args:
      function: Computes the value and makes `grad_fn`.
      args: Its positional arguments.
      kwargs: Its keyword arguments.
      nondiff_argnames: The arguments without a gradient, for which `grad_fn` has no entry.
      wording: The messages of the API.
      user_function: The function that the user wrote, if `function` wraps it. It has the name and the signature.
      takes_needed: Whether `grad_fn` has a parameter `needed`: for each leaf of the arguments, whether somebody can ask
        for its gradient.
      materialize: Whether `grad_fn` gets zeros for an output that nobody used, instead of None.
      tangents_of: The tangent of each leaf of the value, or None, from a tangent, or None, for each leaf of the
        arguments, the variables, and their tangents. Without it, forward mode transposes the gradient.

    Returns:
      The value in its own structure: recorded on the tapes in eager mode, the outputs of an op in a graph.
    """
    user_function = user_function or function
    name = text.name_of(user_function)
    arguments = pytree.flatten_arguments(wording.api, user_function, args, kwargs, nondiff_argnames)
    # Read before the call, which may assign a variable: the gradient belongs to the values that the function got.
    inputs = [pytree.tensors_for_gradients(value) for value in arguments.values]

    value, grad_fn, variables = _call(function, args, kwargs, wording, user_function, arguments)
    leaves = _leaves_of_value(wording.api, name, value)
    returned = returned_variables.of_value(leaves, variables, arguments.values)

    checks = GradientChecks(wording, name, arguments, inputs, variables)
    checks.check_takes_variables(grad_fn)
    if returned and not isinstance(grad_fn, GradFnWithCaptures) and checks.takes_variables(grad_fn):
        variables, returned = returned_variables.counted(variables, returned, leaves)
        checks = GradientChecks(wording, name, arguments, inputs, variables)
    captures = grad_fn.captures if isinstance(grad_fn, GradFnWithCaptures) else []
    flat_inputs = [*_concatenated(inputs), *(tf.convert_to_tensor(variable) for variable in variables), *captures]

    outputs = [pytree.to_output(leaf) for leaf in leaves]
    components = [pytree.tensors_for_gradients(output) for output in outputs]
    flat_outputs = _concatenated(components)
    if not flat_outputs:
        return value

    backward = _backward(grad_fn, checks, variables, outputs, components)
    if returned:
        positions = returned_variables.positions(returned, components)
        flat_inputs += [flat_outputs[position] for position in positions]
        backward = returned_variables.passing(backward, positions)
    if not materialize:
        backward = unused_outputs.with_none(backward)
    for_tapes = backward
    if takes_needed:
        watched = tuple(bool(tf_internal.possible_gradient_types(tensors)) for tensors in inputs)
        all_needed = tuple(bool(tensors) for tensors in inputs)
        for_tapes = functools.partial(backward, needed=watched)
        backward = functools.partial(backward, needed=all_needed)
    tangents = None
    if tangents_of is not None:
        tangents = _tangents(tangents_of, arguments.values, inputs, variables, components)
        if returned:
            tangents = returned_variables.passing_tangents(tangents, positions)
    flat_outputs = attach(wording, name, flat_outputs, flat_inputs, backward, for_tapes, tangents)
    if not materialize:
        flat_outputs = unused_outputs.marked(name, flat_outputs)
    if isinstance(value, tf.Tensor):
        return flat_outputs[0]
    return tf.nest.pack_sequence_as(value, pytree.replace_tensors(outputs, components, flat_outputs))


def _call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    wording: Wording,
    user_function: Callable[..., Any],
    arguments: pytree.Leaves,
) -> tuple[Any, Callable[..., Any], list[tf.Variable]]:
    """The value, `grad_fn`, and the variables that the function reads beside its arguments."""
    session_graph = None if tf.executing_eagerly() else _session_graph()
    num_operations = len(session_graph.get_operations()) if session_graph is not None else 0
    try:
        with ReadVariables(user_function) as read:
            result = function(*args, **kwargs)
    except TypeError:
        check_arguments(wording.api, user_function, args, kwargs)
        raise
    if not isinstance(result, (tuple, list)) or len(result) != 2 or not callable(result[1]):
        check_arguments(wording.api, user_function, args, kwargs)
        raise TypeError(wording.not_a_pair(text.name_of(user_function), result))
    if session_graph is not None:
        operations = session_graph.get_operations()[num_operations:]
        refuse_reference_variables(wording.api, text.name_of(user_function), operations, arguments)
    value, grad_fn = result
    watched = grad_fn.variables if isinstance(grad_fn, GradFnWithCaptures) else read.found()
    return value, grad_fn, captured_variables(watched, arguments.values)


def _session_graph() -> Any:
    """The default graph if a TensorFlow 1 session runs it; None in a tf.function."""
    graph = tf.compat.v1.get_default_graph()
    return None if graph.building_function else graph


def _leaves_of_value(api: str, name: str, value: Any) -> list[Any]:
    if isinstance(value, tf.Tensor):
        return [value]
    leaves = tf.nest.flatten(value)
    if dispatch.package_of_keras_tensors(leaves):  # They came in a closure, or in an object.
        raise TypeError(
            f"{api}: '{name}' computes with KerasTensors, which are not among its arguments, "
            "and its gradient would be lost; expected them as arguments, or in lists, tuples and dictionaries, "
            "got a value that is a KerasTensor. Pass them so, or call it in the call() of a keras.layers.Layer."
        )
    return leaves


def _backward(
    grad_fn: Callable[..., Any],
    checks: GradientChecks,
    variables: list[tf.Variable],
    outputs: list[Any],
    components: list[list[tf.Tensor]],
) -> Callable[..., list[Any]]:
    """A function from the upstream gradients of all components to the gradients of all flat inputs.

    It passes keywords on to `grad_fn`.
    """
    scopes = keras_internal.current_scopes()
    of_variables = {"variables": variables} if variables else {}

    def backward(upstream: Sequence[Any], **kwargs: Any) -> list[Any]:
        if keras_internal.current_scopes() != scopes:
            with keras_internal.scopes_entered(scopes):
                return backward(upstream, **kwargs)
        dys = pytree.upstream_gradients(outputs, components, upstream)
        try:
            answer = grad_fn(*dys, **of_variables, **kwargs)
        except TypeError as error:
            checks.check_takes_upstream(grad_fn, dys, error, **kwargs)
            raise
        if isinstance(grad_fn, GradFnWithCaptures):
            answer, by_capture = answer
            return [*checks.checked_gradients(answer), *by_capture]
        return checks.checked_gradients(answer)

    return backward


def _tangents(
    tangents_of: Callable[..., Sequence[Any]],
    values: list[Any],
    inputs: list[list[tf.Tensor]],
    variables: list[tf.Variable],
    components: list[list[tf.Tensor]],
) -> Callable[..., list[Any]]:
    """A function from the tangents of all flat inputs to those of the components of the value."""

    def tangents(*flat: Any) -> list[Any]:
        num_variables = len(variables)
        by_leaf = pytree.regroup(values, inputs, flat[: len(flat) - num_variables])
        answer = tangents_of(by_leaf, variables, list(flat[len(flat) - num_variables :]))
        parts = [pytree.tensors_for_gradients(tangent) for tangent in answer]
        return _concatenated(part or [None] * len(tensors) for part, tensors in zip(parts, components, strict=True))

    return tangents


def attach(
    wording: Wording,
    name: str,
    outputs: list[tf.Tensor],
    inputs: list[tf.Tensor],
    backward: Callable[[Sequence[Any]], list[Any]],
    for_tapes: Callable[[Sequence[Any]], list[Any]] | None = None,
    tangents: Callable[..., Sequence[Any]] | None = None,
) -> list[tf.Tensor]:
    """The outputs, with `backward` as their gradient with respect to the inputs.

    The tapes that record now get `for_tapes`, which may leave out gradients that none of them watches. The accumulators
    that record now call `tangents`, if it is there, instead of transposing that.
    """
    for_tapes = for_tapes or backward
    if not tf.executing_eagerly():
        return graph_rule.attach(wording, name, outputs, inputs, backward, for_tapes, tangents)
    # Unrecorded: otherwise forward mode would take the tangent of the outputs.
    copies = [tapes.unrecorded_identity(tensor) for tensor in outputs]
    tapes.record(name, copies, inputs, lambda *dys: for_tapes(dys), tangents)
    return copies


def _concatenated(lists: Iterable[list[tf.Tensor]]) -> list[tf.Tensor]:
    return [tensor for tensors in lists for tensor in tensors]
