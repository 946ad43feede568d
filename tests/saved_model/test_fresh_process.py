"""A SavedModel in a fresh process: the embedded gradient is data, and needs no Python code of the model."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.saved_models import bodies_of
from ..support.tensors import random_array

pytestmark = pytest.mark.core

GRADIENTS_OF_A_LOADED_MODEL = """
import json, sys, warnings
warnings.simplefilter("error")
import numpy as np
import tensorflow as tf
import tf_cg_ops

model = tf.saved_model.load(sys.argv[1])
tf.saved_model.save(model, sys.argv[2])
x, y, dy = (tf.constant(values, tf.float64) for values in json.loads(sys.argv[3]))
for model in (model, tf.saved_model.load(sys.argv[2])):
    with tf.GradientTape() as outer:
        outer.watch([x, y])
        with tf.GradientTape(persistent=True) as inner:
            inner.watch([x, y])
            value = model.f(x, y)
        dx, dw = (inner.gradient(value, source, output_gradients=dy) for source in (x, model.w))
        weighted = tf.reduce_sum(dx * dy[:, None])
    second = outer.gradient(weighted, [x, y], unconnected_gradients="zero")
    print(json.dumps([t.numpy().tolist() for t in (value, dx, dw, *second)]))
"""


class Model(tf.Module):
    """Rows of x with a gx that is not their derivative, used as given. gx depends on y, and fx on a variable."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.constant([2.0, -3.0], tf.float64))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float64), tf.TensorSpec([None], tf.float64)])
    def f(self, x, y):
        fx = tf.stop_gradient(tf.reduce_sum(x, -1)) * tf.reduce_sum(self.w) ** 2
        gx = tf.stop_gradient(tf.sin(x)) * y[:, None] ** 3
        return cg.embed_gradient(fx, gx, x, axis=-1, fx_gx_manually_stopped=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fresh") / "model"
    tf.saved_model.save(Model(), folder)
    return folder


def by_hand(x, y, dy):
    """The value, first derivatives by x and w, and the derivatives of sum(dx * dy[:, None]) by x and y."""
    w_sum, rows = -1.0, x.sum(-1)
    dx = dy[:, None] * np.sin(x) * y[:, None] ** 3
    dw = np.full(2, np.sum(dy * rows) * 2 * w_sum)
    d2y = dy**2 * np.sin(x).sum(-1) * 3 * y**2
    return [rows * w_sum**2, dx, dw, np.zeros_like(x), d2y]


def test_first_and_second_order_after_loading_and_after_saving_again(saved, tmp_path, rng):
    arrays = [random_array(rng, shape) for shape in ([4, 3], [4], [4])]
    inputs = json.dumps([array.tolist() for array in arrays])
    result = run_python(GRADIENTS_OF_A_LOADED_MODEL, saved, tmp_path / "again", inputs, cwd=tmp_path)
    for line in result.stdout.splitlines()[-2:]:
        for actual, expected in zip(json.loads(line), by_hand(*arrays), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_the_saved_graph_holds_the_op_and_its_attributes(saved):
    nodes = [node for body in bodies_of(saved).values() for node in body]
    (embed,) = [node for node in nodes if node.op == "CustomGradientEmbed"]
    assert embed.attr["fx_gx_manually_stopped"].b
    assert list(embed.attr["axis"].list.i) == [-1]


def test_without_the_package_loading_says_which_op_is_missing(saved, tmp_path):
    code = "import sys, tensorflow as tf; tf.saved_model.load(sys.argv[1])"
    result = run_python(code, saved, cwd=tmp_path, check=False)
    assert result.returncode != 0
    assert "Op type not registered 'CustomGradientEmbed'" in result.stderr
