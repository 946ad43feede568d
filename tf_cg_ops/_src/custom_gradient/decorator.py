"""`custom_gradient`: a function with its own gradient function."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, overload

from tf_cg_ops._src.core import misplaced_calls, pytree, text, tf_internal
from tf_cg_ops._src.core.types import P, R, Structure
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.keras import dispatch, registration

_FOR_VALUES = (
    "For values, as with the custom_gradient(fx, gx, x) of TFP and contrib, write tf_cg_ops.embed_gradient(fx, gx, x), "
    "or tf_cg_ops.compat.tfp_math.custom_gradient(fx, gx, x) for TFP's shapes"
)
_AS_IN_PYTORCH = (
    "Write tf_cg_ops.custom_vjp({0}.forward, {0}.backward). Unlike in PyTorch, they take no ctx: forward(*args) "
    "returns (value, residuals), and backward(residuals, *dys) returns the gradients."
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

    Use it if you know a gradient that is more accurate or cheaper than the one TensorFlow derives, or different on
    purpose.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.custom_gradient
    ... def log1pexp(x):
    ...     y = tf.maximum(x, 0.0) + tf.math.log1p(tf.exp(-tf.abs(x)))
    ...     return y, lambda dy: dy * tf.sigmoid(x)  # TensorFlow's own gradient is twice as large at 0.
    >>> x = tf.constant([0.0, 100.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = log1pexp(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([2.0, 10.0])).numpy().tolist()
    [1.0, 10.0]

    `f(*args, **kwargs)` returns a pair `(y, grad_fn)`. The decorated function returns `y`, and its gradient is

        dx = grad_fn(*dy)

    with one upstream gradient in `dy` for each tensor of `y`, but none for a `None` in it. `grad_fn` returns one
    gradient for each argument, in a tuple or list, flat or in the structure of the arguments:

    - Return `None` for an argument that has no gradient; `[None]` if it is the only one, because a function without a
      `return` returns `None`, which is an error. You can leave out arguments without a Tensor, such as `training=True`,
      if it stays clear which arguments your gradients belong to.
    - Return the gradients of `**kwargs` in a dict, as in `return dx, {"scale": dscale, "bias": dbias}`.
    - Arguments can be nested structures, `tf.experimental.ExtensionType`s, and values that are not tensors.
    - A gradient of another floating-point dtype is cast to the dtype of its argument. An integer or bool for an integer
      or bool argument is dropped. Anything else must fit; an array is checked like a Tensor.

    If `f` reads trainable variables that are not among its arguments, `grad_fn` takes a keyword argument `variables`, a
    list in the order of their creation, and returns `(gradients of the arguments, gradients of the variables)`.

    For second derivatives, TensorFlow differentiates `grad_fn`. To check that the gradient is right, use
    `tf_cg_ops.testing.check_gradient`. The guide "Write a gradient function" has more about variables, sliced
    gradients, side effects, memory and higher derivatives.

    Args:
      f: The function or method. Leave it out to use the decorator with parentheses.
      saved_orders: The highest order of derivative that a loaded model can compute if `grad_fn` calls decorated
        functions. By default 1.

    Returns:
      A function with the signature of `f` that returns its `y`, in the same structure.

    Raises:
      TypeError: `f` does not return `(y, grad_fn)`; `grad_fn` returns nothing, or does not take the `variables`; a
        gradient is not numeric, or complex for a real input.
      ValueError: `saved_orders` is less than 1; the gradients do not fit in number, structure or shape.
      RuntimeError: A loaded model lacks this gradient or order.
      tf.errors.InvalidArgumentError: A shape is wrong at run time.

    Exceptions of `f` and `grad_fn` reach you unchanged, some with a note that helps.

    Differs from `tf.custom_gradient`, whose documentation has a similar example:

    - It works in forward mode, for keyword arguments, and in loops and conditionals of a loaded SavedModel, even if
      `grad_fn` reads a tensor from inside the loop.
    - The number, shape and dtype of the gradients are checked in every mode.
    - `dy` is a Tensor even where TensorFlow passes a `tf.IndexedSlices`, if `y` feeds a `tf.gather`.
    - In a graph, `grad_fn` runs once more, when the value is traced.
    """
    saved_orders = check_saved_orders("custom_gradient", saved_orders)
    if f is None:
        return functools.partial(custom_gradient, saved_orders=saved_orders)
    if isinstance(f, type) and callable(getattr(f, "forward", None)) and callable(getattr(f, "backward", None)):
        got = f"got {text.describe_type(f)}. {_AS_IN_PYTORCH.format(f.__name__)}"
        raise TypeError(f"custom_gradient: the argument must be a function, {got}")
    misplaced_calls.check_function("custom_gradient", "the argument", f, f"{_DECORATES} {_FOR_VALUES}.")
    return CustomGradient("custom_gradient", f, functools.partial(call_with_gradient, saved_orders=saved_orders))


