"""Fuzzing on demand: `python -m qa.fuzz raw --examples 1000`. The same seeds and examples give the same cases."""

import argparse
import collections
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import sys

from .hunt import SUBJECTS, hunt

# A hunt ends after this many examples, because TensorFlow keeps much of each trace, and hypothesis much of each case.
EXAMPLES_OF_A_HUNT = 2_500


def fuzz(subject, examples, seed, processes):
    """Hunts in several processes; prints failures, and returns the counts and the number of failures."""
    starts = range(0, examples, EXAMPLES_OF_A_HUNT)
    counts, failures = collections.Counter(), 0
    with concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("forkserver")) as pool:
        sizes = [min(EXAMPLES_OF_A_HUNT, examples - start) for start in starts]
        for found, failure in pool.map(hunt, [subject] * len(starts), sizes, range(seed, seed + len(starts))):
            counts.update(found)
            if failure:
                failures += 1
                print("\n".join(f"{key}: {value}" for key, value in failure.items()), flush=True)
            print(f"{subject}: {counts.total():,} cases, {failures} failures", file=sys.stderr, flush=True)
    return counts, failures


def table(subject, counts):
    """The counts as rows, with sums."""
    columns = sorted({kind.partition(": ")[2] for kind in counts})
    rows = {kind.partition(": ")[0]: {} for kind in sorted(counts)}
    rows = {row: {column: counts[f"{row}: {column}"] for column in columns} for row in rows}
    rows["all"] = {column: sum(row[column] for row in rows.values()) for column in columns}
    name = "action" if subject == "saved_models" else "mode"
    return [{name: row, **cells} for row, cells in rows.items()]


def main():
    parser = argparse.ArgumentParser(prog="python -m qa.fuzz", description=__doc__)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--examples", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first hunt, which has up to 2,500 examples")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=pathlib.Path, help="a file for the counts")
    options = parser.parse_args()
    counts, failures = fuzz(options.subject, options.examples, options.seed, options.processes)
    text = "[\n" + ",\n".join(map(json.dumps, table(options.subject, counts))) + "\n]\n"
    print(text)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
