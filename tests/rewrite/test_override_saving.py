"""override_gradients in a SavedModel: loaded in a fresh process, saved there, and loaded again."""

import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

LOADED = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

loaded = tf.saved_model.load(sys.argv[1])
given, dy = tf.constant([-1.5, 0.5, 2.0]), tf.constant([1.0, 10.0, -3.0])
x, w = given.numpy(), loaded.w.numpy()

def check(function, w):
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = function(given) if sys.argv[2] == "again" else function(x=given)
        y = y["output_0"] if isinstance(y, dict) else y
    dx, dw = tape.gradient(y, [given, w], output_gradients=dy)
    w = w.numpy()
    y1 = np.sin(x) * w
    np.testing.assert_allclose(y, np.sin(y1) * w, rtol=1e-6)
    np.testing.assert_allclose(dx, dy * w * 5 * y1 * w * 5 * x, rtol=1e-5)
    np.testing.assert_allclose(dw, dy * (np.sin(y1) + w * 5 * y1 * np.sin(x)), rtol=1e-5)

if sys.argv[2] == "again":
    check(loaded.f, loaded.w)
else:
    rules = {"Sin": lambda op, dy: 5.0 * dy * op.inputs[0]}
    for form in (loaded, loaded.__call__, loaded.signatures["serving_default"]):
        overridden = cg.override_gradients(form, rules)
        check(overridden, loaded.w)
        check(tf.function(overridden), loaded.w)
    for name, slope in (("silu", tf.sigmoid(given) + 5.0 * given), ("squashed", 5.0)):
        plain, of_sigmoid = getattr(loaded, name), {"Sigmoid": lambda op, dy: 5.0 * dy}
        try:
            cg.override_gradients(plain, of_sigmoid)(given)
        except ValueError as error:
            assert "'Sigmoid', which only matches ops inside functions" in str(error), error
        else:
            raise AssertionError(name)
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = cg.override_gradients(plain, of_sigmoid, inside=True)(given)
        np.testing.assert_allclose(tape.gradient(y, given, output_gradients=dy), dy * slope, rtol=1e-5)
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
    run_python(LOADED, tmp_path / "model", tmp_path / "again", cwd=tmp_path)
    run_python(LOADED, tmp_path / "again", "again", cwd=tmp_path)
