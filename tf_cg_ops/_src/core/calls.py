"""The ops that call functions of their graph: calls, loops and conditionals."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
LOOPS = frozenset(["While", "StatelessWhile"])
CONDITIONALS = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])
TYPES = CALLS | LOOPS | CONDITIONALS


def num_own_inputs(op_type: str) -> int:
    """How many inputs the op does not pass on: the first input of a conditional chooses the branch."""
    return 1 if op_type in CONDITIONALS else 0


def functions_in(attributes: Iterable[Any]) -> Iterator[Any]:
    """The functions in the attributes of a node, as NameAttrLists whose name you can set."""
    for attribute in attributes:
        yield from (function for function in (attribute.func, *attribute.list.func) if function.name)


def reachable(definition: Any, find: Callable[[str], Any]) -> Iterator[str]:
    """The names of the functions that a FunctionDef calls, directly or indirectly; `find` gives their definitions."""
    waiting, seen = [definition], set()
    while waiting:
        for node in waiting.pop().node_def:
            for function in functions_in(node.attr.values()):
                if function.name not in seen:
                    seen.add(function.name)
                    waiting.append(find(function.name))
                    yield function.name
