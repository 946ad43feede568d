"""All benchmarks, one after the other: `make bench`."""

from . import program
from .subjects import (
    blocks,
    broadcast,
    compiled,
    dispatch,
    dtypes,
    elementwise,
    import_cost,
    import_time,
    inference,
    live_rules,
    loops,
    peak_memory,
    recompute_grad,
    reductions,
    threads,
    tracing,
)

SUBJECTS = (
    dispatch,
    elementwise,
    reductions,
    broadcast,
    dtypes,
    compiled,
    inference,
    live_rules,
    peak_memory,
    recompute_grad,
    blocks,
    loops,
    tracing,
    threads,
    import_cost,
    import_time,
)

if __name__ == "__main__":
    program.run(*[subject.cases for subject in SUBJECTS])
