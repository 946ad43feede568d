"""The equations that a solver's result satisfies, one for each unknown."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree, tapes, text
from tf_cg_ops._src.core.signature import mismatched_signature
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.ready_made.unknowns import Unknowns

ADVICE = "Return numbers with the structure, shapes and dtype of y."


@dataclasses.dataclass(frozen=True)
class Problem:
    """The user's arguments to an implicit function, except the solver."""

    api: str
    noun: str  # What messages call the user's function.
    user_function: Callable[..., Any]
    # Takes the unknowns, in the structure of the solver's result, and the arguments; returns the same structure.
    residual: Callable[..., Any]
    options: dict[str, Any]
    is_fixed_point: bool = False  # Otherwise a root.


class Equations:
    """The equations of one call as a function of Tensors: the residual, or `f` of a fixed point."""

    unknowns: Unknowns  # Of the solver's result.
    variables: list[tf.Variable]  # Read by the user's function, and able to have a gradient.

    def __init__(
        self, problem: Problem, solve: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self.problem = problem
        self.api, self.noun, self.is_fixed_point = problem.api, problem.noun, problem.is_fixed_point
        self.function_name = text.name_of(solve)  # Of the solver.
        self.subject = f"the {problem.noun} '{text.name_of(problem.user_function)}' of '{self.function_name}'"
        self._structure = (list(args), kwargs)
        leaves = tf.nest.flatten(self._structure)
        # For a Variable among the arguments, its value is the input.
        self._leaves = [leaf if as_variable(leaf) is None else tf.convert_to_tensor(leaf) for leaf in leaves]
        self._components = [pytree.tensors_for_gradients(leaf) for leaf in self._leaves]
        self.inputs = [tensor for tensors in self._components for tensor in tensors]

    def value_at(self, unknowns: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """The value of the user's function as one Tensor.

        TypeError or ValueError unless it has the structure, dtype and shapes of the unknowns.
        """
        leaves = pytree.replace_tensors(self._leaves, self._components, inputs)
        args, kwargs = tf.nest.pack_sequence_as(self._structure, leaves)
        y = self.unknowns.structured(unknowns)
        try:
            value = self.problem.residual(y, *args, **kwargs)
        except TypeError as error:
            signature = mismatched_signature(self.problem.user_function, [y, *args], kwargs)
            if signature is None:
                raise
            raise TypeError(
                f"{self.api}: {self.subject} must take y and then the arguments of '{self.function_name}', got "
                f"{text.name_of(self.problem.user_function)}{signature}."
            ) from error
        if any(leaf is None for leaf in tf.nest.flatten(value)):
            self.check_tapes()
        return self.unknowns.pack(f"{self.subject} must return", value, ADVICE)

    def check_tapes(self) -> None:
        """NotImplementedError if tapes that the user's function opens do not record."""
        if not tapes.new_tapes_record():
            raise NotImplementedError(
                f"{self.api}: {self.subject} needs a tape of its own, which TensorFlow does not let record under a "
                "ForwardAccumulator in eager mode. Call it inside a tf.function."
            )
