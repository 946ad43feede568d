"""`numpy_function` with `vjp`: the value as Tensors, with a gradient that calls `vjp` when it is computed."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, library, python_op, slices, tf_internal
from tf_cg_ops._src.core.signature import arguments_by_name, bind
from tf_cg_ops._src.custom_gradient.checks import can_cast
from tf_cg_ops._src.custom_gradient.decorator import is_decorated
from tf_cg_ops._src.custom_gradient.graph_rule import attach
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.external import residuals
from tf_cg_ops._src.external.arguments import API
from tf_cg_ops._src.external.python_call import AdjointCall, Kept, one_for_each_input

_WORDING = without_gradient_function(API)
ADVICE = "Build the model from its Python code here, and load its weights."  # For another process.


def is_of_tensors(function: Callable[..., Any]) -> bool:
    """Whether a `vjp` computes with Tensors and has a derivative itself."""
    return is_decorated(function) or isinstance(function, tf.types.experimental.PolymorphicFunction)


def call_with_adjoint(call: AdjointCall, tensors: Sequence[tf.Tensor]) -> Any:
    """The value in the structure of the output."""
    x = [tensor for tensor, spec in zip(tensors, call.arguments.inputs, strict=True) if spec.differentiable]
    outputs, left = _compute(call, tensors)
    derivative = _Derivative(call, left, x)
    backward: Callable[..., list[Any]] = derivative.gradients
    tangents = derivative.tangents_for_accumulators if call.jvp else None
    if is_of_tensors(call.vjp):
        backward, tangents = functools.partial(_gradients_of_tensors, call, tensors), None
    watched = tuple(bool(tf_internal.possible_gradient_types([tensor])) for tensor in x)
    everything, of_tapes = (functools.partial(backward, needed=needed) for needed in ((True,) * len(x), watched))
    attached = attach(_WORDING, call.arguments.name, outputs, x, everything, of_tapes, tangents)
    return tf.nest.pack_sequence_as(call.output, attached)


class _Left:
    """The residuals of a call: in eager mode the object itself, otherwise its token and its number."""

    def __init__(self, kept: Kept | None, token: tuple[tf.Tensor, tf.Tensor] | None) -> None:
        self.kept = kept
        self._token = token

    def token(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The token and the number. Eager mode needs them too, if a Jacobian computes the gradient in a graph."""
        if self._token is None:
            with tf.init_scope():
                self._token = residuals.new_token()
                residuals.keep(int(self._token[1]), self.kept)
        return self._token


def _compute(call: AdjointCall, tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], _Left]:
    if tf.executing_eagerly():
        values, kept = call.value(*[tensor.numpy() for tensor in tensors])
        return [tf.constant(value) for value in values], _Left(kept, None)

    def compute(number: Any, *arrays: Any) -> list[np.ndarray]:
        values, kept = call.value(*arrays)
        residuals.keep(number.item(), kept)
        return values

    token, number = residuals.new_token()
    outputs = python_op.call_python(call.arguments.subject, ADVICE, compute, [number, *tensors], call.value_specs())
    # The residuals must be kept before the number is read. One more output of the Python function would be slower.
    with tf.control_dependencies([outputs[0].op]), tf_internal.stop_recording():
        number = tf.identity(number)
    return outputs, _Left(None, (token, number))


