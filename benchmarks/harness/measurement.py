"""Measures cases: implementations take turns, A B C A B C, and samples of the same round are compared."""

import dataclasses
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .samplers import Sampler


@dataclasses.dataclass(frozen=True)
class Settings:
    """The time and the sizes of a run."""

    quick: bool = False
    # The time for the samples of one case, and over how many rounds they are spread.
    seconds: float = 5.0
    most_rounds: int = 31
    fewest_rounds: int = 5

    def pick(self, full: Any, quick: Any) -> Any:
        """`quick` in a run of a minute, else `full`."""
        return quick if self.quick else full


QUICK = Settings(quick=True, seconds=0.01, most_rounds=2, fewest_rounds=2)
Samplers = Mapping[str, Sampler | str]


@dataclasses.dataclass(frozen=True)
class Case:
    """Implementations that do the same job."""

    subject: str
    name: str
    # Makes the inputs and returns the implementations by name, or a string that says why one is absent.
    build: Callable[[], Samplers]
    # The names whose ratios to each other implementation are measured.
    ours: Sequence[str] = ("cg.embed_gradient",)
    unit: str = "s"
    # The size of the largest tensor.
    elements: int = 1
    # The least that must be read and written; 0 if memory does not matter.
    bytes_moved: int = 0
    # Numbers that never change need few rounds.
    rounds: int | None = None


def summarize(samples: Sequence[float]) -> dict[str, float]:
    """The median with the 20th and 80th percentile, interpolated between neighbours, to five digits."""
    p20, median, p80 = (float(f"{value:.5g}") for value in np.quantile(samples, [0.2, 0.5, 0.8]))
    return {"median": median, "p20": p20, "p80": p80}


def ratio(of: Sequence[float], over: Sequence[float]) -> dict[str, float] | None:
    """The quantiles of the ratios of samples from the same round.

    If the machine gets slower for a while, both samples of a round do. The ratio of two medians could compare slow
    moments of one with quick moments of the other. None if a sample is divided by zero.
    """
    pairs = list(zip(of, over, strict=True))
    return summarize([a / b for a, b in pairs]) if all(over) else None


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """The summaries of all implementations of one case, and the ratios of pairs."""
    built = dict(case.build())
    implementations = {name: sampler for name, sampler in built.items() if not isinstance(sampler, str)}
    most = min(case.rounds or settings.most_rounds, settings.most_rounds)
    fewest = min(most, settings.fewest_rounds)
    gc.collect()
    gc.freeze()
    for sampler in implementations.values():
        sampler.prepare(settings.seconds / len(implementations) / most)
    samples: dict[str, list[float]] = {name: [] for name in implementations}
    start = time.perf_counter()
    rounds = 0
    while rounds < fewest or (rounds < most and time.perf_counter() - start < settings.seconds):
        for name, sampler in implementations.items():
            samples[name].append(sampler.sample())
        rounds += 1
    gc.unfreeze()
    return {
        "subject": case.subject,
        "case": case.name,
        "unit": case.unit,
        "elements": case.elements,
        "bytes_moved": case.bytes_moved,
        "rounds": rounds,
        "implementations": {name: summarize(values) for name, values in samples.items()},
        "ratios": {ours: _ratios(ours, samples) for ours in case.ours if ours in samples},
        "absent": {name: reason for name, reason in built.items() if isinstance(reason, str)},
    }


def _ratios(ours: str, samples: Mapping[str, list[float]]) -> dict[str, Any]:
    """The ratios to each other implementation, except to zeros."""
    found = {other: ratio(samples[ours], samples[other]) for other in samples if other != ours}
    return {other: summary for other, summary in found.items() if summary is not None}


def measure_all(cases: Sequence[Case], settings: Settings) -> Iterator[dict[str, Any]]:
    """Measures one case after the other and reports its progress on stderr."""
    start = time.perf_counter()
    for index, case in enumerate(cases):
        passed = time.perf_counter() - start
        left = f"about {passed / index * (len(cases) - index):.0f} s left" if index else "no estimate yet"
        print(f"[{index + 1}/{len(cases)}] {case.subject}: {case.name} ({left})", file=sys.stderr, flush=True)
        yield measure(case, settings)
