"""Sources of samples: the time of a call, or a number that a function returns."""

import gc
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Sampler(Protocol):
    """One implementation of a case."""

    def prepare(self, seconds: float) -> None:
        """Warms up; a sample should take about `seconds` from then on."""

    def sample(self) -> float:
        """One sample."""


class Timed:
    """The seconds that one call takes: the mean over as many calls as fit into the time of a sample."""

    def __init__(self, function: Callable[[], Any]) -> None:
        """`function` must wait for its result, even if its framework returns earlier."""
        self._function = function
        self._calls = 1

    def prepare(self, seconds: float) -> None:
        """Traces and compiles, then finds out how many calls fit."""
        self._run(1)
        self._calls = max(1, math.ceil(seconds / max(self._run(1), 1e-9)))
        if self._calls > 1:
            self._calls = max(1, math.ceil(self._calls * seconds / self._run(self._calls)))

    def sample(self) -> float:
        """The mean seconds of a call, after one untimed call."""
        # So that no implementation pays for another's garbage, cold caches and lost pages.
        gc.collect()
        self._run(1)
        return self._run(self._calls) / self._calls

    def _run(self, calls: int) -> float:
        function = self._function
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return time.perf_counter() - start


def in_turn(functions: Sequence[Callable[[], Any]]) -> Timed:
    """The time of a call whose inputs take turns, so that they are not in a cache."""
    turns = itertools.cycle(functions)
    return Timed(lambda: next(turns)())


class Number:
    """The number that a function returns: bytes, nodes, an error."""

    def __init__(self, function: Callable[[], float]) -> None:
        self._function = function

    def prepare(self, seconds: float) -> None:
        """Nothing: the first call is part of the number."""

    def sample(self) -> float:
        """The number."""
        return float(self._function())
