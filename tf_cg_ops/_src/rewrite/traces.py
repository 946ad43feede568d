"""Keeps the traces that calls in eager mode make. `tf.function` decides when a call can reuse one.

For each traced function there is a `tf.function` without ops. It compares the arguments of a call with earlier calls,
locks, and warns when it retraces too often.
"""

import contextlib
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.core.variables import as_variable, read_from_outside
from tf_cg_ops._src.core.weak import IdentityKey, WeakIdentityDict
from tf_cg_ops._src.keras import keras_internal

# The attribute of a graph with the slot of its signature.
_SLOT = "_tf_cg_ops_slot"
# Values of these types are compared by type and by what they print, so that -0.0 differs from 0.0, and nan equals nan.
_NUMBERS = (bool, int, float, complex)
_PLAIN = (str, bytes, np.str_, np.bytes_, type(None), tf.DType, tf.TensorShape, range, type(Ellipsis))

_by_owner = WeakIdentityDict()
_by_object = WeakIdentityDict()  # For methods: first by the object, then by the function.
_lock = threading.RLock()


def find_or_make(
    api: str,
    function: Callable[..., Any],
    key: Any,
    make: Callable[[], Any],
    *,
    others: Sequence[Callable[..., Any]] = (),
    owner: Any = None,
) -> Any:
    """Returns `make()`, which traces the function. In eager mode, reuses an earlier result for the same signature.

    The signature consists of the structure of `key`, the specs of its Tensors and its other values, the scopes of
    Keras, the arguments that Keras forwards, the replica of a strategy, and the Tensors and variables that the function
    or one of the others reads from outside. Objects are compared by identity. When one of them dies, the results for it
    are dropped. The results are kept as long as the owner (by default the function), and must not refer to it. An owner
    that is a `Traces` keeps them itself.
    """
    if not tf.executing_eagerly():
        return make()
    with _lock:
        traces = owner if isinstance(owner, Traces) else _traces_of(function if owner is None else owner)
    # A trace has a gradient with respect to the Tensor that it captured, but not with respect to a later one.
    outside = [value for each in (function, *others) for value in read_from_outside(each)]
    slot = traces.slot_for(api, function, key, outside)
    with slot.lock:
        made = traces.made.get(slot)
        if made is None:
            with explain_missing_numbers(api, function), traces.variables_reused():
                made = traces.made[slot] = make()
        return made


def variables_reused(function: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """A context for an eager call of the function, in which `get_variable` finds variables that a trace of it made."""
    if isinstance(function, types.MethodType):
        by_function = _by_object.get(function.__self__)
        found = None if by_function is None else by_function.get(function.__func__)
    else:
        found = _by_owner.get(function)
    return found.variables_reused() if found is not None and found.made_variables else contextlib.nullcontext()


def _traces_of(owner: Any) -> "Traces":
    if isinstance(owner, types.MethodType):
        return _by_object.setdefault(owner.__self__, WeakIdentityDict).setdefault(owner.__func__, Traces)
    return _by_owner.setdefault(owner, Traces)


@contextlib.contextmanager
def explain_missing_numbers(api: str, function: Callable[..., Any]) -> Iterator[None]:
    """Raises a clear TypeError if the function fails because it needs the numbers in a Tensor while it is traced."""
    try:
        yield
    except (TypeError, AttributeError, NotImplementedError) as error:
        # Such as "unsupported format string passed to SymbolicTensor.__format__".
        is_explained = str(error).startswith(f"{api}: ")  # A function that this one calls has explained it.
        if is_explained or not re.search("symbolic", str(error), re.IGNORECASE):
            raise
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise TypeError(
            f"{api}: '{text.name_of(function)}' needs the numbers in a Tensor, which has none while the function is "
            f"traced into a graph ({type(error).__name__}: {reason}). Compute with TensorFlow ops; decorate it with "
            "tf.function if it branches on a Tensor, or use numpy_function if it computes in Python."
        ) from error


def arrays_to_tensors(structure: Any) -> Any:
    """In eager mode, replaces NumPy arrays and numbers by Tensors, so that they are inputs, as for a tf.function."""
    if not tf.executing_eagerly():  # In a graph, an array is a constant.
        return structure
    return tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf) if _is_array(leaf) else leaf, structure)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "biufc"


