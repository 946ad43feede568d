"""Every case of cases.py in every mode: its value and its gradients."""

import pytest
import tensorflow as tf

from ..support.modes import CASE_MODES, made, run_in_a_fresh_process, source_of, tensors_of
from .cases import CASES

SAVED = {name: case for name, case in CASES.items() if isinstance(case.otherwise.get("reloaded", []), list)}


def names_and_modes():
    """All pairs. The core tests are eager mode, and one of the other modes in turn."""
    for number, name in enumerate(CASES):
        for mode in CASE_MODES:
            is_core = mode in ("eager", list(CASE_MODES)[number % len(CASE_MODES)])
            yield pytest.param(name, mode, marks=[pytest.mark.core] * is_core)


@pytest.mark.parametrize(("name", "mode"), list(names_and_modes()))
def test_values_and_gradients(name, mode):
    CASES[name].check(mode, CASE_MODES[mode])


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """The values and gradients of all cases, from one model in one fresh process."""
    model, tasks = tf.Module(), {}

    def add(name, case):
        args, with_tensors = made(case.args)
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors_of(args)]
        function = tf.function(lambda *tensors: case.function(*with_tensors(tensors)), specs, autograph=False)
        setattr(model, name, function)
        for i, arg in enumerate(args):
            if not isinstance(arg, tf.Tensor):
                setattr(model, f"{name}_{i}", source_of(arg))
        tasks[name] = [f"{name}_{i}" if callable(arg) else arg for i, arg in enumerate(case.args)], case.dy

    for number, case in enumerate(SAVED.values()):
        add(f"f{number}", case)
    found = run_in_a_fresh_process(model, tasks, tmp_path_factory.mktemp("reloaded"))
    return {name: found[f"f{number}"] for number, name in enumerate(SAVED)}


@pytest.mark.parametrize("name", SAVED)
def test_values_and_gradients_after_a_reload(name, reloaded):
    CASES[name].check("reloaded", lambda case: reloaded[name][:2])
