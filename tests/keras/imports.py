"""Importing the library imports no other Keras than TensorFlow does, prints its name, and replaces nothing in it."""

import sys

import tensorflow as tf


def kerases():
    return [name for name in ("keras", "tf_keras") if name in sys.modules]


before = kerases()
if before == ["keras"]:
    from keras.src.backend import tensorflow as backend

    core = getattr(backend, "ops", None) or backend.core  # Keras 3.16 moved it.
    remat = core.remat
import tf_cg_ops  # noqa: E402

assert kerases() == before, (before, kerases())
assert "tf_cg_ops.layers" not in sys.modules, "whoever uses no layers may have another Keras, or none"
layer = tf_cg_ops.layers.ReverseGradient()
print(*before)
assert isinstance(layer, sys.modules[before[0]].layers.Layer)
assert isinstance(layer, tf.keras.layers.Layer)
if before == ["keras"]:
    assert core.remat is remat, "enable_remat must be called"
