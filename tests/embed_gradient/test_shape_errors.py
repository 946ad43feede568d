"""At run time the op, which a graph without a gradient loses to a pass, finds the misfits that eager mode finds."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..messages import table
from ..support.processes import run_python
from ..support.sources import ROOT

pytestmark = pytest.mark.core

# The calls of messages.txt with three shapes that do not fit.
MISFITS = re.findall(r"^(embed_gradient\((?:ones\([\d, ]*\)[, ]*){3}.*?\)) ->", table.FILE.read_text(), re.M)
assert len(MISFITS) == 11


def unknown_ones(*shape):
    """Ones whose shape is not known while tracing."""
    return tf.raw_ops.PlaceholderWithDefault(input=tf.ones(shape), shape=None)


WITHOUT_PASSES = """
from tests.embed_gradient.test_shape_errors import MISFITS, unknown_ones
from tests.messages import table, test_messages
print(*table.lines_of(MISFITS, None, test_messages.NAMES | {"ones": unknown_ones})[0], sep="\\n")
"""


def test_shapes_that_do_not_fit_at_run_time(tmp_path):
    """Eager mode and a graph have the same message, so that each call has one line."""
    environment = {"PYTHONPATH": str(ROOT), "TF_CG_OPS_DISABLE_PASSES": "1"}
    lines = run_python(WITHOUT_PASSES, cwd=tmp_path, environment=environment).stdout.splitlines()
    assert [line.partition(" -> ")[0] for line in lines] == MISFITS
    assert all("-> InvalidArgumentError: embed_gradient: " in line for line in lines)


@pytest.mark.parametrize("call", MISFITS)
def test_without_a_gradient_the_op_is_gone(call):
    names = {"embed_gradient": cg.embed_gradient, "ones": unknown_ones}
    fx = eval(call, {"embed_gradient": lambda fx, *_: fx, "ones": lambda *shape: np.ones(shape)})
    np.testing.assert_array_equal(tf.function(lambda: eval(call, names), autograph=False)(), fx)
