"""The words in which the messages of each API speak of gradients: those of what its user wrote."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tf_cg_ops._src import errors


@dataclasses.dataclass(frozen=True)
class Terms:
    """The words for the gradient function, in the messages that several APIs share.

    `{function}` in them stands for the name of the decorated function.
    """

    api: str
    rule: str = "grad_fn of '{function}'"  # What returns gradients.
    name: str = "grad_fn"  # What takes upstream gradients.
    leading: str = ""  # What it takes before them.
    parameters: str = "*dys"
    parameters_with_variables: str = "*dy, variables=None"
    beside_the_value: tuple[str, str] = ("gradient", "grad_fn")  # A word for what a function returns, and its name.
    traced: str = "a grad_fn"  # What has to be made of TensorFlow operations.
    traced_in: str = "grad_fn"
    written: Callable[..., Any] | None = None  # The user's gradient function, where it is called by another one.
    # Messages in the place of those of `_errors`.
    count: str = errors.GRADIENT_COUNT
    dtype: str = errors.GRADIENT_DTYPE
    shape: str = errors.GRADIENT_SHAPE
    kind: str = errors.GRADIENT_KIND

    def where(self, function: str) -> dict[str, str]:
        """The part of every message: the API, the function and what returns its gradients."""
        return {"api": self.api, "function": function, "rule": self.rule.format(function=function)}


def without_gradient_function(api: str, traced: str = "a function", traced_in: str = "'{function}'") -> Terms:
    """The words of an API whose user writes no gradient function."""
    return Terms(api, rule="the gradient of '{function}'", name="", traced=traced, traced_in=traced_in)


CUSTOM_GRADIENT = Terms("custom_gradient")
CLIP_GRADIENT = without_gradient_function("clip_gradient")
IMPLICIT_ROOT = without_gradient_function("implicit_root", "a residual", "the residual")
RECOMPUTE_GRAD = without_gradient_function("recompute_grad")
STRAIGHT_THROUGH = without_gradient_function("straight_through", "a surrogate", "the surrogate")
GRAD_PASS_THROUGH = dataclasses.replace(
    without_gradient_function("grad_pass_through"),
    count=errors.PASS_THROUGH_COUNT,
    dtype=errors.PASS_THROUGH_DTYPE,
    shape=errors.PASS_THROUGH_SHAPE,
    kind=errors.PASS_THROUGH_KIND,
)
# An op of a graph does not tell which API made it.
OP = without_gradient_function("CustomGradientRule")
