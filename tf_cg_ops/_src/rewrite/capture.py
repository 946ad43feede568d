"""`capture`: the values inside a function, as Tensors that its outputs depend on."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, convert, misplaced_calls, pytree, signature, text, tf_internal
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.custom_gradient import attaching
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy
from tf_cg_ops._src.keras import keras_internal, layer_values
from tf_cg_ops._src.rewrite import own_gradients
from tf_cg_ops._src.rewrite.op_rules import inside_option
from tf_cg_ops._src.rewrite.places import Place, PlaceSearch, check_places, layer_of, mark
from tf_cg_ops._src.rewrite.traced_call import TracedCall, arrays_to_tensors, flat_copy

_API = "capture"
_CALL = "Write capture(f, {'features': 'name_of_a_layer'})."


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, _CALL)
def capture(
    f: Callable[..., Structure], places: Mapping[str, Any] | Sequence[str], *, inside: bool = False
) -> Callable[..., tuple[Structure, dict[str, Any]]]:
    """Returns a copy of `f` that also returns values inside it, from which its outputs are computed.

    Use it for Grad-CAM and other explanations, for losses on features, and to see or change what a model computes.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def f(x):
    ...     hidden = tf.square(x, name="hidden")
    ...     return 3 * hidden + x
    >>> inner = cg.capture(f, ["hidden"])
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y, values = inner(x)
    >>> dy = tf.constant([1.0, 10.0])
    >>> [dv.numpy().tolist() for dv in tape.gradient(y, [values["hidden"], x], output_gradients=dy)]
    [[3.0, 30.0], [7.0, 130.0]]
    >>> y, _ = inner(x, hidden=tf.constant([5.0, 5.0]))  # Continues from another value.
    >>> y.numpy().tolist()
    [16.0, 17.0]

    `inner(*args, **kwargs)` returns `(f(*args, **kwargs), values)`. The gradient by a value is the whole derivative
    through all that comes after it, also through other captured values. Gradients by the arguments and variables stay
    as they are.

    A place is one of these:

    - The name of a Keras layer that is called once: the value that it returns; `"name:1"` for its second value.
    - The name of an op, such as "hidden", or `"hidden:1"` for its second output. `tf.identity(x, name="hidden")` names
      a value in your own code.
    - The name of a scope, whole or in part: "block3" finds the ops "model/block3/conv" and "model/block3/relu", and the
      value is the output of the last one whose output is used outside of the scope. Use it for a loaded SavedModel,
      which has no layers. Keras 3 adds a number there: the scope of a layer "dense" is "dense_1".
    - A function of a `tf.Operation` that returns a bool. Then the value is a list, with the first output of each op
      that it selects, in the order of the graph.

    If you pass a Tensor under the name of a place, as in `inner(x, hidden=new)`, `f` continues from it. For a list,
    pass a list, with None for what stays.

    Functions that `f` calls are inlined. A function with its own gradient, such as one that `custom_gradient` or
    `recompute_grad` decorates, skips the ops inside, so the outputs have no gradient by a value there: that is an
    error. With `inside=True` such a function uses TensorFlow's gradient of its ops instead of its own.

    `f` is traced and copied, in eager mode in each call. For speed, write a `tf.function` for the whole step, with the
    tape in it. A tape around a `tf.function` finds no gradient between two of its results. As always, a tape must watch
    something that the value depends on: a variable, or what you name in `tape.watch`.

    Args:
      f: A Python function of TensorFlow ops, a `tf.function`, a Keras model, a loaded SavedModel or one of its
        functions.
      places: A dict from the names of the values to places, or a list of places that are their own names.
      inside: Whether places can be inside functions with their own gradient, which they then lose.

    Returns:
      A function with the arguments of `f`, and one for each place. It returns a pair: what `f` returns, and a dict with
      a Tensor, or a list of Tensors, for each place.

    Raises:
      TypeError: An argument has the wrong type, or a given value another dtype.
      ValueError: A place names nothing, or several values; a value is inside a function with its own gradient; a name
        is also an argument of `f`; a given value has another shape.
      NotImplementedError: A place is in a loop, a branch or a function with `jit_compile=True`.

    TensorFlow has nothing like it. A Keras model of the layers up to one, the usual way, only works for functional
    models, and not for what is inside a layer or a file.
    """
    noun = "a function, a model, or a function of a loaded SavedModel such as loaded.signatures['serving_default']"
    misplaced_calls.check_function(_API, "f", f, _CALL, noun)
    wanted = check_places(_API, places)
    taken = wanted.keys() & _parameters(f)
    if taken:
        raise ValueError(
            f"{_API}: the names of places must not be arguments of '{text.name_of(f)}', got "
            f"{text.quoted(sorted(taken))}. Pass a dict with other names."
        )
    inside = convert.to_bool(_API, "inside", inside)

    return _Captured(_API, f, _Run(wanted, inside))


@dataclasses.dataclass(frozen=True)
class _Run:
    """Calls a function, and returns its value with the values at the places."""

    wanted: Mapping[str, Place]
    inside: bool

    def __call__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        given = {key: kwargs[key] for key in self.wanted if kwargs.get(key) is not None}
        inputs = arrays_to_tensors((list(args), {key: x for key, x in kwargs.items() if key not in self.wanted}))
        name = text.name_of(function)
        self._refuse_what_keras_ignores(function, inputs[1], name)
        with layer_values.replaced(mark):
            call = TracedCall(signature.traced(_API, function, "to find the values inside it"), *inputs)
        cut = Cut(_API, name, call.graph, call.inside, self.wanted, self.inside)
        for variable in call.variables:  # Their handles are inputs, so the call does not read them.
            tf_internal.variable_accessed(variable)
        outputs, values = cut.run([*pytree.tensors_in(inputs), *call.outside.values], given)
        call.forget_outside()
        value = call.pack(outputs)
        pytree.check_leaves(_API, name, value)  # All of it has gradients.
        return value, values

    def _refuse_what_keras_ignores(self, function: Any, kwargs: Mapping[str, Any], name: str) -> None:
        """ValueError for a keyword argument that is neither a place nor known to the model. Keras would ignore it."""
        if not (keras_internal.is_layer(function) and keras_internal.has_keras_call(function)):
            return
        unknown = [key for key in kwargs if not signature.has_parameter(function.call, key)]
        if unknown:
            raise ValueError(
                f"{_API}: {text.quoted(unknown)} must be an argument of '{name}' or one of the places, "
                f"{text.quoted(self.wanted)}. Add the place to give it a value."
            )


class _Captured(CustomGradient):
    """A function that also takes a value for each place."""

    __slots__ = ()

    @property
    def __signature__(self) -> inspect.Signature:
        signature, kind = super().__signature__, inspect.Parameter.KEYWORD_ONLY
        names = filter(str.isidentifier, self.__tf_cg_ops__().run.wanted)
        parameters = [*signature.parameters.values(), *(inspect.Parameter(name, kind, default=None) for name in names)]
        return signature.replace(parameters=sorted(parameters, key=lambda parameter: parameter.kind))


def _parameters(f: Any) -> set[str]:
    """The names of the arguments of a function, as far as it tells."""
    _, keywords = getattr(f, "structured_input_signature", ((), {}))  # Of a trace.
    try:
        return {*inspect.signature(f.call if keras_internal.is_layer(f) else f).parameters, *keywords}
    except (TypeError, ValueError):
        return set(keywords)


def _behind_own_gradient(tensor: Any) -> Any:
    """The same value where a function with its own gradient returns it, if it is the result of one."""
    for use in tensor.consumers():
        own = own_gradients.differentiated_inputs(use)
        positions = [i for i, each in enumerate(use.inputs) if each is tensor]
        # An argument that a function returns is no result of it.
        if own is not None and positions[0] < len(use.outputs) and not set(own) & set(positions):
            return _behind_own_gradient(use.outputs[positions[0]])
    return tensor


class Cut:
    """A traced graph whose outputs are computed from the values at places inside it.

    Attributes:
      graph: The graph, or a copy if it has calls. Its outputs are changed: it returns the values at the places, too.
      inside: Its inputs.
      found: The tensor of each place in it, or a list of tensors.
    """

    def __init__(
        self,
        api: str,
        function: str,
        graph: Any,
        inside: Sequence[Any],
        wanted: Mapping[str, Place],
        drops_own_gradients: bool = False,
    ) -> None:
        self._api, self._function, self._drops = api, function, drops_own_gradients
        named = [place for place in wanted.values() if isinstance(place, str)]
        self._names = {*named, *(place.rpartition(":")[0] for place in named)}
        self.graph, self.inside = graph, inside
        if any(op.type in calls.CALLS and not control_flow.is_compiled(op) for op in graph.get_operations()):
            self.graph, self.inside, _ = flat_copy(graph, inside)
        search = PlaceSearch(api, function, self.graph)
        self.found = {
            key: tf.nest.map_structure(_behind_own_gradient, search.find(key, place)) for key, place in wanted.items()
        }
        tensors = [tensor for found in self.found.values() for tensor in tf.nest.flatten(found)]
        self.ops = [tensor.op for tensor in tensors]
        self._wanted = set(map(id, self.ops))
        if not drops_own_gradients:
            own = own_gradients.OwnGradients(self, control_flow.functions_of)
            for around in self.graph.get_operations():
                for op in own_gradients.with_inner_ops(around, control_flow.functions_of):
                    positions = own_gradients.differentiated_inputs(op)
                    if positions is not None:
                        own.keeps(op, positions, False, own_gradients.name_of_owner(op))
            own.check_rules_reach(f"'{function}'", self.graph.outputs)
        self._num_outputs = len(self.graph.outputs)
        self.graph.outputs = [*map(self._returned, self.graph.outputs), *tensors]

    def _returned(self, output: Any) -> Any:
        """The tensor that the function returns. TensorFlow puts an Identity behind it, which nothing else reads."""
        while output.op.type == "Identity" and layer_of(output.op) is None and not self.matched(output.op):
            output = output.op.inputs[0]
        return output

    def matched(self, op: Any) -> bool:
        """Whether an op is a place."""
        return id(op) in self._wanted

    def warn_of_unreached(self, place: str, functions: Collection[str]) -> None:
        """Values need no gradient."""

    def check_all_reached(self, place: str, reached: Collection[int], around: Mapping[int, str]) -> None:
        """Raises ValueError for a place that lies in a function with its own gradient, which skips it."""
        for op in self.ops:
            if id(op) in around and id(op) not in reached:
                raise ValueError(
                    f"{self._api}: a place must be outside of functions that have their own gradient, got '{op.name}' "
                    f"({op.type}) in '{around[id(op)]}': {place} would have no gradient by it. "
                    f"{inside_option(self._api)} to replace that gradient by TensorFlow's gradient of its ops."
                )

    def run(self, values: Sequence[Any], given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The outputs and the values at the places, for values of the inputs, and given ones for places."""
        in_graph = not tf.executing_eagerly()

        def replace(copy: GraphCopy, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
            layer = layer_of(op)
            if layer and layer[1] not in self._names:
                return inputs
            positions = own_gradients.differentiated_inputs(op) if self._drops else None
            if positions is not None and own_gradients.contains(op, positions, self.matched, control_flow.functions_of):
                return [tf.identity(result) for result in inputs[: len(op.outputs)]]
            return None if in_graph or op.type != "CustomGradientRule" else attaching.run_eagerly(op, inputs)

        pairs = [*zip(self.inside, values, strict=True), *self._given(given)]
        copy = GraphCopy(pairs, replace, is_ordered=True, records=True, names=True)
        outputs = copy.outputs_of(self.graph)[: self._num_outputs]
        return outputs, {
            key: [copy[tensor] for tensor in found] if isinstance(found, list) else copy[found]
            for key, found in self.found.items()
        }

    def _given(self, given: Mapping[str, Any]) -> Iterator[tuple[Any, tf.Tensor]]:
        known: dict[int, str] = {}
        for key, value in given.items():
            found = self.found[key]
            if isinstance(found, list) and not (isinstance(value, (list, tuple)) and len(value) == len(found)):
                raise ValueError(
                    f"{self._api}: {key} must be a list of {text.count(len(found), 'Tensor')}, one for each op of its "
                    f"place, with None for what stays, got {text.describe_type(value)}."
                )
            pairs = zip(found, value, strict=True) if isinstance(found, list) else [(found, value)]
            for tensor, new in pairs:
                if new is not None and known.setdefault(id(tensor), key) != key:
                    raise ValueError(f"{self._api}: {key} must be another value than {known[id(tensor)]}, got both.")
                if new is not None:
                    yield tensor, self._fitted(key, tensor, new)

    def _fitted(self, key: str, tensor: Any, new: Any) -> tf.Tensor:
        new = tf.convert_to_tensor(new, None if hasattr(new, "dtype") else tensor.dtype)
        if new.dtype != tensor.dtype or not new.shape.is_compatible_with(tensor.shape):
            wrong: type[Exception] = ValueError
            advice = "Give it the shape that the value has in this call."
            if new.dtype != tensor.dtype:
                wrong, advice = TypeError, "Cast it with tf.cast."
            raise wrong(
                f"{self._api}: {key} must be a Tensor like the value that it replaces in '{self._function}', "
                f"{tensor.dtype.name} of shape {tensor.shape}, got {new.dtype.name} of shape {new.shape}. {advice}"
            )
        return new
