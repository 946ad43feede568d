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
            names = text.quoted(variable.name for variable in self.variables)
            sentence = "'{function}' reads variables that are not among its arguments ({names}), so "
            sentence += self.wording.takes_variables
            got = shown(_user_function(self.wording, grad_fn), self.wording.gradient_function)
            raise TypeError(self.wording.message(sentence, self.function, names=names, shown=got))

    def answer(self, grad_fn: Any, dys: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What grad_fn returns for upstream gradients; TypeError if it does not take them."""
        try:
            return grad_fn(*dys, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError):
                function, args, wording = _user_function(self.wording, grad_fn), [*dys], self.wording
                if wording.binds_arguments:
                    args, kwargs = [*grad_fn.args, *args], {**grad_fn.keywords, **kwargs}
                upstream = text.count(len(dys), "upstream gradient")
                must_take = f"{self._subject} must take {wording.takes.format(upstream=upstream)}"
                advice = f"Write {wording.gradient_function}({wording.parameters})."
                check_takes(function, args, kwargs, must_take, advice, wording.gradient_function)
            self.wording.add_notes(self.function, error, dys)
            raise

    def checked_gradients(self, answer: Any) -> list[Any]:
        """One gradient, or None, for each tensor of the arguments and for each variable."""
        if not self.variables:
            if answer is None and any(self.inputs):
                names = text.quoted(self.arguments.names)
                raise TypeError(
                    f"{self._subject} must return one gradient for each input ({names}), got None, as from a "
                    "function without a return statement. Return the gradient, or [None] if no input has one."
                )
            return self._of_leaves(answer, self.arguments, self.inputs)
        answer = list(answer) if isinstance(answer, Iterator) else answer
        advice = "Return None for a variable that has no gradient."
        pytree.pair(self._subject, "gradients of the inputs, gradients of the variables", answer, advice)
        by_variable = answers.opened(self._subject, answer[1])
        if answers.has_mapping(by_variable):
            raise TypeError(
                f"{self._subject} must return the gradients of the variables in a list, got a dict. Return one "
                "gradient for each variable, in the order of 'variables'."
            )
        variables = pytree.Leaves(
            list(self.variables), lambda: [pytree.Argument(f"variable {v.name}", v) for v in self.variables]
        )
        return [
            *self._of_leaves(answer[0], self.arguments, self.inputs),
            *self._of_leaves(by_variable, variables, [[variable] for variable in self.variables]),
        ]

    @property
    def _subject(self) -> str:
        return self.wording.subject_of(self.function)

    def _of_leaves(self, answer: Any, leaves: pytree.Leaves, inputs: list[list[Any]]) -> list[Any]:
        """One gradient, or None, for each tensor (or variable) of these leaves."""
        flat = [answer] if type(answer) is EagerTensor else answer
        is_flat = type(flat) in (list, tuple) and len(flat) == len(inputs)
        if is_flat and not (leaves.has_keywords or leaves.has_empty) and all(map(_fits_exactly, flat, inputs)):
            return list(flat)
        checked: list[Any] = []
        kinds = list(map(_kind_of, leaves.values, inputs))
        entries = answers.entries(self.wording, self.function, answer, leaves, kinds)
        for i, (entry, value, tensors) in enumerate(zip(entries, leaves.values, inputs, strict=True)):
            gradient = slices.kept(entry)
            if gradient is None:
                checked += [None] * len(tensors)
            elif len(tensors) == 1 and _fits_target(gradient, tensors[0]):
                checked.append(gradient)
            else:
                checked += self.of_leaf(repr(leaves.names[i]), gradient, value, tensors)
        return checked

    def of_leaf(self, name: str, gradient: Any, value: Any, tensors: list[Any]) -> list[Any]:
        """The gradient of a leaf with this value, split into one for each of its tensors."""
        noun = self.wording.noun
        if not tensors:
            self._check_constant(name, gradient, value)
            return []
        parts, differ = pytree.gradient_components(gradient, value, tensors), type(gradient) is not type(value)
        if len(parts) != len(tensors) or (differ and len(tensors) > 1 and pytree.is_composite(gradient)):
            number = "" if differ else f" with {text.count(len(parts), 'tensor')} instead of {len(tensors)}"
            raise TypeError(
                f"{self._subject} must return {text.describe_type(value)} as the {noun} of {name}, got "
                f"{text.describe_type(gradient)}{number}."
            )
        return [self._of_tensor(name, part, tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def _check_constant(self, name: str, gradient: Any, value: Any) -> None:
        dtype = _dtype_as_tensor(value)  # The modes agree: an array is checked as the Tensor that it becomes.
        if dtype is not None:
            self._fitted(name, gradient, tf.TensorShape(value.shape), dtype)
        if _kind_of(value, []) == answers.CONSTANT:
            return
        remedy = ""
        if isinstance(value, _NUMBERS):
            remedy = " For a gradient, pass it as a floating-point Tensor."
        elif value is not None and not isinstance(value, (str, bytes)) and not callable(value):
            remedy = (
                " Pass its Tensors as arguments, or in a tuple or a dict, or make it a tf.experimental.ExtensionType: "
                "TensorFlow does not look into other objects."
            )
        raise ValueError(
            f"{self._subject} must return None for {name}, which is {text.describe_type(value)}: only Tensors and "
            f"Variables have gradients.{remedy}"
        )

    def _of_tensor(self, name: str, gradient: Any, target: Any) -> Any:
        """Checks that a gradient has the shape and dtype of its target, a tensor or variable; casts it if possible."""
        if not tf_internal.supports_default_grad(target):  # A handle that does not tell what it holds.
            return gradient if tf.is_tensor(gradient) else tf.convert_to_tensor(gradient)
        shape, dtype = tf_internal.shape_and_dtype(target)
        gradient = self._fitted(name, gradient, shape, dtype)
        is_handle = target.dtype == tf.resource  # Its contents have no shape op.
        if isinstance(gradient, tf.IndexedSlices):
            row, target_row = gradient.values.shape[1:], shape[1:]
            if not row.is_compatible_with(target_row):
                raise ValueError(self._wrong_shape(name, f"rows of {target_row}", f"rows of {row}"))
            size = None if is_handle else tf.cast(tf.shape(target, out_type=tf.int64), gradient.indices.dtype)
            return tf.IndexedSlices(gradient.values, gradient.indices, gradient.dense_shape if is_handle else size)
        if gradient is None or is_handle or (gradient.shape.is_fully_defined() and shape.is_fully_defined()):
            return gradient
        message = self._wrong_shape(name, "{expected}", "{got}")
        return library.custom_gradient_check_shape(gradient, tf.shape(target, out_type=tf.int64), message=message)

    def _fitted(self, name: str, gradient: Any, shape: tf.TensorShape, dtype: tf.DType) -> Any:
        """A gradient as a Tensor of this dtype; raises if it cannot be cast, or has another shape.

        Like TensorFlow, drops an integer or bool for an integer or bool. A float there is often another input's
        gradient.
        """
        noun, is_discrete = self.wording.noun, _is_discrete(dtype)
        if not tf.is_tensor(gradient):
            has_own_dtype = is_discrete or isinstance(gradient, (np.ndarray, np.generic, bool, complex))
            try:
                gradient = tf.convert_to_tensor(gradient, None if has_own_dtype else dtype)
            except convert.refusals(gradient):
                raise TypeError(
                    f"{self._subject} must return a Tensor for {name}, got {text.describe(gradient)}. Return None for "
                    f"an {self.wording.of} that has no {noun}."
                ) from None
        if is_discrete and _is_discrete(gradient.dtype):
            return None
        if gradient.dtype.base_dtype != dtype:
            if not can_cast(gradient.dtype, dtype):
                raise TypeError(
                    f"{self._subject} must return a {noun} of dtype {dtype.name} for {name}, got "
                    f"{gradient.dtype.name}. {_how_to_cast(gradient.dtype, dtype)}"
                )
            gradient = tf.cast(gradient, dtype)
        if not gradient.shape.is_compatible_with(shape):
            raise ValueError(self._wrong_shape(name, shape, gradient.shape))
        return gradient

    def _wrong_shape(self, name: str, expected: Any, got: Any) -> str:
        """The message for a gradient of another shape; the op replaces `{expected}` and `{got}` in it at run time."""
        wording = self.wording
        how = ": sum over what was broadcast, broadcast over what was summed" if wording.noun == "gradient" else ""
        return (
            f"{self._subject} returned a {wording.noun} of the wrong shape for {name}; expected {expected}, got {got}. "
            f"Give it the shape of the {wording.of}{how}. {wording.advice}"
        ).rstrip()


def _how_to_cast(got: tf.DType, expected: tf.DType) -> str:
    if not expected.is_floating and not expected.is_complex:
        return "Return None: only floating-point and complex numbers have gradients."
    if got.is_complex and expected.is_floating:
        return "Take its real part with tf.math.real."
    return "Cast it with tf.cast." if got.is_integer or got.is_bool else "Return numbers."


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
    return gradient is None or (type(gradient) is EagerTensor and _fits_target(gradient, tensors[0]))


def _fits_target(gradient: Any, target: tf.Tensor) -> bool:
    """A fast check: True if a Tensor has the dtype and static shape of the target; False means to look closer."""
    if type(gradient) is type(target) is EagerTensor:
        same_dtype = dtype_number_of(gradient) == dtype_number_of(target)
        return same_dtype and shape_of(gradient) == shape_of(target)
    if not isinstance(gradient, tf.Tensor) or gradient.dtype != target.dtype:
        return False
    return gradient.shape.is_fully_defined() and gradient.shape == target.shape