class Traces:
    """The results for one function, for each signature of its arguments."""

    def __init__(self) -> None:
        self._signatures = tf.function(_keep_slot, autograph=False)
        # By slot. Not kept in the graph, because it takes two garbage collections to free a graph.
        self.made: dict[_Slot, Any] = {}
        self._variables = tf_internal.EagerVariableStore()
        self.made_variables = False

    @contextlib.contextmanager
    def variables_reused(self) -> Iterator[None]:
        """A context in which `tf.compat.v1.get_variable` finds a variable that a trace made under the same name.

        Without it, each eager call makes a new variable: a trace of `tf.function` puts variables into a store of
        graphs, where eager mode does not look for them.
        """
        scope = tf_internal.eager_variable_scope()
        with contextlib.ExitStack() as stack:
            if tf_internal.eager_variable_store() is None:  # Otherwise the user has a store for them.
                stack.enter_context(self._variables.as_default())
            stack.enter_context(
                tf.compat.v1.variable_scope(scope, reuse=tf.compat.v1.AUTO_REUSE, auxiliary_name_scope=False)
            )
            yield
        self.made_variables = bool(self._variables.variables())

    def slot_for(self, api: str, function: Callable[..., Any], key: Any, outside: Sequence[Any]) -> "_Slot":
        """The slot of a signature, which an earlier call may have made."""
        slot = _Slot(self)
        arguments = tf.nest.map_structure(lambda leaf: _argument(leaf, slot), key)
        identities = [IdentityKey(value, slot.empty) for value in outside]
        scope = _Static((*(_key(value, slot) for value in _scope()), *identities), slot)
        graph = self._signatures.get_concrete_function(scope, arguments).graph
        found = getattr(graph, _SLOT)
        # Only a call warns of frequent tracing, not get_concrete_function.
        if found is slot:
            tf_internal.frequent_tracing.called_with_tracing(self, f"{api} of '{text.name_of(function)}'", False)
        else:
            tf_internal.frequent_tracing.called_without_tracing(self)
        return found


class _Slot:
    """Identifies a signature. It is an attribute of the graph that tf.function finds for the signature."""

    def __init__(self, traces: Traces) -> None:
        self.lock = threading.RLock()
        self._traces = weakref.ref(traces)

    def empty(self, _: Any) -> None:
        """Drops the result for this signature, because one of its objects has died."""
        traces = self._traces()
        if traces is not None:
            traces.made.pop(self, None)


def _keep_slot(scope: "_Static", arguments: Any) -> None:
    setattr(tf.compat.v1.get_default_graph(), _SLOT, scope.slot)


class _Static(tf.types.experimental.TraceType):
    """An argument other than a Tensor, identified by a key that does not keep objects alive."""

    def __init__(self, key: Any, slot: _Slot | None = None) -> None:
        self._key = key
        self.slot = slot

    def __tf_tracing_type__(self, context: Any) -> "_Static":
        return self

    def is_subtype_of(self, other: Any) -> bool:
        return self == other

    def most_specific_common_supertype(self, others: Sequence[Any]) -> "_Static | None":
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any = None) -> "_Static":
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _argument(leaf: Any, slot: _Slot) -> Any:
    """The leaf for tf.function: Tensors are inputs, everything else is part of the signature."""
    return leaf if tf.is_tensor(leaf) and as_variable(leaf) is None else _Static(_key(leaf, slot))


def _key(value: Any, slot: _Slot) -> Any:
    """A key for a value that is not an input of the trace."""
    kind = type(value)
    if kind in _NUMBERS:
        return kind, repr(value)
    if kind in _PLAIN or isinstance(value, tf.TypeSpec):
        return kind, value
    if kind is slice:
        return kind, *(_key(part, slot) for part in (value.start, value.stop, value.step))
    if kind is tuple:
        return kind, *(_key(part, slot) for part in value)
    if kind is types.MethodType:  # A new object each time.
        return kind, _key(value.__self__, slot), _key(value.__func__, slot)
    return IdentityKey(value, slot.empty)


def _scope() -> tuple[Any, ...]:
    """Everything around a call that changes its trace. Tensors that Keras forwards are captured with their values."""
    strategy = replica = None
    if tf.distribute.has_strategy():  # Each replica has its own variables.
        strategy, context = tf.distribute.get_strategy(), tf.distribute.get_replica_context()
        replica = None if context is None else int(context.replica_id_in_sync_group)
    variables = tf.compat.v1.get_variable_scope()  # Another scope or store has other variables.
    of_variables = variables.name, variables.custom_getter, tf_internal.eager_variable_store()
    return *keras_internal.state_of_call(), strategy, replica, *of_variables
