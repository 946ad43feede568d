"""Chooses where to cut a traced graph, and which of the segments to compute again.

A cut keeps the values that cross it. A segment that is computed again holds its values only during its own part of the
backward pass (Chen et al., "Training deep nets with sublinear memory cost", 2016, arXiv:1604.06174). The graph is cut
in the order of its ops (Kusumoto et al., "A graph theoretic framework of recomputation algorithms for memory-efficient
backpropagation", 2019, arXiv:1905.11722). Dynamic programming over the cuts finds the least extra time for a peak, as
for chains in Beaumont et al., "Optimal checkpointing for heterogeneous chains" (2019, arXiv:1911.13214).
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from tf_cg_ops._src.memory.graph_costs import GraphCosts

# More places to cut would hardly change the plan, but take quadratic time.
_MOST_PLACES = 160
# The choices that are kept open at each place, by their memory.
_MOST_CHOICES = 96
# How far before a cut to look for ops whose results only the next segments need.
_WINDOW = 48


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Segments of a graph: the ops from one place to the next."""

    places: list[int]  # The first op of each segment, and the number of all ops.
    is_recomputed: list[bool]  # For each segment.
    kept: list[float]  # The bytes that each segment keeps besides the segments before it.
    peak: float
    extra_cost: float
    course: list[float]  # The bytes held at each candidate for a cut, in the forward pass and then backwards.


class Choices:
    """All ways to cut a graph at some places, and at the given ones."""

    def __init__(self, costs: GraphCosts, given: Sequence[int] = ()) -> None:
        self._places = places = np.union1d(_candidates(costs), np.array(given, int))
        num_ops = len(costs.operations)
        bucket = lambda numbers: np.searchsorted(places, numbers, side="right") - 1  # noqa: E731
        values = costs.values
        # Each of the quadratically many segments asks for sums over values. They are differences of sums that start at
        # the first op, made once: tables by the segment that produces a value and the one that uses or reads it.
        size = np.array([value.size for value in values], float)
        first = bucket([value.first for value in values])
        # The bucket of the end also holds what outlives the graph, and, for savers, what no gradient reads.
        last = bucket([num_ops if value.is_kept else value.last for value in values])
        saver = bucket([2 * num_ops if value.first_saver is None else value.first_saver for value in values])
        num = len(places)  # The last place is the end; its bucket holds what no op of the graph uses.
        at = np.arange(num)
        i, j = at[:, None], at[None, :]
        # Produced from place i to place j and used from j on, so a cut at j keeps it.
        self.kept = _produced_and_used(_sums(size, first, last, num), i, j)
        # Without recomputation, what the gradients between i and j read is kept, too.
        is_saved = saver < num - 1
        by_saved = _sums(size * is_saved, first, last, num)
        self.saved = self.kept + by_saved[j, num] - by_saved[i, num] - _produced_and_used(by_saved, i, j)
        # In the backward pass of the ops from i to j, up to the op before j: what they produce and gradients read. The
        # pass runs from the end, so a value is held as long as the gradient of an op that is still to come reads it.
        read = _sums(size, first, saver, num)
        flights = zip(places, [*places[1:], num_ops], strict=True)
        in_flight = np.array([costs.in_flight[a:b].max(initial=0) for a, b in flights])
        held = np.full((num, num), -np.inf)
        held[:, 1:] = (read[num, j] - read[i, j])[:, 1:] + in_flight[None, :-1]
        self._held = held
        self.peak = np.maximum.accumulate(np.where(j > i, held, -np.inf), axis=1)
        total = np.concatenate([[0], np.cumsum(costs.cost)])[places]
        not_needed = np.array([_cost_not_needed(costs, place) for place in places])
        self.cost = np.maximum(total[None, :] - total[:, None] - not_needed[None, :], 0)
        self.plain_peak = float(self.peak[0, -1])
        self.total_cost = float(total[-1])

    @property
    def least_peak(self) -> float:
        """The least peak that some choice of cuts reaches."""
        # What a segment keeps raises the peaks of all that follow, so the least peak is not found segment by segment.
        # But what fits a budget fits any larger one, so it can be bisected.
        low, high = 0.0, self.plain_peak
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self._fits(middle) else (middle, high)
        return high

    def _fits(self, budget: float) -> bool:
        num = len(self._places)
        least = np.full(num, np.inf)
        least[0] = 0
        for j in range(1, num):
            fits = least[:j] + self.peak[:j, j] <= budget
            step = np.minimum(self.kept[:j, j], self.saved[:j, j])
            least[j] = np.min(np.where(fits, least[:j] + step, np.inf))
        return bool(np.isfinite(least[-1]))

    def best(self, budget: float) -> Cuts:
        """The cuts with the least extra cost within the budget for the peak; of these, the ones with the least peak."""
        num = len(self._places)
        # Not one best choice for each place: a dearer one that keeps less can be the only one that fits later.
        # For each place, choices up to there: kept bytes, extra cost, peak, place before, its choice, is recomputed.
        choices = [np.zeros((1, 6))]
        width = max(self.plain_peak, 1.0) / _MOST_CHOICES
        for j in range(1, num):
            found = []
            for i in range(j):
                before = choices[i]
                peaks = before[:, 0] + self.peak[i, j]
                fits = np.flatnonzero(peaks <= budget)
                if not len(fits):
                    continue
                for again, added, cost in ((1, self.kept[i, j], self.cost[i, j]), (0, self.saved[i, j], 0.0)):
                    each = np.empty((len(fits), 6))
                    each[:, 0] = before[fits, 0] + added
                    each[:, 1] = before[fits, 1] + cost
                    each[:, 2] = np.maximum(before[fits, 2], peaks[fits])
                    each[:, 3], each[:, 4], each[:, 5] = i, fits, again
                    found.append(each)
            choices.append(_not_dominated(np.concatenate(found) if found else np.zeros((0, 6)), width))
        place, at = num - 1, int(np.lexsort((choices[-1][:, 2], choices[-1][:, 1]))[0])
        path: list[int] = [place]
        is_recomputed: list[bool] = []
        while place:
            place, at, again = map(int, choices[place][at, 3:])
            is_recomputed.insert(0, bool(again))
            path.insert(0, place)
        return self._cuts(path, is_recomputed)

    def cut_at(self, places: Sequence[int], is_recomputed: Sequence[bool]) -> Cuts:
        """The cuts at these places."""
        return self._cuts(np.searchsorted(self._places, places).tolist(), is_recomputed)

    def _cuts(self, path: list[int], is_recomputed: Sequence[bool]) -> Cuts:
        segments = list(zip(path, path[1:], is_recomputed, strict=False))
        kept = [float((self.kept if is_again else self.saved)[i, j]) for i, j, is_again in segments]
        before = itertools.accumulate([0.0, *kept])
        peak = max(held + self.peak[i, j] for held, (i, j, _) in zip(before, segments, strict=False))
        cost = sum(self.cost[i, j] for i, j, is_again in segments if is_again)
        places = [int(self._places[place]) for place in path]
        return Cuts(places, list(is_recomputed), kept, float(peak), float(cost), self._course(path, kept))

    @property
    def plain_course(self) -> list[float]:
        """The course without recomputation."""
        end = len(self._places) - 1
        return [*self.saved[0, 1:], *self._held[0, end:0:-1]]

    def _course(self, path: list[int], kept: list[float]) -> list[float]:
        before = np.concatenate([[0], np.cumsum(kept)])
        forward, backward = [], []
        for number, (i, j) in enumerate(itertools.pairwise(path)):
            forward += [before[number]] * (j - i - 1) + [before[number + 1]]
            backward += list(before[number] + self._held[i, i + 1 : j + 1])
        return [float(size) for size in (*forward, *backward[::-1])]


