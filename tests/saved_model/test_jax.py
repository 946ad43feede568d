"""A model that jax2tf converted has the gradients of JAX in each copy of it, without JAX.

`jax_scan/make.py` made the model and JAX's numbers. The gradient differs from the derivative on purpose.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.saved_models import in_a_loop
from ..support.sources import ROOT

MODEL = ROOT / "tests" / "saved_model" / "jax_scan" / "model"
with np.load(MODEL.with_name("expected.npz")) as arrays:
    JAX = dict(arrays)
X, DY = (tf.constant(JAX[name]) for name in ("x", "dy"))
EQUAL = {"equal, bit for bit"}


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jax") / "adopted"
    assert {each.verdict for each in cg.saved_model.adopt(MODEL, folder).comparisons} == EQUAL
    return folder


def by_tape(path, wrap=lambda f: f):
    """The value of a model's function, and the gradients that a tape finds."""
    model = tf.saved_model.load(path)
    function = wrap(lambda x: model.f(x)["y"])
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = function(X)
    return y, *tape.gradient(y, [X, model.w], output_gradients=DY)


def assert_right(found, *names):
    for name, array in zip(names, found, strict=True):
        np.testing.assert_allclose(array, JAX[name], rtol=1e-12, err_msg=name)


def test_recomputed_and_adopted_in_a_loop(adopted):
    assert_right(by_tape(MODEL, cg.recompute_grad), "y", "dx", "dw")
    assert_right(by_tape(adopted, lambda f: in_a_loop(f, times=1)), "y", "dx", "dw")


def test_strip_forgets_the_gradients_on_purpose(adopted, tmp_path):
    cg.saved_model.strip(adopted, tmp_path / "stripped")
    assert_right(by_tape(tmp_path / "stripped"), "y", "true_dx", "true_dw")


def test_an_added_signature_has_them_without_the_library(tmp_path):
    report = cg.saved_model.add_gradients(MODEL, tmp_path / "added", of="y", wrt=["x", "variables"])
    assert {each.verdict for each in report.comparisons} == EQUAL
    cg.saved_model.strip(tmp_path / "added", tmp_path / "stripped")
    outputs = tf.saved_model.load(tmp_path / "stripped").signatures["gradients"](x=X, d_y=DY)
    assert_right([outputs[name] for name in ("y", "d_x", "d_w")], "y", "dx", "dw")
