"""Runs hypothesis over a subject: its cases are drawn here, and checked in a child process."""

import collections
import functools
import importlib
import pathlib
import tempfile

import hypothesis

from .processes import DiedError, FailedError, Worker

SUBJECTS = ("raw", "differential", "saved_models")

SETTINGS = {
    "deadline": None,  # Traces take as long as they take.
    "database": None,
    "suppress_health_check": list(hypothesis.HealthCheck),
    "print_blob": False,
}


def hunt(subject, examples, seed=0, check=None, **limits):
    """How many cases there were of each kind; and the smallest case that fails, with what is wrong, or None.

    A subject is a module of this folder with the strategy `cases()` and the function `check(case, folder)`, which
    returns the kinds of the case; with `control(case, folder)`, a process that dies there too is TensorFlow's fault. The
    graph passes are off for odd seeds, since a process reads once whether they are.
    """
    module = importlib.import_module(f"{__package__}.{subject}")
    counts, failure = collections.Counter(), {}
    control = getattr(module, "control", None)
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker({"TF_CG_OPS_DISABLE_PASSES": str(seed % 2)}, **limits) as worker,
    ):
        run = functools.partial(_run, worker, check or module.check, control, pathlib.Path(folder))

        @hypothesis.seed(seed)
        @hypothesis.settings(max_examples=examples, **SETTINGS)
        @hypothesis.given(module.cases())
        def checked(case):
            failure.clear()
            counts["cases"] += 1
            try:
                counts.update(run(case))
            except AssertionError as error:
                failure.update(subject=subject, seed=seed, case=repr(case), error=str(error)[:2000])
                raise

        try:
            checked()
        except (AssertionError, hypothesis.errors.Flaky) as error:
            failure.setdefault("error", repr(error))
    return counts, failure or None


def _run(worker, check, control, folder, case):
    """The kinds of the case."""
    try:
        return worker.run(check, case, folder)
    except DiedError:
        if control is None:
            raise
        try:
            worker.run(control, case, folder)
        except FailedError:
            pass
        except DiedError as theirs:
            return [f"TensorFlow's own: {str(theirs).splitlines()[0]}"]
        raise
