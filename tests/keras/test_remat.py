"""enable_remat: RematScope and keras.remat of Keras 3 recompute through this library."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow import core  # Only a test may look inside.

import tf_cg_ops as cg
from tf_cg_ops._src.memory import recompute_grad

from ..support.keras_models import assert_equal, value_and_gradients
from ..support.modes import vjp
from ..support.processes import run_python

X = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)
TARGET = np.random.default_rng(1).normal(size=[8, 1]).astype(np.float32)

THEIRS = core.remat


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_eager_fit_builds_each_layer_once(policy, remat, builds):
    keras.mixed_precision.set_global_policy(policy)
    try:
        with keras.RematScope("full"):
            layers = [keras.layers.Dense(3, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(X, TARGET, batch_size=4, epochs=3, verbose=0)
        assert len(builds) == 3
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_layers_inside_of_a_recomputed_layer_are_recomputed_with_it(remat, traces):
    with keras.RematScope("full"):
        block = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(3)])
    block(X)
    value_and_gradients(block, X)
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
        results.append(model.fit(X, X, epochs=3, verbose=0).history["loss"])
    assert results[0] == results[1]
    assert plans
    assert all(plan.peak_bytes < plan.plain_bytes for plan in plans)
    assert any(segment.is_recomputed for segment in plans[0].segments)


def test_scopes_in_scopes(remat, traces):
    with keras.RematScope("full"):
        outer = keras.layers.Dense(3)
        with keras.RematScope(None):
            plain = keras.layers.Dense(3)
        with keras.RematScope("list_of_layers", layer_names=["named"]):
            named, other = keras.layers.Dense(3, name="named"), keras.layers.Dense(3, name="other")
    found = []
    for layer in (outer, plain, named, other):
        value_and_gradients(layer, X)
        found.append(len(traces))
    assert found == [1, 1, 2, 2]


def test_functions_and_layers_that_keras_remat_decorates(remat):
    doubled = keras.remat(lambda x, scale=1.0: tf.sin(x) * scale)
    dense = keras.layers.Dense(2, activity_regularizer="l2")
    recomputed = keras.remat(dense)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = doubled(x, scale=2.0)
    np.testing.assert_allclose(tape.gradient(y, x, output_gradients=x), 2 * X * np.cos(X), rtol=1e-5)
    for _ in range(3):
        loss, dx = vjp(lambda: tf.reduce_sum(recomputed(x) ** 3) + sum(dense.losses), x)
        assert len(dense.losses) == 1
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(dense(x) ** 3) + sum(dense.losses)
    np.testing.assert_allclose(dx, tape.gradient(loss, x), rtol=1e-4)


def test_both_switches_may_be_repeated():
    for _ in range(2):
        cg.layers.enable_remat()
        assert core.remat is not THEIRS
    for _ in range(2):
        cg.layers.disable_remat()
        assert core.remat is THEIRS


def test_a_with_statement_restores_what_was_there_before():
    with cg.layers.enable_remat():
        assert core.remat is not THEIRS
        with pytest.raises(KeyError), cg.layers.enable_remat():
            raise KeyError
        assert core.remat is not THEIRS  # The outer one still holds.
    assert core.remat is THEIRS
    cg.layers.enable_remat()
    with cg.layers.enable_remat():
        cg.layers.disable_remat()
        assert core.remat is THEIRS
    assert core.remat is not THEIRS
    cg.layers.disable_remat()
    with pytest.raises(KeyError), cg.layers.enable_remat():
        raise KeyError
    assert core.remat is THEIRS
    again = cg.layers.enable_remat()
    for _ in range(2):
        with again:
            assert core.remat is not THEIRS
        assert core.remat is THEIRS


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
    with pytest.raises(RuntimeError) as error:
        cg.layers.enable_remat()
    assert str(error.value) == (
        f"layers.enable_remat: Keras must be 3.9 or later, got {keras.__version__}. Use layers.Recompute."
    )


def test_another_backend(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError) as error:
        cg.layers.enable_remat()
    assert str(error.value) == (
        "layers.enable_remat: the backend of Keras must be 'tensorflow', got 'jax'. Set KERAS_BACKEND=tensorflow in the "
        "environment before Keras is imported."
    )


def test_a_value_that_cannot_be_decorated(remat):
    with pytest.raises(TypeError, match=r"keras.remat: the argument must be a function, got an int."):
        keras.remat(3)


IMPORTS = """
import keras
from keras.src.backend.tensorflow import core

