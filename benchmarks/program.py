"""The command line of every benchmark: its flags, a run, and its output files."""

import dataclasses
import datetime
import json
import logging
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from .harness import measurement, record
from .harness.measurement import Case, Settings
from .report import table, targets

_QUICK = flags.DEFINE_bool(
    "quick", False, "Small sizes and few samples: shows that it works, says nothing about speed."
)
_OUTPUT = flags.DEFINE_string("output", None, "A folder to write results.json, table.md and the charts into.")
_SECONDS = flags.DEFINE_float("seconds", None, "The time for the samples of one case.", lower_bound=0.0)
_ONLY = flags.DEFINE_multi_string("only", [], "Measures only cases with this text in 'subject: case'; may be repeated.")

Subject = Callable[[Settings], list[Case]]


def run(*subjects: Subject) -> None:
    """Measures the cases of some subjects as the flags say; does not return."""
    for flag in flags.FLAGS.get_flags_for_module(__name__):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)  # For --help.
    app.run(lambda _: _main(subjects))


def _main(subjects: Sequence[Subject]) -> None:
    """Prints the table, or writes all results to the folder of --output."""
    # Some benchmarks trace the same function again, of which TensorFlow warns.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    settings = measurement.QUICK if _QUICK.value else Settings()
    if _SECONDS.value is not None:
        settings = dataclasses.replace(settings, seconds=_SECONDS.value)
    cases = [case for subject in subjects for case in subject(settings)]
    if _ONLY.value:
        names = [f"{case.subject}: {case.name}" for case in cases]
        cases = [case for case, name in zip(cases, names, strict=True) if any(text in name for text in _ONLY.value)]
        if not cases:
            raise app.UsageError(f"--only: no case has {_ONLY.value} in its name; the cases are {', '.join(names)}")
    results = _run(cases, settings)
    if _OUTPUT.value is None:
        print(table.document(results))
    else:
        write(results, pathlib.Path(_OUTPUT.value))


def _run(cases: Sequence[Case], settings: Settings) -> dict[str, Any]:
    origin = {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "quick": settings.quick,
        "machine": record.machine(),
        "versions": record.versions(),
        "environment": record.environment(),
        "commit": record.commit(),
    }
    results = measurement.measure_all(cases, settings)
    return {**origin, "targets": targets.evaluate(results), "cases": results}


def write(results: dict[str, Any], folder: pathlib.Path) -> None:
    """The results as JSON, as a table, and as charts."""
    from .report import charts  # Only charts need matplotlib.

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    (folder / "table.md").write_text(table.document(results))
    charts.draw(results, folder)
