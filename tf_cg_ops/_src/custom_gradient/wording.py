"""The words of messages about wrong gradients: each API uses the terms that its users know."""

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text


def _not_traced(place: str) -> str:
    return (
        f"the gradient of '{{function}}' is not in this file, because TensorFlow could not trace {place}: {{error}}. "
        f"Correct {place}, or compute it with TensorFlow operations."
    )


NO_RULE = (
    "the graph does not have the derivative of order {order} of '{function}'. Compute it in the program that traced "
    "'{function}'"
)


@dataclasses.dataclass(frozen=True)
class Wording:
    """The nouns and sentences of an API for its messages.

    `{function}` is the name of the decorated function, `{name}` the name of the user's gradient function, and
    `{subject}` the subject with both.
    """

    api: str
    name: str = ""
    subject: str = "grad_fn of '{function}'"  # The subject of sentences about wrong gradients.
    gradient_function: str = "grad_fn"
    parameters: str = "*dys"
    # Whether the API binds the first arguments of the user's gradient function with functools.partial.
    binds_arguments: bool = False
    # Whether the user orders the gradients. TensorFlow does not keep the order of `**kwargs`.
    names_keywords: bool = False
    how_to_call: str = ""  # Follows the message about arguments that do not fit the user's function.
    takes_no_variables: str = (
        "{gradient_function} must take the keyword argument 'variables', got {shown}. Write "
        "{gradient_function}({parameters}, variables=None) and return (gradients of the inputs, gradients of the "
        "variables)."
    )
    takes: str = "{subject} must take {upstream} (one for each Tensor of the value)"
    wrong_number: str = "{subject} returned {gradients}; expected {expected} (one per input: {names}). {how_to_count}"
    wrong_structure: str = (
        "{subject} must return a gradient of {expected} for {argument}, got {got}. Return a gradient with the "
        "structure of the input."
    )
    nothing: str = (
        "{subject} must return one gradient for each input ({names}), got None, as from a function without a return "
        "statement. Return the gradient, or [None] if no input has one."
    )
    no_tensor: str = (
        "{subject} must return a Tensor for {argument}, got {got}. Return None for an input that has no gradient."
    )
    wrong_dtype: str = "{subject} must return a gradient of dtype {expected} for {argument}, got {got}. {how_to_cast}"
    wrong_shape: str = (
        "{subject} returned a gradient of the wrong shape for {argument}; expected {expected}, got {got}. Give it the "
        "shape of the input: sum over what was broadcast, broadcast over what was summed."
    )
    no_rule: str = f"{NO_RULE}, or save it: {{api}}(..., saved_orders={{order}})."
    not_traced: str = _not_traced("{gradient_function}")
    # A note on exceptions that the user's gradient function raises.
    raised: str = ""
    # Whether a NotImplementedError comes from the user's code: other APIs raise their own.
    is_for_users_code: bool = True

    def subject_of(self, function: str) -> str:
        """The start of a message about the gradients of this function."""
        return self.message("{subject}", function)

    def message(self, sentence: str, function: str, **parts: Any) -> str:
        """Fills in one of the sentences."""
        words = vars(self) | {"function": function}
        return f"{self.api}: {sentence.format(**words | parts | {'subject': self.subject.format(**words)})}"

    def not_traced_message(self, function: str, exception: Exception) -> str:
        """The message for a gradient function that raised this exception while it was traced."""
        error = f"{type(exception).__name__}: {exception}".removesuffix(".")
        return self.message(self.not_traced, function, error=error)

    def add_notes(self, function: str, error: Exception) -> None:
        """Adds what helps to an exception of the user's gradient function."""
        if self.raised:
            text.add_note(error, self.message(self.raised, function))
        self.add_note_about_numpy(self.subject_of(function).partition(": ")[2], error)

    def add_note_about_numpy(self, subject: str, error: Exception) -> None:
        """Adds the remedy to the exception that a symbolic Tensor raises in NumPy, or if it is asked for its array."""
        is_method = isinstance(error, AttributeError) and error.name == "numpy" and tf.is_tensor(error.obj)
        is_array = isinstance(error, NotImplementedError) and self.is_for_users_code
        if (is_method or is_array) and not tf.executing_eagerly():
            text.add_note(
                error,
                f"{self.api}: in a graph, {subject} gets symbolic Tensors, which have no values yet. If it calls "
                "NumPy, use TensorFlow's functions instead, such as tf.sign for np.sign, or tf_cg_ops.numpy_function.",
            )

    def wrong_number_message(self, function: str, number: int, names: list[str]) -> str:
        """The message for a number of gradients that does not fit the inputs with these names."""
        is_too_few = number < len(names)
        how = "Return None for an input that has no gradient." if is_too_few else "Return one gradient for each input."
        parts = {"gradients": text.count(number, "gradient"), "expected": len(names), "got": number}
        return self.message(self.wrong_number, function, names=text.quoted(names), how_to_count=how, **parts)

    def wrong_dtype_error(self, function: str, argument: str, expected: tf.DType, got: tf.DType) -> TypeError:
        """The error for a gradient whose dtype is not cast to the dtype of its input."""
        parts = {"expected": expected.name, "got": got.name, "how_to_cast": how_to_cast(got, expected)}
        return TypeError(self.message(self.wrong_dtype, function, argument=argument, **parts))

    def wrong_shape_message(self, function: str, argument: str, expected: Any, got: Any) -> str:
        """The message for a gradient that does not have the shape of its input."""
        return self.message(self.wrong_shape, function, argument=argument, expected=expected, got=got)


CUSTOM_GRADIENT = Wording("custom_gradient", names_keywords=True)


@functools.cache
def without_gradient_function(api: str, differentiated: str = "", is_for_users_code: bool = False) -> Wording:
    """The wording of an API whose user writes no gradient function, but maybe another one, such as a residual."""
    not_traced = _not_traced(f"the {differentiated}" if differentiated else "'{function}'")
    return Wording(
        api,
        subject="the gradient of '{function}'",
        no_rule=f"{NO_RULE}.",
        not_traced=not_traced,
        is_for_users_code=is_for_users_code,
    )


def how_to_cast(got: tf.DType, expected: tf.DType) -> str:
    """Advice for a dtype that is not cast."""
    if not expected.is_floating and not expected.is_complex:
        return "Return None: only floating-point and complex numbers have gradients."
    if got.is_complex and expected.is_floating:
        return "Take its real part with tf.math.real."
    return "Cast it with tf.cast." if got.is_integer or got.is_bool else "Return numbers."