before = core.remat
import tf_cg_ops
import tf_cg_ops.layers

assert core.remat is before
"""


def test_an_import_replaces_nothing(tmp_path):
    run_python(IMPORTS, cwd=tmp_path)


STEPS = np.random.default_rng(2).normal(size=[8, 5, 3]).astype(np.float32)
STEPS[:, 3:] = 0  # Masked.

FIT = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "jit": {"jit_compile": True}}
SCOPES = {
    "full": {"mode": "full"},
    "activations": {"mode": "activations"},
    "larger_than": {"mode": "larger_than", "output_size_threshold": 7},
    "list_of_layers": {"mode": "list_of_layers", "layer_names": ["first", "second"]},
    "none": {"mode": None},
}


def network():
    layers = keras.layers
    x = keras.Input([3])
    h = layers.Dense(8, "gelu", activity_regularizer="l2", kernel_regularizer="l2", name="first")(x)
    h = layers.BatchNormalization()(h)
    h = layers.Dropout(0.3, seed=1)(h)
    h = keras.Sequential([layers.Dense(4, "tanh", activity_regularizer="l1", name="second")])(h)
    return keras.Model(x, layers.Dense(1)(h))


def sequences():
    layers = keras.layers
    x = keras.Input([5, 3])
    h = layers.Masking()(x)
    h = layers.GRU(4, return_sequences=True, dropout=0.2, seed=3, name="first")(h)
    h = layers.MultiHeadAttention(2, 4, dropout=0.2, seed=4, name="second")(h, h)
    return keras.Model(x, layers.Dense(1)(layers.GlobalAveragePooling1D()(h)))


def fitted(make, x, scope, mode):
    keras.utils.set_random_seed(3)
    with keras.RematScope(**scope) if scope else contextlib.nullcontext():
        model = make()
    model.compile("adam", "mse", **FIT[mode])
    history = model.fit(x, TARGET, epochs=2, batch_size=4, shuffle=False, verbose=0)
    return [*model.get_weights(), np.array(history.history["loss"])]


# Compiling takes most of the time.
@pytest.mark.parametrize(
    ("mode", "names"),
    [("eager", list(SCOPES)), ("graph", ["full", "activations", "list_of_layers"]), ("jit", ["full", "larger_than"])],
)
def test_fit_is_that_of_the_plain_model_in_every_scope(mode, names, remat, traces):
    expected = fitted(network, X, None, mode)
    assert not traces
    for name in names:
        assert_equal(fitted(network, X, SCOPES[name], mode), expected)
        assert bool(traces) == (name != "none")
        traces.clear()


@pytest.mark.parametrize(("mode", "name"), [("eager", "list_of_layers"), ("graph", "full")])
def test_fit_with_masks_loops_and_attention(mode, name, remat):
    expected = fitted(sequences, STEPS, None, mode)
    assert_equal(fitted(sequences, STEPS, SCOPES[name], mode), expected, 1e-3, 1e-4)


def test_keras_alone_is_wrong_or_fails(monkeypatch):
    """If this fails, enable_remat is no longer needed."""
    # A tf.scan that fails, in any test of this process, leaves its device in TensorFlow's outermost scope of variables,
    # which tf.recompute_grad enters.
    monkeypatch.setattr(tf.compat.v1.get_variable_scope(), "_caching_device", None)
    with keras.RematScope("full"):
        dropout, dense = keras.layers.Dropout(0.5), keras.layers.Dense(1)
    x = tf.ones([1000])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = dropout(x, training=True)
    assert np.any(y != tape.gradient(y, x))
    model = keras.Sequential([dense])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="supports keywords arguments only when eager"):
        model.fit(X, TARGET, verbose=0)
