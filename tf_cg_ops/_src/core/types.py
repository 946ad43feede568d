"""Type variables of decorators, whose functions keep their parameters for type checkers."""

from typing import ParamSpec, TypeVar

# The parameters of a decorated function, and what it returns.
P = ParamSpec("P")
R = TypeVar("R")
