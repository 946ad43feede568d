"""Calls a Python function from a graph. Only this process can run such a graph, and the errors say so."""

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal, when_saved


def call_python(
    subject: str,
    advice: str,
    function: Callable[..., Sequence[np.ndarray]],
    inputs: Sequence[tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    *,
    stateless: bool = False,
    takes_examples: bool = False,
) -> list[tf.Tensor]:
    """Adds an op to the graph that calls a function with its inputs as arrays, and returns the results.

    Its errors begin with `subject`, the API and the user's function; in another process they end with `advice`. A
    stateless op runs only if its results are used.

    A function that `takes_examples` is called once for all examples of tf.vectorized_map. Its first arguments are the
    dimensions for examples, () outside of tf.vectorized_map, and for each array whether it has them in front; the other
    arrays are the same for all examples. All results have the dimensions.
    """
    return _PythonFunction(subject, advice, function, tuple(specs), stateless, takes_examples).add_to_graph(inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class _PythonFunction:
    """What an op calls. `levels` says for each tf.vectorized_map, from the outermost in, which inputs it stacks."""

    subject: str
    advice: str
    function: Callable[..., Sequence[np.ndarray]]
    specs: tuple[tf.TensorSpec, ...]
    stateless: bool
    takes_examples: bool
    levels: tuple[list[bool], ...] = ()

    def __call__(self, *arrays: Any) -> Sequence[np.ndarray]:
        if not self.takes_examples:
            return self.function(*arrays)
        if not self.levels:
            return self.function((), [False] * len(arrays), *arrays)
        is_stacked = [any(flags) for flags in zip(*self.levels, strict=True)]
        lead: list[int] = []
        complete = list(arrays)  # A stacked array can lack the dimension of one level, for which it is then the same.
        for axis, level in enumerate(self.levels):
            lead.append(next(array.shape[axis] for array, flag in zip(complete, level, strict=True) if flag))
            for i, flag in enumerate(level):
                if is_stacked[i] and not flag:
                    shape = complete[i].shape
                    spread = np.expand_dims(complete[i], axis)
                    complete[i] = np.broadcast_to(spread, (*shape[:axis], lead[axis], *shape[axis:]))
        return self.function(tuple(lead), is_stacked, *complete)

    def add_to_graph(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds the op."""
        graph = tf.compat.v1.get_default_graph()
        if tf_internal.is_traced_for_xla(graph):
            raise NotImplementedError(
                f"{self.subject} is Python code, which XLA cannot compile. Leave jit_compile=True out of every "
                "tf.function around it, and compile a Keras model with jit_compile=False."
            )
        # TensorFlow shows the token if another process runs the graph. It is unique, so that that process does not find
        # a function under it.
        token = (
            f"{self.subject} is Python code, which only runs in the process that made this graph. {self.advice} "
            f"(Function {uuid.uuid4().hex})"
        )
        tf_internal.add_python_function(graph, token, self)
        op = tf.raw_ops.PyFuncStateless if self.stateless else tf.raw_ops.PyFunc
        message = (
            "{} is Python code, which a saved function cannot contain. Save the weights instead, and build the model "
            "from its code where you load them."
        )
        texts = message.format(self.subject), message.format("A function in this graph")
        refusal = when_saved.gradient_that_tells("TfCgOpsNotSaved", *texts, _captured)
        overrides = dict.fromkeys(("PyFunc", "PyFuncStateless"), refusal)
        with tf_internal.stop_recording(), graph.gradient_override_map(overrides):
            results = op(input=inputs, token=token, Tout=[spec.dtype for spec in self.specs])
        lead = tf.TensorShape([None] * len(self.levels))
        for spec, result in zip(self.specs, results, strict=True):
            result.set_shape(lead.concatenate(spec.shape))
        return results


@tf_internal.RegisterPFor("PyFunc")
@tf_internal.RegisterPFor("PyFuncStateless")
def _convert_python(pfor_input: Any) -> Sequence[Any]:
    function = tf_internal.python_function(pfor_input.get_attr("token"))
    if not (isinstance(function, _PythonFunction) and function.takes_examples):
        return tf_internal.converted_in_a_loop(pfor_input)  # Also the user's own calls of Python.
    inputs = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    if not any(wrapped.is_stacked for wrapped in inputs):  # The function also needs to know the number of examples.
        pfor_input.stack_inputs([0])
        inputs[0] = pfor_input.input(0)
    levels = ([wrapped.is_stacked for wrapped in inputs], *function.levels)
    outputs = dataclasses.replace(function, levels=levels).add_to_graph([wrapped.t for wrapped in inputs])
    return [tf_internal.wrap_for_pfor(output, True) for output in outputs]


# TensorFlow only looks up the gradient of the PyFunc op when a graph is saved. It would just log an error raised there,
# and advise to save without gradients, which gives a model that cannot be loaded. So the message is the value of a
# capture that TensorFlow refuses to save.
def _captured(message: str) -> tf.Tensor:
    with tf.init_scope():
        text = tf.constant(message)
    return tf.identity(text)
