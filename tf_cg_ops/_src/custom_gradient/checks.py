"""Checks of the gradients that a gradient function returns, in every mode."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, pytree, slices, text, tf_internal
from tf_cg_ops._src.core.signature import mismatched_signature
from tf_cg_ops._src.core.tf_internal import EagerTensor, shape_of
from tf_cg_ops._src.core.variables import reference_variables
from tf_cg_ops._src.custom_gradient.wording import Wording


class GradientChecks:
    """Checks the signature of the `grad_fn` of one call, and the gradients that it returns."""

    def __init__(
        self,
        wording: Wording,
        function: str,
        arguments: pytree.Leaves,
        inputs: Sequence[list[tf.Tensor]],
        variables: Sequence[tf.Variable],
    ) -> None:
        self._wording = wording
        self._function = function
        self._arguments = arguments
        self._inputs = inputs
        self._variables = variables

    def check_takes_variables(self, grad_fn: Callable[..., Any]) -> None:
        """Raises TypeError if there are variables and grad_fn does not take them."""
        if not self._variables:
            return
        signature = inspect.signature(self._wording.user_call(grad_fn, (), {})[0])
        takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        if not takes_any and "variables" not in signature.parameters:
            raise TypeError(self._wording.takes_no_variables(self._function, self._variables, signature))

    def check_takes_upstream(
        self, grad_fn: Callable[..., Any], dys: Sequence[Any], error: TypeError, **kwargs: Any
    ) -> None:
        """Raises TypeError, from this error, if the parameters of grad_fn do not fit its upstream gradients."""
        of_variables = {"variables": self._variables} if self._variables else {}
        signature = mismatched_signature(*self._wording.user_call(grad_fn, dys, {**kwargs, **of_variables}))
        if signature is not None:
            raise TypeError(self._wording.takes_other_upstream(self._function, len(dys), signature)) from error

    def checked_gradients(self, answer: Any) -> list[Any]:
        """One gradient, or None, for each tensor of the arguments and for each variable."""
        if not self._variables:
            return self._of_arguments(answer)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise ValueError(self._wording.no_gradients_of_variables(self._function, answer))
        return self._of_arguments(answer[0]) + self._of_variables(answer[1])

    def _of_arguments(self, answer: Any) -> list[Any]:
        gradients = [answer] if isinstance(answer, tf.Tensor) else tf.nest.flatten(answer)
        if len(gradients) < len(self._inputs) and not any(self._inputs[len(gradients) :]):
            # Such as `training=True` and `name=None`. A tf.function passes keywords, and defaults, by position.
            gradients = gradients + [None] * (len(self._inputs) - len(gradients))
        if len(gradients) != len(self._inputs):
            raise ValueError(self._wording.wrong_number(self._function, len(gradients), self._arguments.names))
        checked: list[Any] = []
        for i, (gradient, tensors) in enumerate(zip(gradients, self._inputs, strict=True)):
            if not tensors:
                continue  # An argument without tensors has no gradient, even if grad_fn returned one.
            gradient = slices.kept(gradient)
            if gradient is None:
                checked.extend([None] * len(tensors))
            elif len(tensors) == 1 and _fits(gradient, tensors[0]):
                checked.append(gradient)
            else:
                checked.extend(self._of_argument(i, gradient))
        return checked

    def _of_argument(self, i: int, gradient: Any) -> list[Any]:
        argument, tensors = repr(self._arguments.names[i]), self._inputs[i]
        components = pytree.gradient_components(gradient, self._arguments.values[i], tensors)
        if len(components) != len(tensors):
            raise ValueError(self._wording.wrong_structure(self._function, argument, len(tensors), len(components)))
        return [self._check(g, argument, tensor) for g, tensor in zip(components, tensors, strict=True)]

    def _of_variables(self, answer: Any) -> list[Any]:
        gradients = tf.nest.flatten(answer)
        if len(gradients) != len(self._variables):
            raise ValueError(self._wording.wrong_number_for_variables(self._function, len(gradients), self._variables))
        return [
            None if gradient is None else self._check(slices.kept(gradient), f"variable {variable.name!r}", variable)
            for gradient, variable in zip(gradients, self._variables, strict=True)
        ]

    def _check(self, gradient: Any, argument: str, target: Any) -> Any:
        """The gradient with respect to `target`, a tensor or variable, whose dtype and shape it must have."""
        if not tf.is_tensor(gradient):
            gradient = tf.convert_to_tensor(gradient, dtype=target.dtype)
        if not tf_internal.supports_default_grad(target):
            return gradient  # The target is a handle, and TensorFlow does not know what it holds.
        shape, dtype = tf_internal.shape_and_dtype(target)
        if gradient.dtype != dtype:
            raise ValueError(self._wording.wrong_dtype(self._function, argument, dtype, gradient.dtype))
        if not gradient.shape.is_compatible_with(shape):
            raise ValueError(self._wording.wrong_shape(self._function, argument, shape, gradient.shape))
        if isinstance(gradient, tf.IndexedSlices):
            return self._check_slices(gradient, argument, target, shape)
        is_handle = target.dtype == tf.resource  # No op tells the shape of what it holds.
        if is_handle or (gradient.shape.is_fully_defined() and shape.is_fully_defined()):
            return gradient
        message = self._wording.wrong_shape(self._function, argument, "{expected}", "{got}")
        return library.custom_gradient_check_shape(gradient, tf.shape(target, out_type=tf.int64), message=message)

    def _check_slices(
        self, gradient: tf.IndexedSlices, argument: str, target: Any, shape: tf.TensorShape
    ) -> tf.IndexedSlices:
        row, target_row = gradient.values.shape[1:], shape[1:]
        if not row.is_compatible_with(target_row):
            expected, got = f"rows of {target_row}", f"rows of {row}"
            raise ValueError(self._wording.wrong_shape(self._function, argument, expected, got))
        dense_shape = gradient.dense_shape
        if target.dtype != tf.resource:
            dense_shape = tf.cast(tf.shape(target, out_type=tf.int64), gradient.indices.dtype)
        return tf.IndexedSlices(gradient.values, gradient.indices, dense_shape)


def _fits(gradient: Any, target: tf.Tensor) -> bool:
    """A fast check: True for a Tensor of the dtype and static shape of the target; False means: check it closely."""
    if type(gradient) is type(target) is EagerTensor:
        return gradient.dtype is target.dtype and shape_of(gradient) == shape_of(target)
    if not isinstance(gradient, tf.Tensor) or gradient.dtype != target.dtype:
        return False
    return gradient.shape.is_fully_defined() and gradient.shape == target.shape


def refuse_reference_variables(
    api: str, function: str, operations: Sequence[tf.Operation], arguments: pytree.Leaves
) -> None:
    """Raises TypeError for TensorFlow 1's reference variables: TensorFlow does not report when they are read."""
    names = reference_variables(operations, arguments.values)
    if names:
        raise TypeError(
            f"{api}: '{function}' uses reference variables of TensorFlow 1; expected resource variables, got "
            f"{text.quoted(names)}. Make them with use_resource=True, or pass them as arguments."
        )
