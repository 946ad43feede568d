"""All benchmarks, one after the other: `make bench`."""

from . import program
from .subjects import (
    blocks,
    broadcast,
    build_time,
    compiled,
    dispatch,
    dtypes,
    elementwise,
    growth,
    import_cost,
    import_time,
    inference,
    library_size,
    linear_solvers,
    live_rules,
    loops,
    models,
    numpy_calls,
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
    numpy_calls,
    linear_solvers,
    peak_memory,
    recompute_grad,
    blocks,
    loops,
    models,
    tracing,
    growth,
    threads,
    import_cost,
    import_time,
    library_size,
    build_time,
)

if __name__ == "__main__":
    program.run(*[subject.cases for subject in SUBJECTS])
