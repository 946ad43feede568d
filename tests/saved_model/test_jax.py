"""A model that jax2tf converted has the gradients of JAX after loading, without JAX, and in each copy of it.

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


def adopted(folder):
    assert {each.verdict for each in cg.saved_model.adopt(MODEL, folder / "adopted").comparisons} == EQUAL
    return folder / "adopted"


def stripped(folder):
    cg.saved_model.strip(adopted(folder), folder / "stripped")
    return folder / "stripped"


def by_tape(path, wrap=lambda f: f):
    """The value of a model's function, and the gradients that a tape finds."""
    model = tf.saved_model.load(path)
    function = wrap(lambda x: model.f(x)["y"])
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = function(X)
    return y, *tape.gradient(y, [X, model.w], output_gradients=DY)


def looped(path):
    """In a loop of one step."""
    return by_tape(path, lambda f: in_a_loop(f, times=1))


def added_and_stripped(folder):
    """What the signature that add_gradients made returns without the library."""
    report = cg.saved_model.add_gradients(MODEL, folder / "added", of="y", wrt=["x", "variables"])
    assert {each.verdict for each in report.comparisons} == EQUAL
    cg.saved_model.strip(folder / "added", folder / "stripped")
    outputs = tf.saved_model.load(folder / "stripped").signatures["gradients"](x=X, d_y=DY)
    return outputs["y"], outputs["d_x"], outputs["d_w"]


FORMS = {
    "loaded_in_a_loop": lambda folder: looped(MODEL),
    "loaded_under_xla": lambda folder: tf.function(lambda: by_tape(MODEL), jit_compile=True)(),
    "recomputed": lambda folder: by_tape(MODEL, cg.recompute_grad),
    "adopted_in_a_loop": lambda folder: looped(adopted(folder)),
    "added_and_stripped": added_and_stripped,
    # This forgets custom gradients on purpose, and has the derivative.
    "adopted_and_stripped": lambda folder: by_tape(stripped(folder)),
}


@pytest.mark.parametrize("form", FORMS)
def test_value_and_gradients_are_those_of_jax(form, tmp_path):
    names = ("y", "true_dx", "true_dw") if form == "adopted_and_stripped" else ("y", "dx", "dw")
    for name, array in zip(names, FORMS[form](tmp_path), strict=True):
        np.testing.assert_allclose(array, JAX[name], rtol=1e-12, err_msg=name)


@cg.custom_gradient
def steep(x):
    return tf.sin(x), lambda dy: 7.0 * dy


def scanned(x, w):
    """The function of the model, written anew."""
    carry = w
    for _ in range(4):
        carry = steep(carry * w) + x
    return carry


def test_an_audit_says_that_the_gradient_is_not_the_derivative_and_accepts_a_declaration():
    model = tf.saved_model.load(MODEL)
    (row,) = cg.testing.audit(model.f, [X], upstream={"y": DY}).rows
    assert row.verdict == "differs", row.detail
    norm = np.linalg.norm(np.concatenate([JAX["dx"], JAX["dw"]]))
    np.testing.assert_allclose(row.gradient_norm, norm, rtol=1e-12)
    (row,) = cg.testing.audit(model.f, [X], upstream={"y": DY}, like={row.function: scanned}).rows
    assert row.verdict == "right", row.detail
