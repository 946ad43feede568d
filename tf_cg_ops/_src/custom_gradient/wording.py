"""The messages that several APIs share, each in the words of what its user wrote."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text


class Wording:
    """The messages of `custom_gradient`; subclasses have those of APIs whose user writes something else.

    `function` is the name of the decorated function in all of them.
    """

    gradient_function = "grad_fn"
    parameters = "*dys"

    def __init__(self, api: str) -> None:
        self.api = api

    def subject(self, function: str) -> str:
        """The subject of a sentence about wrong gradients."""
        return f"{self.gradient_function} of '{function}'"

    def user_call(
        self, grad_fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
        """The user's gradient function and its arguments in the call `grad_fn(*args, **kwargs)`."""
        return grad_fn, args, kwargs

    def not_a_pair(self, function: str, got: Any) -> str:
        """The function does not return a pair."""
        return (
            f"{self.api}: '{function}' did not return its value with its gradient; expected a pair (value, grad_fn), "
            f"got {text.describe_type(got)}. End it with: return value, grad_fn"
        )

    def takes_no_variables(self, function: str, variables: Sequence[tf.Variable], signature: Any) -> str:
        """The function reads variables, but its gradient function does not take them."""
        return (
            f"{self.api}: '{function}' reads variables that are not among its arguments ({names_of(variables)}); "
            f"expected a {self.gradient_function} that takes the keyword argument 'variables', got "
            f"{self.gradient_function}{signature}. Write {self.gradient_function}({self.parameters}, variables=None) "
            "and return (gradients of the inputs, gradients of the variables)."
        )

    def takes_other_upstream(self, function: str, num_upstream: int, signature: Any) -> str:
        """The parameters of the gradient function do not fit the upstream gradients."""
        return (
            f"{self.api}: {self.subject(function)} does not take its upstream gradients; expected parameters for "
            f"{text.count(num_upstream, 'upstream gradient')} (one for each leaf of the value), got "
            f"{self.gradient_function}{signature}. Write {self.gradient_function}({self.parameters})."
        )

    def no_gradients_of_variables(self, function: str, got: Any) -> str:
        """The answer of the gradient function is not a pair, although there are variables."""
        return (
            f"{self.api}: {self.subject(function)} did not return gradients for the variables; expected a pair "
            f"(gradients of the inputs, gradients of the variables), got {text.describe_type(got)}. Return None for a "
            "variable that has no gradient."
        )

    def wrong_number(self, function: str, num_gradients: int, names: Sequence[str]) -> str:
        """There is not one gradient for each input."""
        return (
            f"{self.api}: {self.subject(function)} returned {text.count(num_gradients, 'gradient')}; expected "
            f"{len(names)} (one per input: {text.quoted(names)}). Return None for an input that has no gradient."
        )

    def wrong_number_for_variables(self, function: str, num_gradients: int, variables: Sequence[tf.Variable]) -> str:
        """There is not one gradient for each variable."""
        return (
            f"{self.api}: {self.subject(function)} returned {text.count(num_gradients, 'gradient')} for the variables; "
            f"expected {len(variables)} (one per variable: {names_of(variables)}). Return None for a variable that has "
            "no gradient."
        )

    def wrong_structure(self, function: str, argument: str, expected: int, got: int) -> str:
        """A gradient does not hold as many tensors as its input."""
        return (
            f"{self.api}: {self.subject(function)} returned a gradient that does not hold as many tensors as "
            f"{argument}; expected {text.count(expected, 'tensor')}, got {text.count(got, 'tensor')}. Return a "
            "gradient with the structure of the input."
        )

    def wrong_answer(self, function: str, what: str) -> str:
        """A dictionary in the answer does not fit the inputs: `what` says how and what to do."""
        return f"{self.api}: {self.subject(function)} {what}"

    def wrong_container(self, function: str, container: str) -> str:
        """The answer is a container without an order."""
        return (
            f"{self.api}: {self.subject(function)} must return its gradients in a tuple or a list, got {container}. "
            "Return one gradient for each input, in their order."
        )

    def dict_for_variables(self, function: str) -> str:
        """The gradients of the variables are in a dictionary."""
        return (
            f"{self.api}: {self.subject(function)} must return the gradients of the variables in a list, got a dict. "
            "Return one gradient for each variable, in the order of 'variables'."
        )

    def no_tensors(self, function: str, argument: str, value: Any) -> str:
        """There is a gradient for a leaf of the arguments that holds no Tensor."""
        remedy = "Return None for it, or pass it as a Tensor."
        is_plain = isinstance(value, (str, bytes, bool, int, float, complex, np.ndarray, np.generic))
        if not is_plain and value is not None and not callable(value):
            remedy = (
                "Pass its Tensors as arguments, or in a tuple or a dict, or make it a tf.experimental.ExtensionType: "
                "TensorFlow does not look into other objects."
            )
        return (
            f"{self.api}: {self.subject(function)} must return None for {argument}, which is "
            f"{'None' if value is None else text.describe_type(value)}, in which TensorFlow finds no Tensor. {remedy}"
        )

    def not_a_gradient(self, function: str, argument: str, got: Any) -> str:
        """A gradient is not a Tensor, an array or a number."""
        return (
            f"{self.api}: {self.subject(function)} must return a Tensor for {argument}, got {text.describe(got)}. "
            "Return None for an input that has no gradient."
        )

    def wrong_dtype(self, function: str, argument: str, expected: tf.DType, got: tf.DType) -> str:
        """A gradient has a dtype that is not cast to that of its input."""
        return (
            f"{self.api}: {self.subject(function)} must return a gradient of dtype {expected.name} for {argument}, got "
            f"{got.name}. {how_to_cast(got, expected)}"
        )

    def wrong_shape(self, function: str, argument: str, expected: Any, got: Any) -> str:
        """A gradient does not have the shape of its input."""
        return (
            f"{self.api}: {self.subject(function)} returned a gradient of the wrong shape for {argument}; expected "
            f"{expected}, got {got}. Give it the shape of the input: sum over what was broadcast, broadcast over what "
            "was summed."
        )

    def not_traced(self, function: str, error: str) -> str:
        """A graph holds no gradient rule."""
        return self._not_traced(function, self.gradient_function, self.gradient_function, error)

    def _not_traced(self, function: str, noun: str, place: str, error: str) -> str:
        return (
            f"{self.api}: the gradient of '{function}' is not there; expected a {noun} that TensorFlow can trace into "
            f"a graph, got this while tracing it: {error}. Use TensorFlow operations in {place}."
        )


class WordingWithoutGradientFunction(Wording):
    """The messages of an API whose user writes no gradient function, but perhaps another one, such as a residual."""

    def __init__(self, api: str, differentiated: str = "") -> None:
        super().__init__(api)
        self._differentiated = differentiated

    def subject(self, function: str) -> str:
        """The gradient, for ops of which nobody knows the API."""
        return f"the gradient of '{function}'"

    def not_traced(self, function: str, error: str) -> str:
        """A graph holds no gradient rule."""
        if self._differentiated:
            return self._not_traced(function, self._differentiated, f"the {self._differentiated}", error)
        return self._not_traced(function, "function", f"'{function}'", error)


CUSTOM_GRADIENT = Wording("custom_gradient")


def how_to_cast(got: tf.DType, expected: tf.DType) -> str:
    """The advice for a dtype that is not cast."""
    if got.is_complex and expected.is_floating:
        return "Take its real part with tf.math.real."
    return "Cast it with tf.cast." if got.is_integer or got.is_bool else "Return numbers."


def names_of(variables: Sequence[tf.Variable]) -> str:
    """The names of variables, quoted."""
    return text.quoted(variable.name for variable in variables)
