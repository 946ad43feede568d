"""A SavedModel in a fresh process: the embedded gradient is data in it and needs no Python code of the model."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.tensors import random_array

pytestmark = pytest.mark.core

GRADIENTS_OF_A_LOADED_MODEL = """
import json, sys, warnings
warnings.simplefilter("error")
import numpy as np
import pytest
import tensorflow as tf
import tf_cg_ops

path, again = sys.argv[1:3]
model = tf.saved_model.load(path)
if again:
    tf.saved_model.save(model, again)
    model = tf.saved_model.load(again)
with np.load(sys.argv[3]) as data:
    x, y, dy = (tf.constant(data[name]) for name in ("x", "y", "dy"))

with tf.GradientTape() as outer:
    outer.watch([x, y])
    with tf.GradientTape() as inner:
        inner.watch([x, y])
        value = model.f(x, y)
    dx = inner.gradient(value, x, output_gradients=dy)
    weighted = tf.reduce_sum(dx * dy[:, None])
second = outer.gradient(weighted, [x, y], unconnected_gradients="zero")
with tf.GradientTape() as tape:
    value = model.f(x, y)
dw = tape.gradient(value, model.w, output_gradients=dy)
print(json.dumps([t.numpy().tolist() for t in (value, dx, dw, *second)]))
"""


class Model(tf.Module):
    """Rows of x with a derivative that is not theirs, used as given: gx depends on y, fx on a variable."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.constant([2.0, -3.0], tf.float64))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float64), tf.TensorSpec([None], tf.float64)])
    def f(self, x, y):
        fx = tf.stop_gradient(tf.reduce_sum(x, -1)) * tf.reduce_sum(self.w) ** 2
        gx = tf.stop_gradient(tf.sin(x)) * y[:, None] ** 3
        return cg.embed_gradient(fx, gx, x, axis=-1, fx_gx_manually_stopped=True)


def by_hand(x, y, dy):
    """Value, first order by x and w, second order by x and y of sum(dx * dy[:, None])."""
    w_sum, rows = -1.0, x.sum(-1)
    value = rows * w_sum**2
    dx = dy[:, None] * np.sin(x) * y[:, None] ** 3
    dw = np.full(2, np.sum(dy * rows) * 2 * w_sum)
    d2y = dy**2 * np.sin(x).sum(-1) * 3 * y**2
    return [value, dx, dw, np.zeros_like(x), d2y]


def check_in_a_fresh_process(tmp_path, rng, again):
    arrays = {"x": random_array(rng, [4, 3]), "y": random_array(rng, [4]), "dy": random_array(rng, [4])}
    np.savez(tmp_path / "arrays.npz", **arrays)
    tf.saved_model.save(Model(), tmp_path / "model")
    result = run_python(GRADIENTS_OF_A_LOADED_MODEL, tmp_path / "model", again, tmp_path / "arrays.npz", cwd=tmp_path)
    found = json.loads(result.stdout.splitlines()[-1])
    for actual, expected in zip(found, by_hand(**arrays), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_first_and_second_order_after_loading(tmp_path, rng):
    check_in_a_fresh_process(tmp_path, rng, again="")


def test_first_and_second_order_after_saving_a_loaded_model_again(tmp_path, rng):
    check_in_a_fresh_process(tmp_path, rng, again=tmp_path / "again")


def test_the_saved_graph_holds_the_op_and_its_attributes(tmp_path):
    tf.saved_model.save(Model(), tmp_path / "model")
    proto = saved_model_pb2.SavedModel.FromString((tmp_path / "model" / "saved_model.pb").read_bytes())
    nodes = [node for f in proto.meta_graphs[0].graph_def.library.function for node in f.node_def]
    (embed,) = [node for node in nodes if node.op == "CustomGradientEmbed"]
    assert embed.attr["fx_gx_manually_stopped"].b
    assert list(embed.attr["axis"].list.i) == [-1]


def test_without_the_package_loading_says_which_op_is_missing(tmp_path):
    tf.saved_model.save(Model(), tmp_path / "model")
    code = "import sys, tensorflow as tf; tf.saved_model.load(sys.argv[1])"
    result = run_python(code, tmp_path / "model", cwd=tmp_path, check=False)
    assert result.returncode != 0
    assert "Op type not registered 'CustomGradientEmbed'" in result.stderr
