"""Runs hypothesis on a subject: draws cases here and checks them in a child process."""

import collections
import importlib
import pathlib
import tempfile

import hypothesis

from .processes import DiedError, FailedError, Worker

SUBJECTS = ("raw", "differential", "saved_models", "plans", "same")

SETTINGS = {
    "deadline": None,  # Traces may take long.
    "database": None,
    "suppress_health_check": list(hypothesis.HealthCheck),
    "print_blob": False,
}


def hunt(subject, examples, seed=0, check=None, **limits):
    """How many cases of each kind there were, and the smallest case that fails with the reason, or None.

    A subject is a module of this folder with the strategy `cases()` and the function `check(case, folder)`, which
    returns the kind of the case, as "row: column" of a table. If it also has `control(case, folder)` and the process dies
    there, too, the fault is TensorFlow's. Odd seeds run without the graph passes; a process decides that only once.
    """
    module = importlib.import_module(f"{__package__}.{subject}")
    counts, failure = collections.Counter(), {}
    check, control = check or module.check, getattr(module, "control", None)
    worker = Worker({"TF_CG_OPS_DISABLE_PASSES": str(seed % 2)}, **limits)

    def kind_of(case, folder):
        try:
            return worker.run(check, case, folder)
        except DiedError:
            if control and _dies(worker, control, case, folder):
                return f"{case.action}: TensorFlow's own failure"
            raise

    with tempfile.TemporaryDirectory() as folder, worker:

        @hypothesis.seed(seed)
        @hypothesis.settings(max_examples=examples, **SETTINGS)
        @hypothesis.given(module.cases())
        def checked(case):
            failure.clear()
            try:
                counts[kind_of(case, pathlib.Path(folder))] += 1
            except AssertionError as error:
                failure.update(subject=subject, seed=seed, case=repr(case), error=str(error)[:2000])
                raise

        try:
            checked()
        except (AssertionError, hypothesis.errors.Flaky) as error:
            failure.setdefault("error", repr(error))
    return counts, failure or None


def _dies(worker, *call):
    try:
        worker.run(*call)
    except DiedError:
        return True
    except FailedError:
        pass
    return False
