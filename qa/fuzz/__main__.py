"""Fuzzing on demand: `python -m qa.fuzz raw_ops --seed 7 --calls 1` makes one call, the seventh, once more."""

import argparse
import json
import os
import pathlib
import sys
import time

from . import raw_ops
from .injected import fault_of


def _raw_ops(arguments):
    began = time.monotonic()
    said = began

    def progress(summary, now=False):
        nonlocal said
        if now or time.monotonic() > said + 5:
            said = time.monotonic()
            print(
                f"{said - began:6.0f} s: {summary.calls:,} calls, {summary.accepted:,} accepted, {summary.refused:,} "
                f"refused, {len(summary.failures)} failures",
                file=sys.stderr,
                flush=True,
            )

    summary = raw_ops.run(
        arguments.seed,
        arguments.calls,
        arguments.processes,
        arguments.inject,
        progress=progress,
        seconds=arguments.seconds,
    )
    progress(summary, now=True)
    return summary.failures, vars(summary) | {"first_seed": arguments.seed}


def _differential(arguments):
    from . import differential

    return differential.run(arguments.examples, arguments.seed, arguments.processes)


SUBJECTS = {"raw_ops": _raw_ops, "differential": _differential}


def main():
    parser = argparse.ArgumentParser(prog="python -m qa.fuzz", description=__doc__)
    parser.add_argument("subject", nargs="?", choices=SUBJECTS, help="by default both, one after the other")
    parser.add_argument("--seed", type=int, default=0, help="that of the first call, or of all examples")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, help="an end for the calls, however many were made")
    parser.add_argument("--examples", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--inject", type=fault_of(*raw_ops.INJECTABLE), action="append", default=[], help="wrong@7: to test the fuzzer"
    )
    parser.add_argument(
        "--json", type=pathlib.Path, help="the folder that NAME.json goes to, or with a subject the file"
    )
    arguments = parser.parse_args()
    failed = False
    for name in [arguments.subject] if arguments.subject else SUBJECTS:
        began = time.monotonic()
        failures, summary = SUBJECTS[name](arguments)
        failed |= bool(failures)
        summary["seconds"] = round(time.monotonic() - began, 1)
        text = json.dumps(summary, indent=1, sort_keys=True)
        print(text)
        if arguments.json:
            path = arguments.json if arguments.subject else arguments.json / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
