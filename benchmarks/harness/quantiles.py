"""Summaries of samples: the median with the 20th and 80th percentile, of values and of ratios of pairs."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Summary:
    """The median of the samples and the range of most of them."""

    median: float
    p20: float
    p80: float


def summarize(samples: Sequence[float]) -> Summary:
    """The quantiles of some samples, interpolated between neighbours."""
    p20, median, p80 = np.quantile(samples, [0.2, 0.5, 0.8]).tolist()
    return Summary(median=median, p20=p20, p80=p80)


def ratio(of: Sequence[float], over: Sequence[float]) -> Summary | None:
    """The quantiles of the ratios of samples from the same round.

    Pairs, since a machine that gets slower for a while does so for both samples of a round: the ratio of two medians
    would compare the slow moments of one with the quick moments of the other. None where one of them is over zero.
    """
    pairs = list(zip(of, over, strict=True))
    return summarize([a / b for a, b in pairs]) if all(over) else None