def check_saved_orders(api: str, saved_orders: Any) -> int | None:
    """The argument `saved_orders`, checked."""
    if saved_orders is not None and type(saved_orders) is not int:
        raise TypeError(f"{api}: saved_orders must be an int such as 2, got {text.describe(saved_orders)}.")
    if saved_orders is not None and saved_orders < 1:
        raise ValueError(f"{api}: saved_orders must be at least 1, got {saved_orders}.")
    return saved_orders


PASS_THE_FUNCTION = "Pass the function itself, then call the result with its arguments."


# The attribute of decorated functions that names their Decoration; picklers look there, too.
_RECORD = "__tf_cg_ops__"


@dataclasses.dataclass(eq=False)
class Decoration:
    """What a decorator knows: its name, the user's function, and `run(function, args, kwargs)`, which calls it.

    With the options, if a file can hold them, the API can make the same function again. `owners` are the classes that
    were defined with it as a method, and `place` is the module and the name under which it can be found.
    """

    api: str
    function: Callable[..., Any]
    run: Any  # A function, or an object that is called like one.
    options: dict[str, Any] | None
    place: tuple[str, str]
    owners: tuple[type, ...] = ()

    def call(self, decorated: Any, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls the function, or the method that it is of an instance; `decorated` is what a functional model keeps."""
        statuses = tf_internal.autograph_statuses()
        statuses.append(tf_internal.NOT_TRANSLATED)
        try:
            if kwargs or not pytree.are_eager_tensors(args):
                package = dispatch.package_of_keras_tensors((*args, *kwargs.values()))
                if package:
                    return dispatch.call_symbolically(package, decorated, args, kwargs)
            return self.run(function, args, kwargs)
        finally:
            statuses.pop()


# Otherwise AutoGraph would follow __wrapped__ and call the function without its gradient.
@tf_internal.autograph_artifact
class CustomGradient:
    """A decorated function. Its `__dict__` belongs to the user; its Decoration is in a slot, which nothing copies."""

    __slots__ = ("__dict__", "__method", "__tf_cg_ops__", "__weakref__")
    __method: Method

    def __new__(cls, api: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Decorates what a classmethod or staticmethod calls: the other order of the decorators means the same."""
        if isinstance(function, (classmethod, staticmethod)):
            return type(function)(cls(api, function.__func__, *args, **kwargs))
        return object.__new__(cls)

    def __init__(
        self, api: str, function: Callable[..., Any], run: Callable[..., Any], options: dict[str, Any] | None = None
    ) -> None:
        misplaced_calls.check_function(api, "the argument", function, PASS_THE_FUNCTION)

        def record() -> Decoration:
            return decoration

        self.__tf_cg_ops__ = record
        self.__dict__ = record.__dict__  # A pickler that stores the record by its code stores the attributes with it.
        if isinstance(function, (types.FunctionType, types.MethodType, CustomGradient)):
            # TensorFlow's own attributes, such as the dispatcher of an op, belong to the function.
            kept = (name for name in vars(function) if not name.startswith("_tf_") and not hasattr(type(self), name))
            vars(self).update({name: vars(function)[name] for name in kept})
        # A functools.partial, for example, has no name.
        self.__name__, self.__qualname__ = type(function).__name__, type(function).__qualname__
        functools.update_wrapper(self, function, updated=())
        decoration = Decoration(api, function, run, options, (self.__module__, self.__qualname__))

    @tf_internal.autograph_artifact
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        decoration = self.__tf_cg_ops__()
        if decoration.owners and args and isinstance(args[0], decoration.owners):  # Base.method(self, x)
            return self.__get__(args[0])(*args[1:], **kwargs)
        return decoration.call(self, decoration.function, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds a method, so that `self` is not an argument with a gradient."""
        if instance is None or not hasattr(self.__tf_cg_ops__().function, "__get__"):
            return self
        return types.MethodType(self.__as_method__, instance)

    @property
    def __as_method__(self) -> Method:
        """The function of the bound methods. There is only one, so that they are equal as in Python."""
        try:
            return self.__method
        except AttributeError:
            self.__method = Method(self)
            return self.__method

    def __set_name__(self, owner: type, name: str) -> None:
        decoration = self.__tf_cg_ops__()
        if not decoration.owners:
            decoration.place = owner.__module__, f"{owner.__qualname__}.{name}"
        decoration.owners += (owner,)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__tf_cg_ops__().function)

    @property
    def __original_wrapped__(self) -> Callable[..., Any]:
        """The name that TensorFlow's decorators have for `__wrapped__`."""
        return self.__tf_cg_ops__().function

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError, with help for what a function of JAX has, or a recomputed model or function."""
        if name.startswith("_"):
            return self.__getattribute__(name)  # Raises the error again, which can be a property's own.
        decoration = self.__tf_cg_ops__()
        api, shown = decoration.api, text.name_of(self)
        if name == "defvjp":
            raise AttributeError(
                f"{api}: '{shown}' has no defvjp as in JAX. Write tf_cg_ops.custom_vjp(forward, backward), which takes "
                "both passes at once."
            )
        if name == "plan":
            raise AttributeError(
                f"{api}: '{shown}' has no plan. plan needs memory=: write tf_cg_ops.recompute_grad(f, memory='auto')."
            )
        for keras in (module.keras for module in registration.loaded_modules()) if api == "recompute_grad" else ():
            if isinstance(decoration.function, keras.Model) and hasattr(keras.Model, name):
                layers = "tf_cg_ops.layers" + ".tf_keras" * (keras.__name__ == "tf_keras")
                raise AttributeError(
                    f"recompute_grad: a function has no '{name}'. Write model = {keras.__name__}.Sequential("
                    f"[{layers}.Recompute(model, memory='auto')]), then model.{name}."
                )
        return self.__getattribute__(name)

    def __repr__(self) -> str:
        return f"<{self.__tf_cg_ops__().api} of {self.__qualname__} at {id(self):#x}>"

    def __tf_tracing_type__(self, context: Any) -> Any:
        """Makes a tf.function compare arguments by identity, not by the function in __wrapped__."""
        return tf_internal.TraceTypeByIdentity(weakref.ref(self))

    def __deepcopy__(self, memo: Any = None) -> CustomGradient:
        """Returns itself, like a function."""
        return self

    __copy__ = __deepcopy__

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles like a function: each pickler decides whether it stores the name of the record, or its code."""
        record, decoration = self.__tf_cg_ops__, self.__tf_cg_ops__()
        module, name = decoration.place
        has_name = _find(module, name) is self
        if has_name and protocol < 4:  # Which cannot store the names of attributes.
            return name
        if not has_name and not isinstance(decoration.function, (types.FunctionType, CustomGradient)):
            # A functools.partial, or a bound method: Python pickles it by its contents.
            return type(self), (decoration.api, decoration.function, decoration.run, decoration.options)
        # Python's error for a function without a name shows the name of the record.
        advice = "which has no name in its module: decorate a function at the top level, or use cloudpickle"
        record.__module__ = module
        record.__qualname__ = f"{name}.{_RECORD}" if has_name else f"{text.name_of(self)} ({decoration.api}), {advice},"
        return _with_record, (type(self), record)

    def get_config(self) -> dict[str, Any]:
        """The config that Keras saves, for example for the activation of a layer."""
        return registration.function_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Callable[..., Any]:
        """The function that Keras saved."""
        return registration.function_from_config(config)


@tf_internal.autograph_artifact
class Method:
    """The function of bound methods, which Python calls with the instance."""

    __slots__ = ("__decorated", "__dict__", "__weakref__")

    def __init__(self, decorated: CustomGradient) -> None:
        self.__decorated = decorated
        functools.update_wrapper(self, decorated, updated=())
        del self.__wrapped__  # A tf.function would take this function, without the instance, for an argument.
        # Python pickles bound methods by the name of the attribute.
        self.__name__ = decorated.__tf_cg_ops__().place[1].rpartition(".")[2]

    @tf_internal.autograph_artifact
    def __call__(self, instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        decoration = self.__decorated.__tf_cg_ops__()
        function = decoration.function.__get__(instance, type(instance))
        return decoration.call(types.MethodType(self, instance), function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("__wrapped__", "__tf_tracing_type__"):
            raise AttributeError(name)
        return getattr(self.__decorated, name)

    @property
    def __signature__(self) -> inspect.Signature:
        return self.__decorated.__signature__

    def __reduce__(self) -> Any:
        return getattr, (self.__decorated, "__as_method__")


def is_decorated(function: Any) -> bool:
    """Whether this is a decorated function or one of its bound methods."""
    return isinstance(getattr(function, "__func__", function), (CustomGradient, Method))


def _find(module: str, name: str) -> Any:
    """What a module has under a name with dots."""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _with_record(cls: type[CustomGradient], record: Any) -> CustomGradient:
    """The decorated function of a module, if a pickle has its record by name, or else a new one."""
    found = _find(record.__module__, record.__qualname__.removesuffix(f".{_RECORD}"))
    if type(found) is cls and found.__tf_cg_ops__ is record:
        return found
    # A function whose own code calls it is found in its record: pickle sets that record's contents later.
    decorated = object.__new__(cls)
    decorated.__tf_cg_ops__, decorated.__dict__ = record, record.__dict__
    return decorated


registration.classes.append(CustomGradient)
