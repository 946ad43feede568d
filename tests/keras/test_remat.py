"""enable_remat: RematScope and keras.remat of Keras 3 recompute through this library."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow import core  # Only a test may look inside.

import tf_cg_ops as cg
from tf_cg_ops._src.memory import recompute_grad

from ..support.keras_models import TARGET, UNITS, assert_equal, fitted, policy, value_and_gradients

THEIRS = core.remat


def test_eager_fit_builds_each_layer_once(remat, builds):
    with policy(keras, "mixed_bfloat16"):
        with keras.RematScope("full"):
            layers = [keras.layers.Dense(3, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        fitted(keras.Sequential(layers), UNITS, TARGET, "eager", epochs=3)
        assert len(builds) == 3


@pytest.mark.filterwarnings("ignore:(?s).* recomputation saves less than a tenth")
def test_layers_inside_of_a_recomputed_layer_are_recomputed_with_it(remat, traces):
    with keras.RematScope("full"):
        block = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(3)])
    block(UNITS)
    value_and_gradients(block, UNITS)
    assert len(traces) == 1


def test_a_whole_model_is_planned(remat, monkeypatch):
    plans = []
    planned = recompute_grad.make_plan

    def noted(*args):
        plans.append(planned(*args)[0])
        return planned(*args)

    monkeypatch.setattr(recompute_grad, "make_plan", noted)
    results = []
    for scope in (contextlib.nullcontext(), keras.RematScope("full")):
        keras.utils.set_random_seed(1)
        with scope:
            model = keras.Sequential([keras.Input([3]), *(keras.layers.Dense(3, activation="tanh") for _ in range(8))])
        model.compile("sgd", "mse")
        results.append(model.fit(UNITS, UNITS, epochs=3, verbose=0).history["loss"])
    assert results[0] == pytest.approx(results[1], rel=1e-6)
    assert plans
    assert all(plan.peak_bytes < plan.plain_bytes for plan in plans)
    assert any(segment.is_recomputed for segment in plans[0].segments)


def test_functions_and_layers_that_keras_remat_decorates(remat):
    doubled = keras.remat(lambda x, scale=1.0: tf.sin(x) * scale)
    dense = keras.layers.Dense(2, activity_regularizer="l2")
    recomputed = keras.remat(dense)
    x = tf.constant(UNITS)
    assert_equal(value_and_gradients(lambda x: doubled(x, scale=2.0), x, dy=x)[1:], [2 * UNITS * np.cos(UNITS)])

    def loss(x, call):
        return tf.reduce_sum(call(x) ** 3) + sum(dense.losses)

    expected = value_and_gradients(loss, x, dense)
    for _ in range(3):
        assert_equal(value_and_gradients(loss, x, recomputed), expected)
        assert len(dense.losses) == 1


def test_a_with_statement_restores_what_was_there_before():
    enable, disable, states = cg.layers.enable_remat, cg.layers.disable_remat, []

    def note():
        states.append(core.remat is not THEIRS)

    with enable():
        note()
        with pytest.raises(KeyError), enable():
            raise KeyError
        note()  # The outer one still holds.
    note()
    for switch in (enable, enable, disable, disable):
        switch()
        note()
    enable()
    with enable():
        disable()
        note()
    note()
    disable()
    again = enable()
    for _ in range(2):
        with again:
            note()
        note()
    assert states == [True, True, False, True, True, False, False, False, True, True, False, True, False]


def test_a_replacement_by_other_code_is_not_dropped(monkeypatch):
    cg.layers.enable_remat()
    with monkeypatch.context() as patch:
        patch.setattr(core, "remat", lambda f: f)
        with pytest.raises(RuntimeError) as error:
            cg.layers.disable_remat()
    assert str(error.value).startswith(
        "layers.disable_remat: the recomputation of Keras must be the one that enable_remat set, got "
        f"'{__name__}.test_a_replacement_by_other_code_is_not_dropped.<locals>.<lambda>'"
    )
    cg.layers.disable_remat()
    assert core.remat is THEIRS


def test_a_keras_without_remat(monkeypatch):
    monkeypatch.delattr(core, "remat")
    with pytest.raises(
        RuntimeError, match=r"^layers.enable_remat: Keras must be 3.9 or later, got .* Use layers.Recomp"
    ):
        cg.layers.enable_remat()


def test_keras_alone_fails(monkeypatch):
    """If this fails, enable_remat is no longer needed."""
    # A tf.scan that fails, in any test of this process, leaves its device in TensorFlow's outermost scope of variables,
    # which tf.recompute_grad enters.
    monkeypatch.setattr(tf.compat.v1.get_variable_scope(), "_caching_device", None)
    with keras.RematScope("full"):
        model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="supports keywords arguments only when eager"):
        fitted(model, UNITS, TARGET, "graph")
