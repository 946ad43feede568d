"""Where numpy_function is refused: under XLA, in a file, in another process. Its messages are in tests/messages."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.sources import ROOT

X = tf.constant([1.0, 2.0])


def f(x):
    return x, np.ones_like(x)


SINGLE = cg.numpy_function(f)
# The page of messages has the direct call.
FUNCTIONS = {
    "with_vjp": cg.numpy_function(f, vjp=lambda residuals, dy: dy),
    "in_an_inner_function": tf.function(SINGLE),
    "in_a_loop": lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, SINGLE(x)), (0, x))[1],
}


@pytest.mark.mode_table(feature="numpy_function", mode="jit", outcome="unsupported")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_xla_is_refused(name):
    with pytest.raises(NotImplementedError, match="'f' is Python code, which XLA cannot compile"):
        tf.function(lambda x: 2.0 * FUNCTIONS[name](x), jit_compile=True)(X)


def model():
    x = keras.Input([2])
    return keras.Model(x, SINGLE(keras.layers.Dense(2)(x)))


@pytest.mark.mode_table(feature="numpy_function", mode="keras_jit", outcome="unsupported")
def test_a_keras_model_under_xla_is_told_what_to_do():
    compiled = model()
    compiled.compile(loss="mse", jit_compile=True)
    with pytest.raises(NotImplementedError, match="compile a Keras model with jit_compile=False"):
        compiled.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)


def module_of(function):
    module = tf.Module()
    module.call = tf.function(function, input_signature=[tf.TensorSpec([None])])
    return module


IN_A_GRADIENT = cg.custom_gradient(lambda x: (x, lambda dy: dy * SINGLE(x)))


@pytest.mark.mode_table(feature="numpy_function", mode="reloaded", outcome="unsupported")
@pytest.mark.parametrize("function", [*FUNCTIONS.values(), IN_A_GRADIENT], ids=[*FUNCTIONS, "in_a_gradient"])
def test_saving_is_refused(function, tmp_path, capfd):
    message = (
        r"^Found invalid capture b.numpy_function: '\S+' is Python code, which a saved function cannot contain\. Save the "
        r"weights instead, and build the model from its code where you load them\.. when saving "
    )
    with pytest.raises(ValueError, match=message):
        tf.saved_model.save(module_of(function), tmp_path)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.mode_table(feature="numpy_function", mode="keras_export", outcome="unsupported")
def test_exporting_a_keras_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is Python code, which a saved function cannot contain"):
        model().export(tmp_path / "model", verbose=False)


# TensorFlow numbers Python functions from 1 in each process, so here the saved number belongs to another function.
IN_ANOTHER_PROCESS = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

called = []
def other(*arrays):
    called.append(arrays)
    return arrays[-1], arrays[-1]

x = tf.constant([1.0, 2.0])
keep = [tf.function(cg.numpy_function(lambda x: other(x))), tf.function(lambda x: tf.numpy_function(other, [x], [x.dtype] * 2))]
for function in keep:
    function(x)
called.clear()
try:
    tf.saved_model.load(sys.argv[1]).call(x)
except tf.errors.InvalidArgumentError as error:
    print(error)
assert not called
"""


def test_a_graph_that_was_saved_nevertheless_calls_no_other_function(tmp_path):
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module_of(SINGLE), tmp_path / "model", options=options)
    result = run_python(IN_ANOTHER_PROCESS, tmp_path / "model", cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert (
        "numpy_function: 'f' is Python code, which only runs in the process that made this graph. Build the model from its Python code here, and load its weights."
    ) in result.stdout
