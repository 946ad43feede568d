"""A model that jax2tf converted has the gradients of JAX after loading, without JAX, and in each copy of it.

`jax_scan/make.py` made the model and JAX's numbers. The gradient differs from the derivative on purpose.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.saved_models import in_a_loop, ops_of
from ..support.sources import ROOT

MODEL = ROOT / "tests" / "saved_model" / "jax_scan" / "model"
with np.load(MODEL.with_name("expected.npz")) as arrays:
    JAX = dict(arrays)
X, DY = (tf.constant(JAX[name]) for name in ("x", "dy"))


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adopted")
    report = cg.saved_model.adopt(MODEL, folder / "adopted")
    assert {(c.what, c.verdict) for c in report.comparisons} == {
        ("values", "equal, bit for bit"),
        ("gradients", "equal, bit for bit"),
    }
    return folder / "adopted"


def differentiated(folder):
    cg.saved_model.adopt(MODEL, folder / "autodiff", "autodiff")
    return folder / "autodiff"


def stripped(folder, source=MODEL):
    cg.saved_model.strip(source, folder / "stripped")
    assert not [op for op in ops_of(folder / "stripped") if op.startswith("CustomGradient")]
    return folder / "stripped"


def with_gradients(folder, source=MODEL):
    report = cg.saved_model.add_gradients(source, folder / "added", of="y", wrt=["x", "variables"])
    assert {c.verdict for c in report.comparisons} == {"equal, bit for bit"}
    return folder / "added"


def saved_again(folder, source):
    model = tf.saved_model.load(source)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(model, folder / "again", signatures=model.f, options=options)
    return folder / "again"


def by_tape(path, wrap=lambda f: f):
    """The value of a model's function, and the gradients that a tape finds."""
    model = tf.saved_model.load(path)
    function = wrap(lambda x: model.f(x)["y"])
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = function(X)
    return y, *tape.gradient(y, [X, model.w], output_gradients=DY)


def by_signature(path):
    """What the signature that add_gradients made returns."""
    outputs = tf.saved_model.load(path).signatures["gradients"](x=X, d_y=DY)
    return outputs["y"], outputs["d_x"], outputs["d_w"]


def looped(path):
    """In a loop of one step."""
    return by_tape(path, lambda f: in_a_loop(f, times=1))


def compiled(path):
    return tf.function(lambda: by_tape(path), jit_compile=True)()


def by_tape_of_a_signature(path):
    model = tf.saved_model.load(path)
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = model.signatures["serving_default"](x=X)["y"]
    return y, *tape.gradient(y, [X, model.w], output_gradients=DY)


# How a copy of the model or of the adopted one is made, and how its gradients are computed.
FORMS = {
    "loaded": lambda folder, adopted: by_tape(MODEL),
    "loaded_signature": lambda folder, adopted: by_tape_of_a_signature(MODEL),
    "loaded_in_a_function": lambda folder, adopted: by_tape(MODEL, tf.function),
    "loaded_in_a_loop": lambda folder, adopted: looped(MODEL),
    "loaded_under_xla": lambda folder, adopted: compiled(MODEL),
    "recomputed": lambda folder, adopted: by_tape(MODEL, cg.recompute_grad),
    "adopted": lambda folder, adopted: by_tape(adopted),
    "adopted_signature": lambda folder, adopted: by_tape_of_a_signature(adopted),
    "adopted_in_a_loop": lambda folder, adopted: looped(adopted),
    "adopted_under_xla": lambda folder, adopted: compiled(adopted),
    "adopted_and_saved_again": lambda folder, adopted: by_tape(saved_again(folder, adopted)),
    "added": lambda folder, adopted: by_signature(with_gradients(folder)),
    "added_tape": lambda folder, adopted: by_tape(with_gradients(folder)),
    "added_to_adopted": lambda folder, adopted: by_signature(with_gradients(folder, adopted)),
    "added_and_stripped": lambda folder, adopted: by_signature(stripped(folder, with_gradients(folder))),
    "stripped": lambda folder, adopted: by_tape(stripped(folder)),
}
# These forget custom gradients on purpose, and have the derivative.
WITH_THE_DERIVATIVE = {
    "autodiff": lambda folder, adopted: by_tape(differentiated(folder)),
    "adopted_and_stripped": lambda folder, adopted: by_tape(stripped(folder, adopted)),
}


@pytest.mark.parametrize("form", FORMS | WITH_THE_DERIVATIVE)
def test_value_and_gradients_are_those_of_jax(form, tmp_path, adopted):
    found = (FORMS | WITH_THE_DERIVATIVE)[form](tmp_path, adopted)
    names = ("y", "true_dx", "true_dw") if form in WITH_THE_DERIVATIVE else ("y", "dx", "dw")
    for name, array in zip(names, found, strict=True):
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


@pytest.mark.parametrize("is_adopted", [False, True])
def test_an_audit_says_that_the_gradient_is_not_the_derivative_and_accepts_a_declaration(is_adopted, adopted):
    model = tf.saved_model.load(adopted if is_adopted else MODEL)
    (row,) = cg.testing.audit(model.f, [X], upstream={"y": DY}).rows
    assert row.verdict == "differs", row.detail
    norm = np.linalg.norm(np.concatenate([JAX["dx"], JAX["dw"]]))
    np.testing.assert_allclose(row.gradient_norm, norm, rtol=1e-12)
    (row,) = cg.testing.audit(model.f, [X], upstream={"y": DY}, like={row.function: scanned}).rows
    assert row.verdict == "right", row.detail
