"""Variables that a decorated function returns as they are and does not read."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree
from tf_cg_ops._src.core.variables import as_variable, can_have_gradient, captured_variables, merged, variables_in


def of_value(leaves: list[Any], variables: Sequence[tf.Variable], arguments: Sequence[Any]) -> list[int]:
    """The positions of the leaves that are such variables, or composites that stand for a Tensor that they compute."""
    candidates = [i for i, leaf in enumerate(leaves) if not isinstance(leaf, tf.Tensor) and variables_in(leaf)]
    known = [*variables, *arguments]
    return [
        i
        for i in candidates
        if pytree.is_read_as_tensor(leaves[i])
        and len(captured_variables(variables_in(leaves[i]), known)) == len(variables_in(leaves[i]))
        and all(map(can_have_gradient, variables_in(leaves[i])))
    ]


def counted(
    variables: list[tf.Variable], returned: list[int], leaves: list[Any]
) -> tuple[list[tf.Variable], list[int]]:
    """The variables with those that are returned, and the other positions."""
    new = [variable for i in returned if (variable := as_variable(leaves[i])) is not None]
    return merged(variables, new), [i for i in returned if as_variable(leaves[i]) is None]


def positions(returned: list[int], components: list[list[tf.Tensor]]) -> list[int]:
    """The positions of these leaves among the components of all leaves."""
    return [sum(map(len, components[:i])) for i in returned]


def passing(backward: Callable[..., list[Any]], passed: list[int]) -> Callable[..., list[Any]]:
    """`backward` with more gradients: the upstream gradients at these positions."""

    def with_passed(upstream: Sequence[Any], **kwargs: Any) -> list[Any]:
        return [*backward(upstream, **kwargs), *(upstream[position] for position in passed)]

    return with_passed


def passing_tangents(tangents: Callable[..., list[Any]], passed: list[int]) -> Callable[..., list[Any]]:
    """`tangents` with more tangents: they are added to those at these positions."""

    def with_passed(*flat: Any) -> list[Any]:
        num_inputs = len(flat) - len(passed)
        result = tangents(*flat[:num_inputs])
        for position, tangent in zip(passed, flat[num_inputs:], strict=True):
            parts = [part for part in (result[position], tangent) if part is not None]
            result[position] = sum(parts[1:], parts[0]) if parts else None
        return result

    return with_passed
