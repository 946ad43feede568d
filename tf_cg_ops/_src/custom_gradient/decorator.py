"""`custom_gradient`: a function with its own gradient function."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, overload

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, pytree, text, tf_internal
from tf_cg_ops._src.core.types import P, R, Structure
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.keras import dispatch, registration

_FOR_VALUES = (
    "For values, as with the custom_gradient(fx, gx, x) of TFP and contrib, write tf_cg_ops.embed_gradient(fx, gx, x), "
    "or tf_cg_ops.compat.tfp_math.custom_gradient(fx, gx, x) for TFP's shapes"
)
_DECORATES = "It decorates one function, which returns (value, grad_fn): @tf_cg_ops.custom_gradient."


# `Any`: mypy takes a choice between two lambdas for an object.
@overload
def custom_gradient(f: Callable[P, tuple[R, Any]], *, saved_orders: int | None = None) -> Callable[P, R]: ...
@overload
def custom_gradient(
    f: None = None, *, saved_orders: int | None = None
) -> Callable[[Callable[P, tuple[R, Any]]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
@misplaced_calls.explains(
    "custom_gradient",
    f"{_DECORATES} {_FOR_VALUES}; for two functions, write tf_cg_ops.custom_vjp(forward, backward).",
)
def custom_gradient(
    f: Callable[..., tuple[Structure, Callable[..., Structure]]] | None = None, *, saved_orders: int | None = None
) -> Callable[..., Structure]:
    """Decorates a function that returns its value together with its gradient function.

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

    `f(*args, **kwargs)` returns a pair `(y, grad_fn)`. The decorated function returns `y`, and its gradient is

        dx = grad_fn(*dy)

    with one upstream gradient in `dy` for each tensor of `y`. `grad_fn` returns one gradient for each argument, in a
    tuple or list, flat or in the structure of the arguments, or in a dict with the names of the arguments as keys:

    - Return `None` for an argument that has no gradient. You can leave out the last entries if their arguments hold no
      Tensor, such as `training=True`.
    - Return the gradients of `**kwargs` in a dict, as in `return dx, {"scale": dscale, "bias": dbias}`: TensorFlow does
      not keep the order of keyword arguments.
    - Arguments can be nested structures, `tf.experimental.ExtensionType`s, and values that are not tensors.
    - A gradient of another floating-point dtype is cast to the dtype of its argument. Anything else that does not fit
      is an error.

    If `f` reads trainable variables that are not among its arguments, `grad_fn` takes a keyword argument `variables`, a
    list in the order of their creation, and returns `(gradients of the arguments, gradients of the variables)`.

    For second derivatives, TensorFlow differentiates `grad_fn`. To check that the gradient is right, use
    `tf_cg_ops.testing.check_gradient`. The guide "Write a gradient function" has more about variables, sliced
    gradients, side effects, memory and higher derivatives.

    Args:
      f: The function or method. Leave it out to use the decorator with parentheses.
      saved_orders: The highest order of derivative that a loaded model can compute if `grad_fn` calls decorated
        functions. By default 1, or up to 3 if they are cheap to trace.

    Returns:
      A function with the signature of `f` that returns its `y`, in the same structure.

    Raises:
      TypeError: `f` is not a function. When you call it: `f` does not return a pair `(y, grad_fn)`, or reads variables
        that `grad_fn` does not take. When you compute a gradient: `grad_fn` returned complex numbers for a real input,
        integers or text, or its gradients in something else than a tuple, list, dict or iterator.
      ValueError: `saved_orders` is less than 1. When you compute a gradient: `grad_fn` returned a wrong number of
        gradients, one of the wrong shape, one for an argument without Tensors, or a dict with other keys.
      RuntimeError: When you compute a gradient of a loaded model: its `grad_fn` could not be traced, or the file does
        not have derivatives of this order.
      tf.errors.InvalidArgumentError: A gradient has the wrong shape, and the shape is only known at run time.

    If `grad_fn` raises an exception, you get it unchanged when you compute a gradient.

    Differs from `tf.custom_gradient`, whose documentation has the same example:

    - It works in forward mode, for keyword arguments, and in loops and conditionals of a loaded SavedModel, even if
      `grad_fn` reads a tensor from inside the loop.
    - The number, shape and dtype of the gradients are checked in every mode.
    - `dy` is a Tensor even where TensorFlow passes a `tf.IndexedSlices`, such as below a `tf.gather`.
    - In a graph, `grad_fn` runs once more, when the value is traced.
    """
    saved_orders = check_saved_orders("custom_gradient", saved_orders)
    if f is None:
        return functools.partial(custom_gradient, saved_orders=saved_orders)
    if not callable(f):
        raise not_a_function("custom_gradient", f, f"{_DECORATES} {_FOR_VALUES}.")
    run = (
        call_with_gradient if saved_orders is None else functools.partial(call_with_gradient, saved_orders=saved_orders)
    )
    return CustomGradient("custom_gradient", f, run)


def check_saved_orders(api: str, saved_orders: Any) -> int | None:
    """The argument `saved_orders`, checked."""
    if saved_orders is not None and type(saved_orders) is not int:
        raise TypeError(f"{api}: saved_orders must be an int such as 2, got {text.describe(saved_orders)}.")
    if saved_orders is not None and saved_orders < 1:
        raise ValueError(f"{api}: saved_orders must be at least 1, got {saved_orders}.")
    return saved_orders


_PASS_THE_FUNCTION = "Pass the function itself, then call the result with its arguments."


def not_a_function(api: str, value: Any, advice: str = _PASS_THE_FUNCTION) -> TypeError:
    """The error for an argument that is not a function."""
    return TypeError(f"{api}: the argument must be a function, got {text.describe_type(value)}. {advice}")


# Otherwise AutoGraph would follow __wrapped__ and call the function without its gradient.
@tf_internal.autograph_artifact
class CustomGradient:
    """A decorated function or method, which calls `run(function, args, kwargs)`.

    With the options, if a file can hold them, the API can make the same function again.
    """

    def __init__(
        self, api: str, function: Callable[..., Any], run: Callable[..., Any], options: dict[str, Any] | None = None
    ) -> None:
        if not callable(function):
            raise not_a_function(api, function)
        self._wrap(function)
        self.api = api
        self.options = options
        self._run = run
        self._unbound: CustomGradient | None = None  # The decorated function of a bound method.
        self._attributes = {self.__name__}  # Its names in classes.

    def _wrap(self, function: Callable[..., Any]) -> None:
        # A functools.partial, for example, has no name.
        self.__name__ = type(function).__name__
        self.__qualname__ = type(function).__qualname__
        functools.update_wrapper(self, function, updated=())
        # TensorFlow's own attributes, such as the dispatcher of an op, belong to the function and cannot be pickled.
        own = {k: v for k, v in getattr(function, "__dict__", {}).items() if not k.startswith(("_tf_", "__"))}
        if isinstance(function, (types.FunctionType, types.MethodType)):
            self.__dict__.update(own)
        with contextlib.suppress(TypeError, ValueError):  # Some callables written in C have no signature.
            self.__signature__ = inspect.signature(function)
        self._function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self._attributes.add(name)

    def __get__(self, instance: Any, owner: type | None = None) -> CustomGradient:
        """Binds a method, so that `self` is not an argument with a gradient."""
        if instance is None or self._unbound is not None or not hasattr(self._function, "__get__"):
            return self
        bound = object.__new__(type(self))
        vars(bound).update(vars(self))
        bound._wrap(self._function.__get__(instance, owner))
        bound._unbound = self
        return bound

    def __eq__(self, other: object) -> bool:
        """Bound methods are equal if function and instance are the same, as in Python."""
        if self._unbound is None or not isinstance(other, CustomGradient) or other._unbound is None:
            return self is other
        return self._unbound is other._unbound and self._instance() is other._instance()

    def __hash__(self) -> int:
        """Equal bound methods have equal hashes."""
        return object.__hash__(self) if self._unbound is None else hash((id(self._unbound), id(self._instance())))

    def _instance(self) -> Any:
        return getattr(self._function, "__self__", self._function)

    def _is_method_of(self, first: Any) -> bool:
        """Whether this method was called as `Base.method(self)`, so that the first argument is its `self` or `cls`.

        Properties call what they decorate like this, and since Python 3.13 a classmethod does, too.
        """
        if isinstance(first, tf.Tensor) or self._unbound is not None or not hasattr(self._function, "__get__"):
            return False
        namespaces = [vars(base) for base in type(first).__mro__]
        if isinstance(first, type):
            namespaces += [vars(base) for base in first.__mro__]
        found = [space[name] for space in namespaces for name in self._attributes if name in space]
        # A classmethod, a property, a cached_property and a partialmethod hold the function that they call.
        held = [getattr(attribute, name, None) for attribute in found for name in ("__func__", "fget", "func")]
        return any(self is function for function in (*found, *held))

    @tf_internal.autograph_artifact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        statuses = tf_internal.autograph_statuses()
        statuses.append(tf_internal.NOT_TRANSLATED)
        try:
            if kwargs or not pytree.are_eager_tensors(args):
                if args and self._is_method_of(args[0]):
                    return self.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
                package = dispatch.package_of_keras_tensors((*args, *kwargs.values()))
                if package:
                    return dispatch.call_symbolically(package, self, args, kwargs)
            return self._run(self._function, args, kwargs)
        finally:
            statuses.pop()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles by name, like a function; by value if the name is not found and the pickler can do that."""
        instance = getattr(self._function, "__self__", None)
        if isinstance(self._function, types.MethodType) and type(getattr(instance, self.__name__, None)) is type(self):
            return getattr, (instance, self.__name__)
        by_value = _stores_programs_by_value()
        if _has_its_name(self, self) and not (by_value and self.__module__ == "__main__"):
            return self.__qualname__
        is_lost = isinstance(self._function, types.FunctionType) and not _has_its_name(self._function, self._function)
        if not by_value and (is_lost or "<locals>" in getattr(self._run, "__qualname__", "")):
            raise pickle.PicklingError(
                f"{self.api}: '{self.__qualname__}' cannot be pickled because the module {self.__module__!r} has "
                "another object, or none, under this name. Decorate a function at the top level of a module, or use "
                "cloudpickle."
            )
        return super().__reduce_ex__(protocol)

    def __tf_tracing_type__(self, context: Any) -> Any:
        """Makes a tf.function compare arguments by identity, not by the function in __wrapped__."""
        return tf_internal.TraceTypeByIdentity(weakref.ref(self))

    def __copy__(self) -> CustomGradient:
        """Returns itself, like a function."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CustomGradient:
        """Returns itself, like a function."""
        return self

    def get_config(self) -> dict[str, Any]:
        """The config that Keras saves, for example for the activation of a layer."""
        return registration.function_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Callable[..., Any]:
        """The function that Keras saved."""
        return registration.function_from_config(config)


def _has_its_name(function: Any, wanted: Any) -> bool:
    """Whether the module of the function has the object under the function's name."""
    found = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is wanted


def _stores_programs_by_value() -> bool:
    """Whether the current pickler stores functions of `__main__` by value, for processes that do not have them.

    An object does not learn which pickler stores it, so this looks at the stack.
    """
    frame = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "").split(".")
        if not {"cloudpickle", "cloudpickle_fast", "dill", "_dill"}.isdisjoint(module):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


registration.classes.append(CustomGradient)
