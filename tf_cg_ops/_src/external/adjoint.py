"""The Tensors of `numpy_function`: the value, with a gradient that is only computed when you use it."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import library, python_op, pytree, slices, tapes, tf_internal
from tf_cg_ops._src.core.signature import arguments_by_name, bind
from tf_cg_ops._src.custom_gradient.attaching import attach
from tf_cg_ops._src.custom_gradient.checks import GradientChecks
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.external import batches, residuals
from tf_cg_ops._src.external.arguments import API
from tf_cg_ops._src.external.python_call import Call, Kept

_WORDING = without_gradient_function(API)
_ADVICE = "Build the model from its Python code here, and load its weights."  # For another process.


def call_in_python(call: Call, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The leaves of the value."""
    x, is_eager = [tensors[i] for i in call.arguments.x], tf.executing_eagerly()
    if is_eager:
        values, kept = call.value([_to_array(tensor) for tensor in tensors])
        outputs = [tf_internal.tensor_of_own_array(value) for value in values]
        if not tf_internal.possible_gradient_types(x):
            return outputs
        left = _Left(kept, None)
    else:
        outputs, left = _compute_in_graph(call, tensors)
    derivative = _PythonDerivative(call, left, x)
    backward: Callable[..., list[Any]] = derivative.gradients
    tangents = derivative.tangents_for_accumulators if call.options.jvp else None
    if call.options.vjp_takes_tensors:
        backward, tangents = functools.partial(_gradients_of_tensors, call, tensors, x), None
    watched = tuple(bool(tf_internal.possible_gradient_types([tensor])) for tensor in x)
    for_tapes = functools.partial(backward, needed=watched)
    if is_eager:  # Not with `attach`, whose copies are only for tensors that a tape has seen.
        tapes.record(call.arguments.name, outputs, x, lambda *dys: for_tapes(dys), tangents)
        return outputs
    everything = functools.partial(backward, needed=(True,) * len(x))
    return attach(_WORDING, call.arguments.name, outputs, x, everything, for_tapes, tangents, saved_orders=2)


def _to_array(tensor: tf.Tensor) -> np.ndarray:
    """A copy. TensorFlow returns NumPy numbers and bytes for scalars."""
    array = tensor.numpy()
    return array if type(array) is np.ndarray else np.array(array, object if tensor.dtype == tf.string else None)


