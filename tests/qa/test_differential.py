"""Some hundred random uses of embed_gradient against NumPy, and proofs that faults are noticed."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from qa.fuzz import derivatives, differential
from qa.fuzz.cases import Case, cases
from tf_cg_ops._src.ops import trilinear_form

from ..support import reference

CASE = Case(
    fx=(2,),
    gx=(2, 3),
    x=(2, 3),
    axis=[-1],
    pairs=1,
    dtype=tf.float64,
    order=3,
    manually_stopped=True,
    axis_is_a_tensor=False,
    mode="function",
    seed=7,
)


@hypothesis.settings(max_examples=400, derandomize=True, **differential.SETTINGS)
@hypothesis.given(cases())
def test_derivatives_are_those_of_numpy(case):
    differential.check(case)


def test_stopped_operands_have_none_as_gradient():
    """Elsewhere here, that is zeros."""
    fx, gx, x, upstream = (tf.constant(a) for a in CASE.arrays()[:4])
    for manually_stopped in (False, True):
        with tf.GradientTape() as tape:
            tape.watch([fx, gx, x])
            h = cg.embed_gradient(fx, gx, x, CASE.axis, fx_gx_manually_stopped=manually_stopped)
        found = tape.gradient(h, [fx, gx, x], output_gradients=upstream)
        assert [g is not None for g in found] == [manually_stopped, manually_stopped, True]


def test_a_reference_that_is_wrong_is_noticed(monkeypatch):
    differential.check(CASE)
    right = reference.vjp
    monkeypatch.setattr(reference, "vjp", lambda *args: right(*args) + 1e-3)
    with pytest.raises(AssertionError, match="gradient 2, eager"):
        differential.check(CASE)


@pytest.mark.parametrize("order", [2, 3])
def test_a_derivative_that_is_missing_is_noticed(order, monkeypatch):
    """As if gx had none where it is not stopped: then mixed derivatives are missing, from the second order on."""
    right = trilinear_form.gradient

    def without_gx(wrt, *args, **kwargs):
        return right(wrt, *args, **kwargs) * (0.0 if wrt == "gx" else 1.0)

    monkeypatch.setattr(trilinear_form, "gradient", without_gx)
    with pytest.raises(AssertionError, match=r"gradient \d, eager"):
        differential.check(Case(**vars(CASE) | {"order": order}))


def test_a_run_on_demand_reports_the_smallest_case(monkeypatch):
    right = derivatives.cg.embed_gradient

    def wrong(fx, gx, x, *args, **kwargs):
        value = right(fx, gx, x, *args, **kwargs)
        return value + tf.ones_like(value) if np.prod(value.shape) > 1 else value

    monkeypatch.setattr(derivatives.cg, "embed_gradient", wrong)
    counts, failed = differential.run_here(50, seed=3)
    assert counts["examples"] > 1
    assert failed["seed"] == 3
    assert failed["failure"].startswith("AssertionError")
    assert "fx=(2,)" in failed["case"]
