"""Checks the gradients that a gradient function returns, in every mode."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, library, pytree, slices, text, tf_internal
from tf_cg_ops._src.core.signature import check_takes, misfit, shown
from tf_cg_ops._src.core.tf_internal import EagerTensor, dtype_number_of, shape_of
from tf_cg_ops._src.custom_gradient import answers
from tf_cg_ops._src.custom_gradient.wording import Wording

_NUMBERS = (bool, int, np.ndarray, np.generic)


def takes_variables(wording: Wording, grad_fn: Callable[..., Any]) -> bool:
    """Whether a gradient function takes the keyword argument `variables`."""
    return not misfit(_user_function(wording, grad_fn), [], {"variables": ()}, partial=True)


def _user_function(wording: Wording, grad_fn: Any) -> Callable[..., Any]:
    return grad_fn.func if wording.binds_arguments else grad_fn


@dataclasses.dataclass(eq=False, slots=True)
class GradientChecks:
    """Checks the signature of the `grad_fn` of one call, and the gradients that it returns."""

    wording: Wording
    function: str
    arguments: pytree.Leaves
    inputs: list[list[tf.Tensor]]  # The Tensors of each leaf of the arguments.
    variables: Sequence[tf.Variable]

    def check_takes_variables(self, grad_fn: Callable[..., Any]) -> None:
        """Raises TypeError if grad_fn does not take the variables that the function reads."""
        if self.variables and not takes_variables(self.wording, grad_fn):
            sentence = (
                f"'{{function}}' reads variables that are not among its arguments ({{names}}), so "
                f"{self.wording.takes_no_variables}"
            )
            names = text.quoted(variable.name for variable in self.variables)
            shown_function = shown(_user_function(self.wording, grad_fn), self.wording.gradient_function)
            raise TypeError(self._message(sentence, names=names, shown=shown_function))

    def answer(self, grad_fn: Any, dys: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What grad_fn returns for upstream gradients; TypeError if it does not take them."""
        try:
            return grad_fn(*dys, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError):
                function, args, wording = _user_function(self.wording, grad_fn), [*dys], self.wording
                if wording.binds_arguments:
                    args, kwargs = [*grad_fn.args, *args], {**grad_fn.keywords, **kwargs}
                must_take = self._message(wording.takes, upstream=text.count(len(dys), "upstream gradient"))
                advice = f"Write {wording.gradient_function}({wording.parameters})."
                check_takes(function, args, kwargs, must_take, advice, wording.gradient_function)
            self.wording.add_notes(self.function, error)
            raise

    def checked_gradients(self, answer: Any) -> list[Any]:
        """One gradient, or None, for each tensor of the arguments and for each variable."""
        if not self.variables:
            if answer is None and any(self.inputs):
                raise TypeError(self._message(self.wording.nothing, names=text.quoted(self.arguments.names)))
            return self._of_arguments(answer)
        answer = list(answer) if isinstance(answer, Iterator) else answer
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise TypeError(
                f"{self._subject} must return a pair (gradients of the inputs, gradients of the variables), got "
                f"{text.describe_type(answer)}. Return None for a variable that has no gradient."
            )
        return self._of_arguments(answer[0]) + self._of_variables(answer[1])

    @property
    def _subject(self) -> str:
        return self.wording.subject_of(self.function)

    def _message(self, sentence: str, **parts: Any) -> str:
        return self.wording.message(sentence, self.function, **parts)

    def _of_arguments(self, answer: Any) -> list[Any]:
        flat = [answer] if type(answer) is EagerTensor else answer
        is_flat = type(flat) in (list, tuple) and len(flat) == len(self.inputs)
        has_parts = self.arguments.has_keywords or self.arguments.has_empty
        if is_flat and not has_parts and all(map(_fits_exactly, flat, self.inputs)):
            return list(flat)
        checked: list[Any] = []
        kinds = [_kind_of(*leaf) for leaf in zip(self.arguments.values, self.inputs, strict=True)]
        entries = answers.read(self.wording, self.function, answer, self.arguments, kinds)
        for i, (gradient, tensors) in enumerate(zip(entries, self.inputs, strict=True)):
            gradient = slices.kept(gradient)
            if gradient is None:
                checked.extend([None] * len(tensors))
            elif len(tensors) == 1 and _fits(gradient, tensors[0]):
                checked.append(gradient)
            else:
                checked.extend(self._of_argument(i, gradient))
        return checked

    def _of_argument(self, i: int, gradient: Any) -> list[Any]:
        argument, tensors, value = repr(self.arguments.names[i]), self.inputs[i], self.arguments.values[i]
        if not tensors:
            dtype = _dtype_as_tensor(value)  # The modes agree: an array is checked as the Tensor that it becomes.
            if dtype is not None:
                fitted(self.wording, self.function, gradient, argument, tf.TensorShape(value.shape), dtype)
            if _kind_of(value, tensors) == answers.CONSTANT:
                return []
            remedy = ""
            if isinstance(value, _NUMBERS):
                remedy = " For a gradient, pass it as a floating-point Tensor."
            elif value is not None and not isinstance(value, (str, bytes)) and not callable(value):
                remedy = (
                    " Pass its Tensors as arguments, or in a tuple or a dict, or make it a "
                    "tf.experimental.ExtensionType: TensorFlow does not look into other objects."
                )
            raise ValueError(
                f"{self._subject} must return None for {argument}, which is "
                f"{'None' if value is None else text.describe_type(value)}: only Tensors and Variables have gradients."
                f"{remedy}"
            )
        components = pytree.gradient_components(gradient, value, tensors)
        if pytree.is_composite(gradient) and len(tensors) > 1 and type(gradient) is not type(value):
            raise TypeError(
                f"{self._subject} must return {text.describe_type(value)} as the gradient of {argument}, got "
                f"{text.describe_type(gradient)}."
            )
        if len(components) != len(tensors):
            expected, got = text.count(len(tensors), "tensor"), text.count(len(components), "tensor")
            parts = {"argument": argument, "expected": expected, "got": got}
            raise ValueError(self._message(self.wording.wrong_structure, **parts))
        return [self._check(g, argument, tensor) for g, tensor in zip(components, tensors, strict=True)]

    def _of_variables(self, answer: Any) -> list[Any]:
        answer = answers.opened(self._subject, answer)
        if answers.has_mapping(answer):
            raise TypeError(
                f"{self._subject} must return the gradients of the variables in a list, got a dict. Return one "
                "gradient for each variable, in the order of 'variables'."
            )
        gradients = tf.nest.flatten(answer)
        if len(gradients) != len(self.variables):
            raise ValueError(
                f"{self._subject} returned {text.count(len(gradients), 'gradient')} for the variables; expected "
                f"{len(self.variables)} (one per variable: "
                f"{text.quoted(variable.name for variable in self.variables)}). Return None for a variable that has "
                "no gradient."
            )
        return [
            None if gradient is None else self._check(slices.kept(gradient), f"variable {variable.name!r}", variable)
            for gradient, variable in zip(gradients, self.variables, strict=True)
        ]

    def _check(self, gradient: Any, argument: str, target: Any) -> Any:
        """Checks that a gradient has the shape and dtype of its target, a tensor or variable; casts it if possible."""
        if not tf_internal.supports_default_grad(target):  # A handle that does not tell what it holds.
            return gradient if tf.is_tensor(gradient) else tf.convert_to_tensor(gradient)
        shape, dtype = tf_internal.shape_and_dtype(target)
        gradient = fitted(self.wording, self.function, gradient, argument, shape, dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return self._check_slices(gradient, argument, target, shape)
        is_handle = target.dtype == tf.resource  # Its contents have no shape op.
        if gradient is None or is_handle or (gradient.shape.is_fully_defined() and shape.is_fully_defined()):
            return gradient
        message = self.wording.wrong_shape_message(self.function, argument, "{expected}", "{got}")
        return library.custom_gradient_check_shape(gradient, tf.shape(target, out_type=tf.int64), message=message)

    def _check_slices(
        self, gradient: tf.IndexedSlices, argument: str, target: Any, shape: tf.TensorShape
    ) -> tf.IndexedSlices:
        row, target_row = gradient.values.shape[1:], shape[1:]
        if not row.is_compatible_with(target_row):
            expected, got = f"rows of {target_row}", f"rows of {row}"
            raise ValueError(self.wording.wrong_shape_message(self.function, argument, expected, got))
        dense_shape = gradient.dense_shape
        if target.dtype != tf.resource:
            dense_shape = tf.cast(tf.shape(target, out_type=tf.int64), gradient.indices.dtype)
        return tf.IndexedSlices(gradient.values, gradient.indices, dense_shape)


def fitted(
    wording: Wording, function: str, gradient: Any, argument: str, shape: tf.TensorShape, dtype: tf.DType
) -> Any:
    """A gradient or tangent as a Tensor of this dtype; raises if it cannot be cast, or has another shape.

    Like TensorFlow, drops an integer or bool for an integer or bool. A float there is often another input's gradient.
    """
    is_discrete = _is_discrete(dtype)
    if not tf.is_tensor(gradient):
        has_own_dtype = is_discrete or isinstance(gradient, (np.ndarray, np.generic, bool, complex))
        try:
            gradient = tf.convert_to_tensor(gradient, None if has_own_dtype else dtype)
        except convert.refusals(gradient):
            got = text.describe(gradient)
            raise TypeError(wording.message(wording.no_tensor, function, argument=argument, got=got)) from None
    if is_discrete and _is_discrete(gradient.dtype):
        return None
    if gradient.dtype.base_dtype != dtype:
        if not can_cast(gradient.dtype, dtype):
            raise wording.wrong_dtype_error(function, argument, dtype, gradient.dtype)
        gradient = tf.cast(gradient, dtype)
    if not gradient.shape.is_compatible_with(shape):
        raise ValueError(wording.wrong_shape_message(function, argument, shape, gradient.shape))
    return gradient


def can_cast(got: tf.DType, dtype: tf.DType) -> bool:
    """Whether a gradient can be cast: between floating-point dtypes, and to complex ones."""
    return (got.is_floating and (dtype.is_floating or dtype.is_complex)) or (got.is_complex and dtype.is_complex)


def _is_discrete(dtype: tf.DType) -> bool:
    return dtype.is_integer or dtype.is_bool


def _dtype_as_tensor(leaf: Any) -> tf.DType | None:
    """The dtype of the Tensor that a tf.function makes of an array; None for other leaves."""
    is_array = isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind not in "OmM"
    return tf.as_dtype(leaf.dtype) if is_array else None


def _kind_of(leaf: Any, tensors: list[tf.Tensor]) -> int:
    is_constant = isinstance(leaf, (tf.Tensor, float, complex)) or _dtype_as_tensor(leaf) is not None
    return answers.TENSOR if tensors else answers.CONSTANT if is_constant else answers.NOTHING


def _fits_exactly(gradient: Any, tensors: list[tf.Tensor]) -> bool:
    """Whether the check is done: None, or a fitting EagerTensor for a single Tensor, as in most eager calls."""
    if len(tensors) != 1:
        return False
    return gradient is None or (type(gradient) is EagerTensor and _fits(gradient, tensors[0]))


def _fits(gradient: Any, target: tf.Tensor) -> bool:
    """A fast check: True if a Tensor has the dtype and static shape of the target; False means to look closer."""
    if type(gradient) is type(target) is EagerTensor:
        same_dtype = dtype_number_of(gradient) == dtype_number_of(target)
        return same_dtype and shape_of(gradient) == shape_of(target)
    if not isinstance(gradient, tf.Tensor) or gradient.dtype != target.dtype:
        return False
    return gradient.shape.is_fully_defined() and gradient.shape == target.shape
