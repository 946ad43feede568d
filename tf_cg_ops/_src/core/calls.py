"""The ops that call functions of their graph: calls, loops and conditionals."""

from collections.abc import Iterable, Iterator
from typing import Any

CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
LOOPS = frozenset(["While", "StatelessWhile"])
CONDITIONALS = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])
TYPES = CALLS | LOOPS | CONDITIONALS


def num_own_inputs(op_type: str) -> int:
    """The number of inputs that the op keeps for itself: the first one of a conditional chooses the branch."""
    return 1 if op_type in CONDITIONALS else 0


def functions_in(attributes: Iterable[Any]) -> Iterator[Any]:
    """The functions (NameAttrLists, whose name can be set) that the attributes of a node name."""
    for attribute in attributes:
        yield from (function for function in (attribute.func, *attribute.list.func) if function.name)
