"""All pairs of two parameters, some of which are left to `make test-slow`."""

import itertools

import pytest


def pairs(rows, columns, quick=1):
    """All pairs of the two lists. Those that are not slow have each row, with so many columns that change in turn."""
    rows, columns = list(rows), list(columns)
    return [
        pytest.param(
            row,
            column,
            id=f"{row}-{getattr(column, 'name', column)}",
            marks=[] if (j - i * quick) % len(columns) < quick else pytest.mark.slow,
        )
        for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns))
    ]