@dataclasses.dataclass(frozen=True, eq=False)
class _Derivative:
    """The derivative of one call. It is linear; `vjp` is its transpose, and `jvp` is the transpose of `vjp`."""

    call: AdjointCall
    left: _Left
    x: list[tf.Tensor]

    def gradients(self, dys: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
        """One gradient for each of `x`; None where it is not needed."""
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor, n in zip(self.x, needed, strict=True) if n]
        dys = [_dense(dy, spec.dtype) for dy, spec in zip(dys, self.call.specs, strict=True)]
        call = self.call  # A graph keeps the function forever, so it must not hold the tensors of this derivative.
        computed = self._run(lambda kept, *arrays: call.gradients(kept, needed, arrays), dys, specs)

        def transpose(cotangents: list[Any]) -> list[Any]:
            if self.call.jvp is None:
                raise NotImplementedError(
                    f"{self.call.arguments.subject} has no tangents and no second derivatives. Pass a jvp for forward "
                    "mode, and a vjp made with numpy_function for second derivatives."
                )
            given = iter(cotangents)
            pairs = zip(self.x, needed, strict=True)
            return self._by_leaf(self._tangents([next(given) if n else tf.zeros_like(t) for t, n in pairs]))

        given = iter(self._linear(computed, dys, transpose))
        return [next(given) if n else None for n in needed]

    def tangents_for_accumulators(self, *tangents: Any) -> list[Any]:
        """One tangent for each leaf of the value; None for an integer."""
        return self._by_leaf(self._tangents([_dense(t, x.dtype) for t, x in zip(tangents, self.x, strict=True)]))

    def _by_leaf(self, of_numbers: Sequence[Any]) -> list[Any]:
        """One entry for each leaf of the value: None for an integer, otherwise the next of these entries."""
        given = iter(of_numbers)
        return [next(given) if spec.dtype in convert.DTYPES else None for spec in self.call.specs]

    def _tangents(self, tangents: list[tf.Tensor]) -> list[tf.Tensor]:
        specs = [spec for spec in self.call.value_specs() if spec.dtype in convert.DTYPES]
        call = self.call
        computed = self._run(lambda kept, *arrays: call.tangents(kept, arrays), tangents, specs)

        def transpose(cotangents: list[Any]) -> list[Any]:
            dys = self._by_leaf(cotangents)
            if None in dys:
                raise NotImplementedError(
                    f"{API}: to differentiate the tangents of '{self.call.arguments.name}', output must not hold "
                    "integers or bools. Return those as residuals."
                )
            return self.gradients(dys, (True,) * len(self.x))

        return self._linear(computed, tangents, transpose)

    def _linear(
        self, computed: list[tf.Tensor], vectors: list[tf.Tensor], transpose: Callable[[list[Any]], list[Any]]
    ) -> list[tf.Tensor]:
        """The results of a linear function of these vectors, with its transpose as their gradient."""
        # In a graph this is not known until the gradient is computed.
        is_watched = tf.executing_eagerly() and bool(tf_internal.possible_gradient_types(self.x))

        def backward(cotangents: Sequence[Any]) -> list[Any]:
            if is_watched:
                raise NotImplementedError(
                    f"{self.call.arguments.subject} has no second derivatives, because its vjp computes with arrays. "
                    "Pass a vjp made with numpy_function."
                )
            return [None] * len(self.x) + transpose([slices.to_dense(c) for c in cotangents])

        return attach(_WORDING, self.call.arguments.name, computed, [*self.x, *vectors], backward)

    def _run(
        self, function: Callable[..., list[np.ndarray]], tensors: list[tf.Tensor], specs: list[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        """Calls a function with the residuals of the call and with arrays."""
        if self.left.kept is not None and tf.executing_eagerly():
            return [tf.constant(array) for array in function(self.left.kept, *[tensor.numpy() for tensor in tensors])]
        if not specs:
            return []

        def run(number: Any, *arrays: Any) -> list[np.ndarray]:
            return function(residuals.find(number.item()), *arrays)

        token, number = self.left.token()
        subject = self.call.arguments.subject
        # Stateless, so that TensorFlow does not run it for gradients you don't use.
        computed = python_op.call_python(subject, ADVICE, run, [number, *tensors], specs, stateless=True)
        with tf_internal.stop_recording():  # The barrier keeps the token alive until the function has run.
            return list(library.custom_gradient_barrier(computed, [token]))


def _gradients_of_tensors(
    call: AdjointCall, tensors: Sequence[tf.Tensor], dys: Sequence[Any], needed: Sequence[bool]
) -> list[Any]:
    """The gradients from a `vjp` of Tensors, which gets the arguments of the function instead of residuals."""
    function, leaves = call.arguments.function, list(call.arguments.leaves)
    for spec, tensor in zip(call.arguments.inputs, tensors, strict=True):
        leaves[spec.position] = tensor
    args, kwargs = tf.nest.pack_sequence_as(call.arguments.structure, leaves)
    bound = bind(API, function, args, kwargs)
    arguments = [*args, *kwargs.values()] if bound is None else bound.arguments.values()
    options = arguments_by_name(API, function, args, kwargs, call.arguments.nondiff_argnames)
    if call.takes_needed:
        options["needed"] = tuple(needed)
    dense = [_dense(dy, spec.dtype) for dy, spec in zip(dys, call.specs, strict=True)]
    answer, name = call.vjp(tuple(arguments), *dense, **options), call.arguments.name
    gradients = [answer]
    if not isinstance(answer, tf.Tensor):
        gradients = one_for_each_input(f"{API}: vjp of '{name}'", answer, call.arguments)
    checked: list[Any] = []
    for gradient, spec in zip(gradients, call.arguments.x, strict=True):
        if gradient is not None:
            if gradient.dtype != spec.dtype and not can_cast(gradient.dtype, spec.dtype):
                raise _WORDING.wrong_dtype_error(name, repr(spec.name), spec.dtype, gradient.dtype)
            if not gradient.shape.is_compatible_with(spec.shape):
                raise ValueError(_WORDING.wrong_shape_message(name, repr(spec.name), spec.shape, gradient.shape))
        checked.append(None if gradient is None else tf.cast(gradient, spec.dtype))
    return checked


def _dense(vector: Any, dtype: tf.DType) -> tf.Tensor:
    """An upstream gradient or a tangent as a Tensor."""
    return tf.convert_to_tensor(slices.to_dense(vector), dtype)
