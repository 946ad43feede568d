"""Functions with their own gradient, and the ops inside them that no rule can reach.

In a graph such a function is its ops, and one op that passes its results through and has the gradient. That op gives no
gradient to the results, so the gradient skips the ops that compute them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_cg_ops._src.core.calls import LOOPS, TYPES, num_own_inputs
from tf_cg_ops._src.custom_gradient import attaching, live_rule, rule_op

# Gives the functions that a call, loop or conditional runs, as graphs with `inputs` and `outputs`.
FunctionsOf = Callable[[Any], Sequence[Any]]


def differentiated_inputs(op: Any) -> list[int] | None:
    """The positions of the inputs that an op with its own gradient gives a gradient to; None for any other op."""
    if op.type == "CustomGradientEmbed" and not op.get_attr("fx_gx_manually_stopped"):
        return list(range(1 + len(op.inputs) // 2, len(op.inputs)))  # Its inputs are fx, then each gx, then each x.
    if op.type != "CustomGradientRule":
        return None
    live = live_rule.of(op)
    if rule_op.error(op) and live is not None and live.exception is None:
        with op.graph.as_default():
            op, _ = attaching.with_traced_rule(op)
    if rule_op.error(op):  # Then only the process that made the function knows.
        return list(range(len(op.inputs)))
    return [len(op.outputs) + position for position in op.get_attr("differentiated_inputs")]


def name_of_owner(op: Any) -> str:
    """The name of the function that an op with its own gradient belongs to, or else of the op."""
    if op.type == "CustomGradientRule":
        return rule_op.function_name(op)
    return "embed_gradient" if op.type == "CustomGradientEmbed" else op.name


def contains(op: Any, positions: Sequence[int], wanted: Callable[[Any], bool], functions_of: FunctionsOf) -> bool:
    """Whether the results of an op with its own gradient depend on a wanted op, other than through these inputs."""
    seen = {id(op.inputs[position]) for position in positions}
    waiting = [tensor for position, tensor in enumerate(op.inputs) if position not in positions]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            if any(map(wanted, with_inner_ops(tensor.op, functions_of))):
                return True
            waiting += tensor.op.inputs
    return False


def with_inner_ops(op: Any, functions_of: FunctionsOf) -> Iterator[Any]:
    """An op, and the ops of the functions that it runs, at any depth."""
    yield op
    if op.type in TYPES:
        for function in functions_of(op):
            for inner in function.get_operations():
                yield from with_inner_ops(inner, functions_of)


class OwnGradients:
    """The ops with their own gradient in the graphs of a function, and the matched ops that gradients skip for them.

    Args:
      matching: Finds the rules of ops: a `Matching`, or what has its methods.
      functions_of: The functions that an op runs.
    """

    def __init__(self, matching: Any, functions_of: FunctionsOf) -> None:
        self._matching = matching
        self._functions_of = functions_of
        # By the id of an op, which the entry keeps alive.
        self._own: dict[int, tuple[Any, Sequence[int], str]] = {}
        self._callers: dict[int, list[Any]] = {}
        self._parameters: dict[int, tuple[Any, int]] = {}

    def keeps(self, op: Any, positions: Sequence[int], inside: bool, name: str) -> bool:
        """Whether an op keeps its own gradient, with respect to its inputs at these positions.

        With `inside` it does not if a rule matched an op inside its function. `name` is the function, for messages.
        """
        if inside and contains(op, positions, self._matching.matched, self._functions_of):
            return False
        self._own[id(op)] = op, positions, name
        return True

    def check_rules_reach(self, place: str, outputs: Sequence[Any]) -> None:
        """Raises ValueError for a rule that can have no effect on the gradient of the outputs; see `Matching`."""
        for op in self._matching.ops:
            if op.type in TYPES or id(op) in self._own:
                self._own[id(op)] = op, range(len(op.inputs)), op.name  # The rule replaces it.
        reached = self._behind(outputs)
        matched = {id(op) for op in self._matching.ops}
        self._matching.warn_of_unreached(
            place, [name for key, (_, _, name) in self._own.items() if key in reached - matched]
        )
        around: dict[int, str] = {}
        waiting = [own for key, own in self._own.items() if key in reached]
        while waiting:
            op, positions, name = waiting.pop()
            inside = self._behind([tensor for i, tensor in enumerate(op.inputs) if i not in positions])
            inside |= {id(inner) for inner in with_inner_ops(op, self._functions_of) if inner is not op}
            new = inside - reached - around.keys()
            around.update(dict.fromkeys(new, name))
            waiting += [self._own[key] for key in new & self._own.keys()]
        self._matching.check_all_reached(place, reached, around)

    def _behind(self, tensors: Sequence[Any]) -> set[int]:
        """The ids of the ops that gradients of these tensors reach."""
        ops, seen, waiting = set(), set(), list(tensors)
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if id(tensor) in self._parameters:
                function, position = self._parameters[id(tensor)]
                for caller in self._callers[id(function)]:
                    waiting += _passed_to(caller, function, position)
                continue
            op = tensor.op
            ops.add(id(op))
            if id(op) in self._own:
                waiting += [op.inputs[position] for position in self._own[id(op)][1]]
            elif op.type not in TYPES:
                waiting += op.inputs
            else:
                functions = self._functions_of(op)
                for function in functions[1:] if op.type in LOOPS else functions:  # No gradient of a condition.
                    waiting.append(function.outputs[tensor.value_index])
                    known = self._callers.setdefault(id(function), [])
                    if not any(caller is op for caller in known):
                        known.append(op)
                        for position, parameter in enumerate(function.inputs):
                            self._parameters[id(parameter)] = function, position
                            if id(parameter) in seen:
                                waiting += _passed_to(op, function, position)
        return ops


def _passed_to(caller: Any, function: Any, position: int) -> list[Any]:
    """What an op passes to a parameter of its function: its input, and in a loop what the body returned before."""
    before = [function.outputs[position]] if caller.type in LOOPS else []
    return [caller.inputs[position + num_own_inputs(caller.type)], *before]
