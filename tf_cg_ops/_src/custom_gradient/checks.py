"""What a gradient function must return, checked in every mode, with messages that name the user's function."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import library, pytree, text, tf_internal
from tf_cg_ops._src.core.signature import mismatched_signature
from tf_cg_ops._src.core.tf_internal import EagerTensor, shape_of
from tf_cg_ops._src.core.variables import reference_variables
from tf_cg_ops._src.custom_gradient import wording


class GradientChecks:
    """The checks for one call of a decorated function."""

    def __init__(
        self,
        terms: wording.Terms,
        function: str,
        arguments: pytree.Leaves,
        inputs: Sequence[list[tf.Tensor]],
        variables: Sequence[tf.Variable],
    ) -> None:
        self._terms = terms
        self._function = function
        self._arguments = arguments
        self._inputs = inputs
        self._variables = variables

    @property
    def _where(self) -> dict[str, str]:
        return self._terms.where(self._function)

    def takes_variables(self, grad_fn: Callable[..., Any]) -> None:
        """Raises TypeError if there are variables and grad_fn does not take them."""
        if not self._variables:
            return
        signature = inspect.signature(self._terms.written or grad_fn)
        takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        if not takes_any and "variables" not in signature.parameters:
            raise TypeError(
                errors.NEEDS_VARIABLES.format(
                    **self._where,
                    names=text.quoted(variable.name for variable in self._variables),
                    gradient=self._terms.name,
                    signature=f"{self._terms.name}{signature}",
                    parameters=self._terms.parameters_with_variables,
                )
            )

    def upstream_not_taken(self, grad_fn: Callable[..., Any], dys: Sequence[Any]) -> str:
        """What is wrong with a grad_fn whose parameters do not fit its upstream gradients; empty if they do."""
        args, kwargs = list(dys), {"variables": self._variables} if self._variables else {}
        written = self._terms.written
        if written is not None:  # What is called is a functools.partial of it.
            args, kwargs = [*grad_fn.args, *args], {**grad_fn.keywords, **kwargs}  # type: ignore[attr-defined]
        signature = mismatched_signature(written or grad_fn, args, kwargs)
        if signature is None:
            return ""
        return errors.UPSTREAM_NOT_TAKEN.format(
            **self._where,
            leading=self._terms.leading,
            expected=text.count(len(dys), "upstream gradient"),
            gradient=self._terms.name,
            signature=f"{self._terms.name}{signature}",
            parameters=self._terms.parameters,
        )

    def gradients(self, answer: Any) -> list[Any]:
        """One gradient, or None, for each tensor of the arguments and for each variable."""
        if not self._variables:
            return self._of_arguments(answer)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise ValueError(errors.VARIABLES_NOT_A_PAIR.format(**self._where, got=text.describe_type(answer)))
        return self._of_arguments(answer[0]) + self._of_variables(answer[1])

    def _of_arguments(self, answer: Any) -> list[Any]:
        gradients = [answer] if isinstance(answer, tf.Tensor) else tf.nest.flatten(answer)
        if len(gradients) < len(self._inputs) and not any(self._inputs[len(gradients) :]):
            # Such as `training=True` and `name=None`. A tf.function passes keywords, and defaults, by position.
            gradients = gradients + [None] * (len(self._inputs) - len(gradients))
        if len(gradients) != len(self._inputs):
            raise ValueError(
                self._terms.count.format(
                    **self._where,
                    got=text.count(len(gradients), "gradient"),
                    number=len(gradients),
                    expected=len(self._inputs),
                    names=text.quoted(self._arguments.names),
                )
            )
        checked: list[Any] = []
        for i, (gradient, tensors) in enumerate(zip(gradients, self._inputs, strict=True)):
            if not tensors:
                continue  # No tensor, and so nothing to differentiate by; whatever came for it is of no use.
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
            expected, got = text.count(len(tensors), "tensor"), text.count(len(components), "tensor")
            raise ValueError(self._terms.kind.format(**self._where, argument=argument, expected=expected, got=got))
        return [self._check(g, argument, tensor) for g, tensor in zip(components, tensors, strict=True)]

    def _of_variables(self, answer: Any) -> list[Any]:
        gradients = tf.nest.flatten(answer)
        if len(gradients) != len(self._variables):
            raise ValueError(
                errors.VARIABLE_GRADIENT_COUNT.format(
                    **self._where,
                    got=text.count(len(gradients), "gradient"),
                    expected=len(self._variables),
                    names=text.quoted(variable.name for variable in self._variables),
                )
            )
        return [
            None if gradient is None else self._check(gradient, f"variable {variable.name!r}", variable)
            for gradient, variable in zip(gradients, self._variables, strict=True)
        ]

    def _check(self, gradient: Any, argument: str, like: Any) -> Any:
        """The gradient if it has the dtype and the shape of what it is a gradient by."""
        if not tf.is_tensor(gradient):
            gradient = tf.convert_to_tensor(gradient, dtype=like.dtype)
        if not tf_internal.supports_default_grad(like):
            return gradient  # By a handle of which TensorFlow does not know the contents.
        where = self._where | {"argument": argument}
        shape, dtype = tf_internal.shape_and_dtype(like)
        if gradient.dtype != dtype:
            raise ValueError(self._terms.dtype.format(**where, expected=dtype.name, got=gradient.dtype.name))
        if not gradient.shape.is_compatible_with(shape):
            raise ValueError(self._terms.shape.format(**where, expected=shape, got=gradient.shape))
        if isinstance(gradient, tf.IndexedSlices) and not gradient.values.shape[1:].is_compatible_with(shape[1:]):
            expected, got = f"rows of {shape[1:]}", f"rows of {gradient.values.shape[1:]}"
            raise ValueError(self._terms.shape.format(**where, expected=expected, got=got))
        is_handle = like.dtype == tf.resource  # Of contents whose shape no operation tells.
        if isinstance(gradient, tf.IndexedSlices):
            dense_shape = gradient.dense_shape
            if not is_handle:
                dense_shape = tf.cast(tf.shape(like, out_type=tf.int64), gradient.indices.dtype)
            return tf.IndexedSlices(gradient.values, gradient.indices, dense_shape)
        if is_handle or (gradient.shape.is_fully_defined() and shape.is_fully_defined()):
            return gradient
        message = self._terms.shape.format(**where, expected="{expected}", got="{got}")
        return library.custom_gradient_check_shape(gradient, tf.shape(like, out_type=tf.int64), message=message)


def _fits(gradient: Any, like: tf.Tensor) -> bool:
    """Whether this is a Tensor that needs no closer look. False says nothing."""
    if type(gradient) is type(like) is EagerTensor:
        return gradient.dtype is like.dtype and shape_of(gradient) == shape_of(like)
    if not isinstance(gradient, tf.Tensor) or gradient.dtype != like.dtype:
        return False
    return gradient.shape.is_fully_defined() and gradient.shape == like.shape


def no_reference_variables(
    api: str, function: str, operations: Sequence[tf.Operation], arguments: pytree.Leaves
) -> None:
    """Refuses TensorFlow 1's reference variables, which TensorFlow does not tell when they are read."""
    names = reference_variables(operations, arguments.values)
    if names:
        raise TypeError(
            f"{api}: '{function}' uses reference variables of TensorFlow 1; expected resource variables, got "
            f"{text.quoted(names)}. Make them with use_resource=True, or pass them as arguments."
        )
