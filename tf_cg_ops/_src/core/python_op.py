"""Calls a Python function from a graph. Only this process can run such a graph, and the errors say so."""

import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal


def call_python(
    subject: str,
    advice: str,
    function: Callable[..., Sequence[np.ndarray]],
    inputs: Sequence[tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    *,
    stateless: bool = False,
) -> list[tf.Tensor]:
    """Adds an op to the graph that calls a function with its inputs as arrays, and returns the results.

    Its errors begin with `subject`, the API and the user's function; in another process they end with `advice`. A
    stateless op runs only if its results are used.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf_internal.is_traced_for_xla(graph):
        raise NotImplementedError(
            f"{subject} is Python code, which XLA cannot compile. Leave jit_compile=True out of every tf.function "
            "around it, and compile a Keras model with jit_compile=False."
        )
    # TensorFlow shows the token if another process runs the graph. It is unique, so that that process does not find a
    # function under it.
    token = (
        f"{subject} is Python code, which only runs in the process that made this graph. {advice} (Function "
        f"{uuid.uuid4().hex})"
    )
    tf_internal.add_python_function(graph, token, function)
    op = tf.raw_ops.PyFuncStateless if stateless else tf.raw_ops.PyFunc
    overrides = dict.fromkeys(("PyFunc", "PyFuncStateless"), _refusal_to_be_saved(subject))
    with tf_internal.stop_recording(), graph.gradient_override_map(overrides):
        results = op(input=inputs, token=token, Tout=[spec.dtype for spec in specs])
    for spec, result in zip(specs, results, strict=True):
        result.set_shape(spec.shape)
    return results


# TensorFlow only looks up the gradient of the PyFunc op when a graph is saved. It would just log an error raised there,
# and advise to save without gradients, which gives a model that cannot be loaded. So the message is the value of a
# capture that TensorFlow refuses to save.
@functools.cache
def _refusal_to_be_saved(subject: str) -> str:
    """Registers the gradient that prevents saving, and returns its name."""
    name = f"TfCgOpsNotSaved: {subject}"

    @tf.RegisterGradient(name)
    @tf.autograph.experimental.do_not_convert
    def capture_text(*_: Any) -> tf.Tensor:
        with tf.init_scope():
            text = tf.constant(
                f"{subject} is Python code, which a saved function cannot contain. Save the weights instead, and build "
                "the model from its code where you load them."
            )
        return tf.identity(text)

    return name
