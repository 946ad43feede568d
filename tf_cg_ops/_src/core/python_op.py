"""The op that calls a Python function from a graph. Only this process can run it, and its errors say so."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

# The gradient of the PyFunc op itself. TensorFlow looks it up only when a graph is saved.
_NOT_SAVED = "TfCgOpsPythonIsNotSaved"
_IS_PYTHON = " is Python code, which"


def call_python(
    subject: str,
    advice: str,
    function: Callable[..., Sequence[np.ndarray]],
    inputs: Sequence[tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    *,
    stateless: bool = False,
) -> list[tf.Tensor]:
    """Adds an op to the graph that passes its inputs to a function as arrays, and returns its results.

    `subject` begins its errors, with the API and the user's function; `advice` ends those of another process. A
    stateless op runs only if somebody reads its results.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf_internal.is_traced_for_xla(graph):
        raise NotImplementedError(
            f"{subject}{_IS_PYTHON} XLA cannot compile; expected a graph without XLA, got one with jit_compile=True. "
            "Compile a Keras model with jit_compile=False, and leave jit_compile=True out of every tf.function around "
            "it."
        )
    # TensorFlow shows the token if another process runs the graph, which must not find a function of its own under it.
    token = (
        f"{subject}{_IS_PYTHON} lived in the process that made this graph; expected that process, got another one. "
        f"{advice} (Function {uuid.uuid4().hex})"
    )
    tf_internal.add_python_function(graph, token, function)
    op = tf.raw_ops.PyFuncStateless if stateless else tf.raw_ops.PyFunc
    overrides = {"PyFunc": _NOT_SAVED, "PyFuncStateless": _NOT_SAVED}
    with tf_internal.stop_recording(), graph.gradient_override_map(overrides):
        results = op(input=inputs, token=token, Tout=[spec.dtype for spec in specs])
    for spec, result in zip(specs, results, strict=True):
        result.set_shape(spec.shape)
    return results


# An error that is raised here would only be logged: TensorFlow then raises its own, which advises to save without
# gradients. Such a model fails in the process that loads it.
@tf.RegisterGradient(_NOT_SAVED)
@tf.autograph.experimental.do_not_convert
def _refuse_to_be_saved(*_: Any) -> tf.Tensor:
    """Captures a text, which TensorFlow shows in its error for captures that are not saved."""
    with tf.init_scope():
        text = tf.constant(
            "tf_cg_ops: what is saved must consist of TensorFlow operations, got Python code, by numpy_function or "
            "watch_gradient(call=...). Save the weights instead, and build the model from its code where they are "
            "loaded."
        )
    return tf.identity(text)
