"""`custom_gradient`: a function with its own gradient function."""

import contextlib
import dataclasses
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import pytree, tapes, tf_internal
from tf_cg_ops._src.custom_gradient import checks, graph_rule, wording
from tf_cg_ops._src.keras import dispatch, registration, scopes


@tf_internal.autograph_artifact
def custom_gradient(f: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Decorates a function that returns its value together with its gradient function.

    `f(*args, **kwargs)` returns a pair `(y, grad_fn)`. The decorated function returns `y`; its gradient for the
    upstream gradients `dy`, one for each tensor of `y`, is

        dx = grad_fn(*dy)

    with one entry for each argument, flat or in their structure: a vector-Jacobian product, or whatever `grad_fn` says
    it is. Arguments may be nested structures and may hold what is no tensor; `None` stands for no gradient. Entries for
    arguments at the end that hold no Tensor, such as `training=True`, may be left out.

    `grad_fn` is called where a gradient is asked for. In a graph it is also traced, with the value, into a function of
    the graph that the op `CustomGradientRule` names: the gradient goes wherever the graph goes, into loops,
    conditionals, other functions and a SavedModel that a fresh process opens. The results share the buffers of `y`.
    Second derivatives are those of the operations in `grad_fn`, and of its own decorated functions by their gradients.
    `grad_fn` may call the decorated function itself; a loaded model then has derivatives up to the third order.

    Below a `tf.gather` the upstream gradient is a `tf.IndexedSlices`. `dy` and its products with numbers stay slices,
    as does a `tf.IndexedSlices` that you return; every other operator makes `dy` dense.

    Variables. If `f` reads trainable variables that are not among its arguments, `grad_fn` takes the keyword argument
    `variables`, a list of them in the order of their creation, and returns `(gradients of the arguments, gradients of
    the variables)`.

    Relation to `tf.custom_gradient`: the same contract, with one more call of `grad_fn` for each trace. Keyword
    arguments work in every mode and have gradients; nothing is registered and nothing leaks; number, dtype and shape of
    the gradients are checked in every mode; a `grad_fn` that cannot be traced does not keep a model from being saved.

    What `grad_fn` reads of its surroundings is kept for it. In a graph it is computed only where a gradient is taken.
    In eager mode it always is: compute inside `grad_fn` what is expensive and not needed for `y`.

    What it does not do: check that the gradient is right, or differentiate `f` itself.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.custom_gradient
    ... def log1pexp(x):
    ...     e = tf.exp(x)
    ...     return tf.math.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))
    >>> x = tf.constant([0.0, 100.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = log1pexp(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([2.0, 10.0])).numpy().tolist()
    [1.0, 10.0]

    Args:
      f: The function, or a method; without it, the decorator itself is returned, for use with parentheses.

    Returns:
      A function with the signature of `f` that returns the `y` of `f`, in the same structure.

    Raises:
      TypeError: At the call: `f` does not return a pair `(y, grad_fn)`, or reads variables and `grad_fn` does not take
        them.
      ValueError: Where a gradient is asked for: `grad_fn` returned a wrong number of gradients, or one of the wrong
        dtype or shape. An exception inside `grad_fn` is raised there, too, as it is.
      RuntimeError: Where a gradient of a loaded SavedModel is asked for whose `grad_fn` could not be traced, or that is
        of an order above the third.
      tf.errors.InvalidArgumentError: A gradient has the wrong shape, and that shows at run time only.

    The example is that of `tf.custom_gradient`, with its stable gradient of log(1 + exp(x)).
    """
    return custom_gradient if f is None else CustomGradient("custom_gradient", f, run)


# AutoGraph would look through __wrapped__, and call the function without its gradient.
@tf_internal.autograph_artifact
class CustomGradient:
    """A decorated function or method: `run(function, args, kwargs)` computes it."""

    def __init__(self, api: str, function: Callable[..., Any], run: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(errors.NOT_A_FUNCTION.format(api=api, got=checks.describe_answer(function)))
        # Some callables have no name, such as those of functools.partial.
        self.__name__ = type(function).__name__
        self.__qualname__ = type(function).__qualname__
        functools.update_wrapper(self, function)
        with contextlib.suppress(TypeError, ValueError):  # Some callables written in C have no signature.
            self.__signature__ = inspect.signature(function)
        self.api = api
        self._function = function
        self._run = run

    def __get__(self, instance: Any, owner: type | None = None) -> "CustomGradient":
        """Binds a method: `self` is no argument that has a gradient."""
        if instance is None or not hasattr(self._function, "__get__"):
            return self
        return CustomGradient(self.api, self._function.__get__(instance, owner), self._run)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        package = dispatch.package_of_keras_tensors((*args, *kwargs.values()) if kwargs else args)
        if package:
            return dispatch.call_symbolically(package, self, args, kwargs)
        return self._run(self._function, args, kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By its name, as a function is pickled; by value where there is no such name (some picklers can do that)."""
        instance = getattr(self._function, "__self__", None)
        if isinstance(self._function, types.MethodType) and type(getattr(instance, self.__name__, None)) is type(self):
            return getattr, (instance, self.__name__)
        found = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else super().__reduce_ex__(protocol)

    def __tf_tracing_type__(self, context: Any) -> Any:
        """As an argument of a tf.function it is itself, and not the function in __wrapped__."""
        return tf_internal.TraceTypeOfAnObject(weakref.ref(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> "CustomGradient":
        """Itself, as of a function."""
        return self

    def get_config(self) -> dict[str, Any]:
        """What Keras saves where the function is, for example, the activation of a layer."""
        return registration.function_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Callable[..., Any]:
        """The function that Keras saved."""
        return registration.function_from_config(config)


registration.classes.append(CustomGradient)


@dataclasses.dataclass(frozen=True, eq=False)
class GradientByCaptures:
    """A gradient function that has gradients by Tensors beside the arguments, too."""

    function: Callable[..., tuple[Any, Sequence[Any]]]  # Returns what a gradient function does, and those gradients.
    captures: list[tf.Tensor]

    def __call__(self, *dys: Any, variables: Sequence[tf.Variable] = ()) -> tuple[Any, Sequence[Any]]:
        """The answer of the function."""
        return self.function(*dys, variables=variables)


def run(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    constants: Collection[str] = (),
    terms: wording.Terms = wording.CUSTOM_GRADIENT,
    written: Callable[..., Any] | None = None,
) -> Any:
    """Computes the value and gives it the gradient, on the tape in eager mode and in the graph elsewhere.

    The arguments named in `constants` have no gradient, and `grad_fn` has no entry for them. `written` is the function
    that the user wrote, where that is not `function` itself: it has the name and the signature.
    """
    api, written = terms.api, written or function
    name = pytree.name_of(written)
    arguments = pytree.flatten_arguments(api, written, args, kwargs, constants)
    # Before the call: what it is differentiated by are the values that the function got.
    inputs = [pytree.tensors_for_gradients(value) for value in arguments.values]
    around = scopes.current()
    eagerly = tf.executing_eagerly()
    in_session_graph = not eagerly and not tf.compat.v1.get_default_graph().building_function
    known = len(tf.compat.v1.get_default_graph().get_operations()) if in_session_graph else 0
    try:
        with tf_internal.VariableWatcher() as watcher:
            result, grad_fn = _unpack(terms, name, function(*args, **kwargs))
    except TypeError:
        pytree.check_arguments(api, written, args, kwargs)
        raise
    if in_session_graph:
        operations = tf.compat.v1.get_default_graph().get_operations()[known:]
        checks.no_reference_variables(api, name, operations, arguments)
    variables = pytree.captured_variables(watcher.watched_variables(), arguments.values)
    gradient_checks = checks.GradientChecks(terms, name, arguments, inputs, variables)
    gradient_checks.takes_variables(grad_fn)
    reads = [tf.convert_to_tensor(variable) for variable in variables]

    is_tensor = isinstance(result, tf.Tensor)
    leaves = [result] if is_tensor else tf.nest.flatten(result)
    if not is_tensor and dispatch.package_of_keras_tensors(leaves):  # Behind a closure, or in an object.
        raise TypeError(
            f"{api}: '{name}' computes with KerasTensors that are not among its arguments as far as can be seen, "
            "and its gradient would be lost; expected them as arguments, or in lists, tuples and dictionaries, "
            "got a value that is a KerasTensor. Pass them so, or call it in the call() of a keras.layers.Layer."
        )
    outputs = [pytree.to_output(leaf) for leaf in leaves]
    components = [pytree.tensors_for_gradients(leaf) for leaf in outputs]

    def backward(upstream: Sequence[Any]) -> list[Any]:
        if scopes.current() != around:
            with scopes.entered(around):
                return backward(upstream)
        dys = pytree.upstream_of(outputs, components, upstream)
        try:
            answer = grad_fn(*dys, variables=variables) if variables else grad_fn(*dys)
        except TypeError as error:
            message = gradient_checks.upstream_not_taken(grad_fn, dys)
            if not message:
                raise
            raise TypeError(message) from error
        if isinstance(grad_fn, GradientByCaptures):
            return [*gradient_checks.gradients(answer[0]), *answer[1]]
        return gradient_checks.gradients(answer)

    captures = grad_fn.captures if isinstance(grad_fn, GradientByCaptures) else []
    flat_inputs = [*(tensor for tensors in inputs for tensor in tensors), *reads, *captures]
    flat_results = [tensor for tensors in components for tensor in tensors]
    if not flat_results:
        return result
    if eagerly:
        # Unrecorded, or forward mode would take the tangent of `y`.
        flat_outputs = [tapes.unrecorded_identity(tensor) for tensor in flat_results]
        tapes.record(name, flat_outputs, flat_inputs, lambda *dys: backward(dys))
    else:
        flat_outputs = graph_rule.attach(terms, name, flat_results, flat_inputs, backward)
    if is_tensor:
        return flat_outputs[0]
    return tf.nest.pack_sequence_as(result, pytree.replace_tensors(outputs, components, flat_outputs))


def _unpack(terms: wording.Terms, name: str, answer: Any) -> tuple[Any, Callable[..., Any]]:
    if isinstance(answer, tuple) and len(answer) == 2 and callable(answer[1]):
        return answer
    what, second = terms.beside_the_value
    where = terms.where(name) | {"what": what, "second": second}
    raise TypeError(errors.NOT_A_PAIR.format(**where, got=checks.describe_answer(answer)))