def _not_dominated(rows: np.ndarray, width: float) -> np.ndarray:
    """The choices without those that others beat in memory and cost; of similar memory, only the cheapest."""
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    cheapest = np.minimum.accumulate(rows[:, 1]) if len(rows) else rows[:, 1]
    better = np.concatenate([[True], cheapest[1:] < cheapest[:-1]])[: len(rows)]
    rows = rows[better]
    # Memory rises and cost falls along the rows. So the last row of a group is its cheapest, and the first needs the
    # least memory: without it, there would be no choice for a budget that is just enough.
    group = rows[:, 0] // width
    ends = np.concatenate([group[1:] != group[:-1], [True]])[: len(rows)]
    starts = np.concatenate([[True], group[1:] != group[:-1]])[: len(rows)]
    return rows[ends | starts]


def _candidates(costs: GraphCosts) -> np.ndarray:
    """The places to cut: in each part of the graph with the same cost and memory, where the fewest bytes cross."""
    num_ops = len(costs.operations)
    crossing, work = np.zeros(num_ops + 1), costs.cost / max(costs.cost.sum(), 1)
    saved = np.zeros(num_ops + 1)
    for value in costs.values:
        crossing[value.first + 1 : min(value.last, num_ops) + 1] += value.size if value.can_cross else np.inf
        if value.first_saver is not None:
            saved[value.first] += value.size
    # By cost alone, cheap ops with large results, such as activations, would share one place.
    progress = np.cumsum(work + saved[:-1] / max(saved.sum(), 1))
    part = np.minimum((progress / max(progress[-1], 1e-30) * _MOST_PLACES).astype(int), _MOST_PLACES)
    best: dict[int, int] = {}
    for place in (np.flatnonzero(np.isfinite(crossing[1:num_ops])) + 1).tolist():
        key = int(part[place])
        if key not in best or crossing[place] <= crossing[best[key]]:
            best[key] = place
    return np.array([0, *sorted(best.values()), num_ops])


def _sums(size: np.ndarray, rows: np.ndarray, columns: np.ndarray, num: int) -> np.ndarray:
    """At [i, j], the sizes of the values whose row is before i and whose column is before j."""
    table = np.zeros((num + 1, num + 1))
    np.add.at(table, (np.clip(rows, 0, num - 1) + 1, np.clip(columns, 0, num - 1) + 1), size)
    return table.cumsum(0).cumsum(1)


def _produced_and_used(table: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """From the sums by producer and last user: what is produced from place i to place j, and used from j on."""
    return (table[j, -1] - table[i, -1]) - (table[j, j] - table[i, j])


def _cost_not_needed(costs: GraphCosts, place: int) -> float:
    """The cost of ops just before a cut whose results no gradient before the cut reads."""
    needed: set[int] = set()
    cost = 0.0
    for number in range(place - 1, max(place - _WINDOW, 0) - 1, -1):
        op = costs.operations[number]
        values = [costs.value_of(output) for output in op.outputs]
        is_read = any(v.first_saver is not None and v.first_saver < place for v in values)
        if is_read or id(op) in needed:
            needed.update(id(tensor.op) for tensor in op.inputs)
        else:
            cost += costs.cost[number]
    return cost
