"""The types in the signatures of public functions, and the type variables of decorators.

TensorFlow ships no types that a type checker can use, so the aliases stand for `Any`. They tell a reader what to pass.
A module with public functions imports `annotations` from `__future__`, so that `help` shows the aliases by name.
"""

from collections.abc import Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

# A Tensor or what `tf.convert_to_tensor` takes: a Variable, a NumPy array, a number.
TensorLike: TypeAlias = Any

# One TensorLike, or several in lists, tuples, dicts and the other structures that `tf.nest` knows.
Structure: TypeAlias = Any

# The dimensions that a function works over: None for all of them.
Axis: TypeAlias = int | Sequence[int] | None

# The parameters of a decorated function, and what it returns.
P = ParamSpec("P")
R = TypeVar("R")
