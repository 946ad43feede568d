"""Gradients in a process that has only loaded the op library, without the Python package and its gradients.

The functions of tests/support/without_python.py are saved, loaded by the loader of TensorFlow 1, and differentiated by
tf.gradients, which uses TensorFlow's C++ code for functions.
"""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.mode_table import fills
from ..support.modes import assert_all_close
from ..support.processes import run_python
from ..support.without_python import BUILT_IN_FAILURES, CASES, DY, DY2, FAILURES, LIMITS, MODULE, RANDOM, X

PROGRAM = pathlib.Path(__file__).with_name("gradients_of_a_model.py").read_text()
ALL = CASES | {name: case for name, (case, _) in (FAILURES | LIMITS).items()} | BUILT_IN_FAILURES | {"random": RANDOM}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The outputs and gradients of each case, or the text of its error, all from one process."""
    folder = tmp_path_factory.mktemp("without_python")
    for name, case in ALL.items():  # Each in a model of its own: sessions take long for many functions.
        MODULE.saved = case.save()
        tf.saved_model.save(MODULE, folder / name, signatures=MODULE.saved)
    tasks = {name: [[x.tolist() for x in case.inputs()], [DY.tolist(), DY2.tolist()]] for name, case in ALL.items()}
    library = cg.sysconfig.get_library()
    result = run_python(PROGRAM, folder, library, json.dumps(tasks), cwd=folder)
    return json.loads(result.stdout.splitlines()[-1])


@fills(
    "v1_loader", "embed_gradient", "custom_gradient", "custom_vjp", "custom_jvp", "recompute_grad", "grad_pass_through"
)
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_custom_one(answers, name):
    assert not isinstance(answers[name], str), answers[name]
    assert_all_close(answers[name], CASES[name].by_hand(), rtol=1e-12, atol=1e-12)


def test_unsupported_gradients_are_errors_and_those_of_tensorflow_stay(answers):
    for name, (_, message) in FAILURES.items():
        assert message in str(answers[name])
    for name in BUILT_IN_FAILURES:
        assert "tf_cg_ops" not in str(answers[name])


@pytest.mark.parametrize("name", LIMITS)
def test_a_known_limitation_is_as_the_documentation_has_it(answers, name):
    """If this fails, TensorFlow has improved: update docs/ship.md."""
    found, expected = answers[name], LIMITS[name][1]
    if isinstance(expected, str):
        assert isinstance(found, str), f"numbers instead of an error: {found}"
        assert re.search(expected, found)
    else:
        np.testing.assert_allclose(found[-1], expected, rtol=1e-12)


def test_a_function_with_random_numbers_is_differentiated_with_others(answers):
    value, gradient = map(np.array, answers["random"])
    first, second = value / np.sign(X), gradient / (4 * DY)
    assert ((first > 0) & (first < 1) & (second > 0) & (second < 1)).all()
    assert (first != second).all()
