"""The words of messages about wrong gradients: each API uses the terms that its users know."""

import dataclasses
import functools
from collections.abc import Sequence
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
    """The nouns and sentences of an API for its messages. `{function}` is the name of the decorated function."""

    api: str
    subject: str = "grad_fn of '{function}'"  # Of sentences about wrong gradients.
    gradient_function: str = "grad_fn"
    parameters: str = "*dys"
    noun: str = "gradient"  # What the user's function returns.
    of: str = "input"  # For each of these.
    # Whether the API binds the first arguments of the user's gradient function with functools.partial.
    binds_arguments: bool = False
    # Whether the user orders the gradients. TensorFlow does not keep the order of `**kwargs`.
    names_keywords: bool = False
    how_to_call: str = ""  # Follows the message about arguments that do not fit the user's function.
    takes: str = "{upstream} (one for each Tensor of the value)"
    takes_variables: str = (
        "{gradient_function} must take the keyword argument 'variables', got {shown}. Write "
        "{gradient_function}({parameters}, variables=None) and return (gradients of the inputs, gradients of the "
        "variables)."
    )
    advice: str = ""  # Follows the message about a wrong shape.
    no_rule: str = f"{NO_RULE}, or save it: {{api}}(..., saved_orders={{order}})."
    not_traced: str = _not_traced("{gradient_function}")
    # Whether a NotImplementedError comes from the user's code: other APIs raise their own.
    is_for_users_code: bool = True

    def subject_of(self, function: str) -> str:
        """The start of a message about the gradients of this function."""
        return f"{self.api}: {self.subject.replace('{function}', function)}"

    def message(self, sentence: str, function: str, **parts: Any) -> str:
        """Fills in one of the sentences."""
        words = vars(self) | {"function": function, "subject": self.subject.replace("{function}", function)}
        return f"{self.api}: {sentence.format(**words | parts)}"

    def add_notes(self, function: str, error: Exception, dys: Sequence[Any]) -> None:
        """Adds what helps to an exception of the user's gradient function."""
        subject = self.subject.replace("{function}", function)
        if self.is_for_users_code and self.noun == "gradient":
            shapes = ", ".join(str(getattr(dy, "shape", dy)) for dy in dys)
            advice = self.advice and f" {self.advice}"
            text.add_note(error, f"{self.api}: raised in {subject}, with upstream gradients of shape {shapes}.{advice}")
        self.add_note_about_numpy(subject, error)

    def add_note_about_numpy(self, subject: str, error: Exception) -> None:
        """Adds the remedy to the exception that a symbolic Tensor raises in NumPy, or if it is asked for its array."""
        is_method = isinstance(error, AttributeError) and error.name == "numpy" and tf.is_tensor(error.obj)
        is_array = isinstance(error, NotImplementedError) and self.is_for_users_code
        is_python = isinstance(error, tf.errors.OperatorNotAllowedInGraphError)
        if (is_method or is_array or is_python) and not tf.executing_eagerly():
            text.add_note(
                error,
                f"{self.api}: in a graph, {subject} gets symbolic Tensors, which have no values yet. If it calls "
                "NumPy or reads a value in Python, use TensorFlow's functions instead, such as tf.sign for np.sign and "
                "tf.where for `if`, or tf_cg_ops.numpy_function.",
            )


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
