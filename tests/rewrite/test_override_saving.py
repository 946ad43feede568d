"""override_gradients in a SavedModel: loaded in a fresh process, saved there, and loaded again."""

import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.sources import ROOT

LOADED = """
import sys
import numpy as np
import pytest
import tensorflow as tf
import tf_cg_ops as cg
from tests.support.modes import assert_all_close, tape_vjp

loaded = tf.saved_model.load(sys.argv[1])
given, dy = tf.constant([-1.5, 0.5, 2.0]), tf.constant([1.0, 10.0, -3.0])
x, w = given.numpy(), loaded.w.numpy()

def check(function):
    y, gradients = tape_vjp(lambda x, _: tf.nest.flatten(function(x=x))[0], [given, loaded.w], dy)
    y1 = np.sin(x) * w
    expected = [dy * w * 5 * y1 * w * 5 * x, dy * (np.sin(y1) + w * 5 * y1 * np.sin(x))]
    assert_all_close([y, *gradients], [np.sin(y1) * w, *expected], rtol=1e-5)

if sys.argv[2] == "again":
    check(lambda x: loaded.f(x))
    sys.exit()
rules, of_sigmoid = {"Sin": lambda op, dy: 5.0 * dy * op.inputs[0]}, {"Sigmoid": lambda op, dy: 5.0 * dy}
for form in (loaded, loaded.__call__, loaded.signatures["serving_default"]):
    overridden = cg.override_gradients(form, rules)
    check(overridden)
    check(tf.function(overridden))
for function, slope in ((loaded.silu, tf.sigmoid(given) + 5.0 * given), (loaded.squashed, 5.0)):
    with pytest.raises(ValueError, match="'Sigmoid', which only matches ops inside functions"):
        cg.override_gradients(function, of_sigmoid)(given)
    _, (dx,) = tape_vjp(cg.override_gradients(function, of_sigmoid, inside=True), [given], dy)
    np.testing.assert_allclose(dx, dy * slope, rtol=1e-5)
again = tf.Module()
again.w = loaded.w
again.f = tf.function(cg.override_gradients(loaded, rules), input_signature=[tf.TensorSpec([3])])
tf.saved_model.save(again, sys.argv[2])
"""


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([2.0, 3.0, -1.0])
        squashed = cg.custom_gradient(lambda x: (tf.sigmoid(x), lambda dy: 7.0 * dy))
        self.silu, self.squashed = (tf.function(f, [tf.TensorSpec([3])], False) for f in (tf.nn.silu, squashed))

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def __call__(self, x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, tf.sin(x) * self.w), (0, x))[1]


@pytest.mark.mode_table(feature="override_gradients", mode="reloaded")
def test_a_saved_model_in_a_fresh_process_and_what_is_saved_of_it(tmp_path):
    model = Model()
    tf.saved_model.save(model, tmp_path / "model", signatures=model.__call__)
    for arguments in ((tmp_path / "model", tmp_path / "again"), (tmp_path / "again", "again")):
        run_python(LOADED, *arguments, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
