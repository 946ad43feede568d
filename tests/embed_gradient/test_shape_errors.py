"""At run time the op, which a graph without a gradient loses to a pass, finds the misfits that eager mode finds."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..messages.calls_of_functions import MISFITS
from ..support.processes import run_python
from ..support.sources import ROOT

pytestmark = pytest.mark.core

WITHOUT_PASSES = """
from tests.messages import calls_of_functions, table
rows = {name: table.Row(calls_of_functions.shapes(*m).call, "eager", "unknown") for name, m in calls_of_functions.MISFITS.items()}
print(*table.lines_of(rows)[0], sep="\\n")
"""


def test_shapes_that_do_not_fit_at_run_time(tmp_path):
    """Both modes have the same message, so that each row has one line."""
    environment = {"PYTHONPATH": str(ROOT), "TF_CG_OPS_DISABLE_PASSES": "1"}
    lines = run_python(WITHOUT_PASSES, cwd=tmp_path, environment=environment).stdout.splitlines()
    assert [line.partition(" -> ")[0] for line in lines] == list(MISFITS)
    assert all("-> InvalidArgumentError: embed_gradient: " in line for line in lines)


@pytest.mark.parametrize("name", MISFITS)
def test_without_a_gradient_the_op_is_gone(name):
    fx, gx, x, axis = (*MISFITS[name], ())[:4]
    specs = [tf.TensorSpec(None)] * 3
    embed = tf.function(lambda fx, gx, x: cg.embed_gradient(fx, gx, x, axis), specs, autograph=False)
    np.testing.assert_array_equal(embed(tf.ones(fx), tf.ones(gx), tf.ones(x)), np.ones(fx))
