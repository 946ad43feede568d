"""Measures cases, prints them as a table or writes them to a file: `make bench` runs all.

The file has one line for each case, in the order of the program. `python -m benchmarks.report.publish`
puts it into the documentation.
"""

import argparse
import dataclasses
import logging
import pathlib
import sys
from typing import Any

from .harness import measurement, record
from .report import table
from .subjects import (
    audit,
    calls,
    compiled,
    graphs,
    kernels,
    library,
    memory,
    models,
    plans,
    special_functions,
    traces,
    zoo,
)

SUBJECTS = (calls, compiled, kernels, memory, plans, models, graphs, traces, special_functions, audit, library)
# These take hours, so only `--only` chooses them.
ON_REQUEST = (zoo,)


def main() -> None:
    """Runs the cases that the arguments choose."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few samples: says nothing about speed")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="write the results to FILE, as JSON")
    parser.add_argument("--seconds", type=float, help="the time for the samples of one case")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="measure only cases with TEXT in 'subject: case', and leave others in FILE as they are; can be repeated",
    )
    arguments = parser.parse_args()
    # Some benchmarks trace the same function again, and TensorFlow would warn.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    settings = measurement.QUICK if arguments.quick else measurement.Settings()
    if arguments.seconds is not None:
        settings = dataclasses.replace(settings, seconds=arguments.seconds)
    cases = chosen_cases(arguments.only, settings)
    origin = {**record.origin(), "quick": settings.quick}
    earlier = record.earlier(arguments.output, origin) if arguments.only else None
    found: list[dict[str, Any]] = []
    for case in measurement.measure_all(cases, settings):
        found.append(case)
        if arguments.output is not None:  # After each case, so that one that fails loses no other.
            record.write(record.merged(earlier, {**origin, "cases": found}), arguments.output)
    if arguments.output is None:
        print(table.document({**origin, "cases": found}))


def chosen_cases(texts: list[str], settings: measurement.Settings) -> list[measurement.Case]:
    """The cases with one of the texts in their names; without texts, all cases."""
    cases = [case for subject in (*SUBJECTS, *(ON_REQUEST if texts else ())) for case in subject.cases(settings)]
    names = [f"{case.subject}: {case.name}" for case in cases]
    chosen = [case for case, name in zip(cases, names, strict=True) if not texts or any(text in name for text in texts)]
    if not chosen:
        sys.exit(f"--only: no case has {texts} in its name; the cases are {', '.join(names)}")
    return chosen


if __name__ == "__main__":
    main()
