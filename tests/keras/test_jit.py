"""Keras models under XLA: with jit_compile, by Keras's own choice, and by TensorFlow's auto-clustering."""

import logging
import re

import keras
import numpy as np
import pytest

from ..support.keras_models import data, sign_layer, train_by_hand
from ..support.processes import run_python
from ..support.sources import ROOT


@pytest.mark.mode_table(feature="embed_gradient", mode="keras_jit")
@pytest.mark.mode_table(feature="custom_gradient", mode="keras_jit")
@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_training_is_that_by_hand_and_says_nothing(jit_compile, caplog, capfd):
    x, y = data()
    with caplog.at_level(logging.INFO, "absl"), caplog.at_level(logging.WARNING, "tensorflow"):
        model = keras.Sequential([sign_layer(keras)])
        model.compile(optimizer=keras.optimizers.SGD(0.2), loss="mse", jit_compile=jit_compile)
        history = model.fit(x, y, epochs=8, batch_size=16, shuffle=False, verbose=0)
    kernel, scale, losses = train_by_hand(0.2, 8, 16)
    actual_kernel, actual_scale = model.get_weights()
    # float32 against float64, after 32 steps.
    np.testing.assert_allclose(actual_kernel, kernel, rtol=1e-5)
    np.testing.assert_allclose(actual_scale, scale, rtol=1e-5)
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-5)
    # TensorFlow counts the traces of all models in a process together.
    assert not [record for record in caplog.records if "triggered tf.function retracing" not in record.getMessage()]
    assert "jit" not in capfd.readouterr().err.lower()


CLUSTERS = """
import numpy as np
import tensorflow as tf
from tests.support.modes import assert_orders, traced_orders
from tests.support.pointwise import DY, POINTWISE, X, Jet

for name in ("stopped", "given", "custom_gradient", "recompute_grad"):
    assert_orders(traced_orders(POINTWISE[name].function, X, DY), POINTWISE[name](Jet(X)).orders(DY))
"""


def test_clusters_that_tensorflow_makes_by_itself(tmp_path):
    """XLA writes down what it compiles, each instruction with the op that it comes from."""
    run_python(
        CLUSTERS,
        cwd=tmp_path,
        environment={
            "PYTHONPATH": str(ROOT),
            "TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1",
            "XLA_FLAGS": f"--xla_dump_to={tmp_path / 'dump'} --xla_dump_hlo_as_text",
        },
    )
    compiled = set()
    for path in (tmp_path / "dump").glob("*before_optimizations.txt"):
        compiled.update(re.findall(r'op_type="(CustomGradient\w+)"', path.read_text()))
    assert compiled >= {"CustomGradientEmbedGrad", "CustomGradientBarrier"}