class _Left:
    """The residuals of a call: in eager mode the object itself, otherwise its token and its number."""

    def __init__(self, kept: Kept | None, token: tuple[tf.Tensor, tf.Tensor] | None) -> None:
        self.kept = kept
        self._token = token

    def token(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The token and the number. Eager mode needs them too, if a Jacobian computes the gradient in a graph."""
        if self._token is None:
            assert self.kept is not None
            with tf.init_scope():
                self._token = residuals.new_token()
                batches.keep(int(self._token[1]), self.kept)
        return self._token


def _compute_in_graph(call: Call, tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], _Left]:
    token, number = residuals.new_token()
    compute = functools.partial(batches.values, call)
    # TensorFlow leaves the example that it vectorizes in the graph, where a stateful op would run for it once more.
    stateless = call.options.batched
    outputs = _call_python(call, compute, [number, *tensors], call.value_specs(), stateless)
    # The residuals must be kept before the number is read. TensorFlow drops control dependencies on stateless ops.
    with tf_internal.stop_recording():
        (number,) = library.custom_gradient_barrier([number], outputs[:1])
    return outputs, _Left(None, (token, number))


def _call_python(
    call: Call,
    function: Callable[..., list[np.ndarray]],
    inputs: Sequence[tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    stateless: bool = False,
) -> list[tf.Tensor]:
    return python_op.call_python(
        call.arguments.subject, _ADVICE, function, inputs, specs, stateless=stateless, takes_examples=True
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _PythonDerivative:
    """The derivative of one call. It is linear; `vjp` is its transpose, and `jvp` is the transpose of `vjp`."""

    call: Call
    left: _Left
    x: list[tf.Tensor]

    def gradients(self, dys: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
        """One gradient for each of `x`; None where it is not needed."""
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor, n in zip(self.x, needed, strict=True) if n]
        dys = [_dense(dy, dtype) for dy, dtype in zip(dys, self.call.dtypes, strict=True)]

        def transpose(cotangents: list[Any]) -> list[Any]:
            if self.call.options.jvp is None:
                raise NotImplementedError(
                    f"{self.call.arguments.subject} has no tangents and no second derivatives. Pass a jvp for forward "
                    "mode, and a vjp made with numpy_function for second derivatives."
                )
            given = iter(cotangents)
            pairs = zip(self.x, needed, strict=True)
            return self._by_leaf(self._tangents([next(given) if n else tf.zeros_like(t) for t, n in pairs]))

        given = iter(self._linear(self._run(needed, dys, specs), dys, transpose))
        return [next(given) if n else None for n in needed]

    def tangents_for_accumulators(self, *tangents: Any) -> list[Any]:
        """One tangent for each leaf of the value; None for an integer."""
        return self._by_leaf(self._tangents([_dense(t, x.dtype) for t, x in zip(tangents, self.x, strict=True)]))

    def _by_leaf(self, of_numbers: Iterable[Any]) -> list[Any]:
        """One entry for each leaf of the value: None for an integer, otherwise the next of these entries."""
        given = iter(of_numbers)
        return [next(given) if is_number else None for is_number in self.call.is_number]

    def _tangents(self, tangents: list[tf.Tensor]) -> list[tf.Tensor]:
        specs = [
            spec for spec, is_number in zip(self.call.value_specs(), self.call.is_number, strict=True) if is_number
        ]

        def transpose(cotangents: list[Any]) -> list[Any]:
            dys = self._by_leaf(cotangents)
            if None in dys:
                raise NotImplementedError(
                    f"{API}: to differentiate the tangents of '{self.call.arguments.name}', output_signature must not "
                    "hold integers or bools. Return those as residuals."
                )
            return self.gradients(dys, (True,) * len(self.x))

        return self._linear(self._run(None, tangents, specs), tangents, transpose)

    def _linear(
        self, computed: list[tf.Tensor], vectors: list[tf.Tensor], transpose: Callable[[list[Any]], list[Any]]
    ) -> list[tf.Tensor]:
        """The results of a linear function of these vectors, with its transpose as their gradient."""
        call, x, is_eager = self.call, self.x, tf.executing_eagerly()
        is_watched = is_eager and bool(tf_internal.possible_gradient_types(x))
        message = (
            f"{call.arguments.subject} has no second derivatives, because its gradients are computed with arrays. "
            "Pass a vjp made with numpy_function."
        )

        def refuse(*_: Any) -> Any:
            raise NotImplementedError(message)

        def backward(cotangents: Sequence[Any]) -> list[Any]:
            dense = [slices.to_dense(cotangent) for cotangent in cotangents]
            if is_eager:
                return [*(refuse() if is_watched else [None] * len(x)), *transpose(dense)]
            by_vectors = transpose(dense)
            # Whether these are used is only known when the graph runs, which then has the error.
            specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in x]
            return [*_call_python(call, refuse, dense, specs, stateless=True), *by_vectors]

        return attach(_WORDING, call.arguments.name, computed, [*x, *vectors], backward, saved_orders=2)

    def _run(
        self, needed: Sequence[bool] | None, tensors: list[tf.Tensor], specs: list[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        """`Call.derivative` with the residuals of the call."""
        if self.left.kept is not None and tf.executing_eagerly():
            arrays = self.call.derivative(self.left.kept, [_to_array(tensor) for tensor in tensors], needed)
            return [tf_internal.tensor_of_own_array(array) for array in arrays]
        if not specs:
            return []
        token, number = self.left.token()
        # A graph keeps the function forever, so it must not hold the tensors of this derivative.
        in_graph = functools.partial(batches.derivative, self.call, needed, specs)
        # Stateless, so that TensorFlow does not run it for gradients you don't use.
        computed = _call_python(self.call, in_graph, [number, *tensors], specs, stateless=True)
        with tf_internal.stop_recording():  # The barrier keeps the token alive until the function has run.
            return list(library.custom_gradient_barrier(computed, [token]))


def _gradients_of_tensors(
    call: Call, tensors: Sequence[tf.Tensor], x: list[tf.Tensor], dys: Sequence[Any], needed: Sequence[bool]
) -> list[Any]:
    """The gradients from a `vjp` of Tensors, which gets the arguments of the function instead of residuals."""
    arguments, leaves = call.arguments, list(call.arguments.leaves)
    for spec, tensor in zip(arguments.inputs, tensors, strict=True):
        leaves[spec.position] = tensor
    args, kwargs = arguments.packed(leaves)
    bound = bind(API, arguments.function, args, kwargs)
    by_position = [*args, *kwargs.values()] if bound is None else bound.arguments.values()
    options = arguments_by_name(API, arguments.function, args, kwargs, arguments.nondiff_argnames)
    if call.options.takes_needed:
        options["needed"] = tuple(needed)
    answer = call.options.vjp(tuple(by_position), *map(_dense, dys, call.dtypes), **options)
    named = pytree.Leaves(x, lambda: [pytree.Argument(*pair) for pair in zip(arguments.x_names, x, strict=True)])
    return GradientChecks(_WORDING, arguments.name, named, [[tensor] for tensor in x], ()).checked_gradients(answer)


def _dense(vector: Any, dtype: tf.DType) -> tf.Tensor:
    """An upstream gradient or a tangent as a Tensor."""
    return tf.convert_to_tensor(slices.to_dense(vector), dtype)
