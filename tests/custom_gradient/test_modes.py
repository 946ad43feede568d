"""Every case of cases.py: its value and its gradients in eager mode, in two other modes in turn, and after a reload."""

import numpy as np
import pytest
import tensorflow as tf

from ..support.modes import ALL_MODES, run_in_a_fresh_process, source_of
from .cases import CASES

MODES = ("traced", "jit", "around_traced", "forward_mode_eager", "unknown_shape", "tf1")
SAVED = {name: case for name, case in CASES.items() if isinstance(case.otherwise.get("reloaded", []), list)}


def pairs():
    for i, (name, case) in enumerate(CASES.items()):
        yield pytest.param(name, "eager", marks=pytest.mark.core)
        # The modes with an outcome of their own, and others in turn.
        for mode in dict.fromkeys([MODES[i % 6], MODES[(i + 3) % 6], *case.otherwise]):
            if mode not in ("eager", "reloaded"):
                yield name, mode


@pytest.mark.parametrize(("name", "mode"), list(pairs()))
def test_values_and_gradients(name, mode):
    CASES[name].check(mode, ALL_MODES[mode].vjp)


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """The values and gradients of all cases, from one model in one fresh process."""
    model, tasks = tf.Module(), {}

    def add(name, case):
        variables = {i: arg() for i, arg in enumerate(case.args) if callable(arg)}
        specs = [tf.TensorSpec(np.shape(arg), np.asarray(arg).dtype) for arg in case.args if not callable(arg)]

        def function(*tensors):
            tensors = iter(tensors)
            return case.function(*[variables[i] if i in variables else next(tensors) for i in range(len(case.args))])

        setattr(model, name, tf.function(function, specs, autograph=False))
        for i, variable in variables.items():
            setattr(model, f"{name}_{i}", source_of(variable))
        tasks[name] = [f"{name}_{i}" if i in variables else arg for i, arg in enumerate(case.args)], case.dy

    for number, case in enumerate(SAVED.values()):
        add(f"f{number}", case)
    found = run_in_a_fresh_process(model, tasks, tmp_path_factory.mktemp("reloaded"))
    return {name: found[f"f{number}"] for number, name in enumerate(SAVED)}


@pytest.mark.parametrize("name", SAVED)
def test_values_and_gradients_after_a_reload(name, reloaded):
    CASES[name].check("reloaded", lambda *_: reloaded[name][:2])
