"""override_gradients in a SavedModel: each form in a fresh process, saved again, and loaded there."""

from ..support.processes import run_python

SAVED = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([2.0, 3.0, -1.0])

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def __call__(self, x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, tf.sin(x) * self.w), (0, x))[1]

tf.saved_model.save(Model(), sys.argv[1])
"""

LOADED = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

loaded = tf.saved_model.load(sys.argv[1])
form = {"model": loaded, "function": loaded.__call__, "signature": loaded.signatures["serving_default"]}[sys.argv[2]]
overridden = cg.override_gradients(form, {"Sin": lambda op, dy: 5.0 * dy * op.inputs[0]})
x, dy = np.float32([-1.5, 0.5, 2.0]), np.float32([1.0, 10.0, -3.0])
w = np.float32([2.0, 3.0, -1.0])

def check(function):
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        y = function(x=given) if sys.argv[2] == "signature" else function(given)
        y = y["output_0"] if isinstance(y, dict) else y
    dx, dw = tape.gradient(y, [given, loaded.w], output_gradients=tf.constant(dy))
    y1 = np.sin(x) * w
    np.testing.assert_allclose(y, np.sin(y1) * w, rtol=1e-6)
    np.testing.assert_allclose(dx, dy * w * 5 * y1 * w * 5 * x, rtol=1e-5)
    np.testing.assert_allclose(dw, dy * (np.sin(y1) + w * 5 * y1 * np.sin(x)), rtol=1e-5)

check(overridden)
check(tf.function(overridden))
if sys.argv[2] == "model":
    again = tf.Module()
    again.w = loaded.w
    again.f = tf.function(overridden, input_signature=[tf.TensorSpec([3])])
    sine = cg.override_gradients(tf.sin, {"Sin": lambda op, dy: 5.0 * dy * op.outputs[0]})
    again.sine = tf.function(sine, input_signature=[tf.TensorSpec([3])])
    tf.saved_model.save(again, sys.argv[3])
"""

AGAIN = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops

again = tf.saved_model.load(sys.argv[1])
x, dy = np.float32([-1.5, 0.5, 2.0]), np.float32([1.0, 10.0, -3.0])
w = np.float32([2.0, 3.0, -1.0])
given = tf.constant(x)
with tf.GradientTape() as tape:
    tape.watch(given)
    y = again.f(given)
dx, dw = tape.gradient(y, [given, again.w], output_gradients=tf.constant(dy))
y1 = np.sin(x) * w
np.testing.assert_allclose(dx, dy * w * 5 * y1 * w * 5 * x, rtol=1e-5)
np.testing.assert_allclose(dw, dy * (np.sin(y1) + w * 5 * y1 * np.sin(x)), rtol=1e-5)
with tf.GradientTape() as outer:
    outer.watch(given)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = again.sine(given)
    dx = tape.gradient(y, given, output_gradients=tf.constant(dy))
np.testing.assert_allclose(dx, 5 * dy * np.sin(x), rtol=1e-5)
second = outer.gradient(dx, given, output_gradients=tf.constant(dy))
np.testing.assert_allclose(second, 5 * dy * dy * 5 * np.sin(x), rtol=1e-5)
"""


def test_a_saved_model_in_a_fresh_process_and_what_is_saved_of_it(tmp_path):
    model, again = str(tmp_path / "model"), str(tmp_path / "again")
    run_python(SAVED, model, cwd=tmp_path)
    for form in ("signature", "function", "model"):
        run_python(LOADED, model, form, again, cwd=tmp_path)
    run_python(AGAIN, again, cwd=tmp_path)
