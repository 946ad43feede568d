"""Private names of TensorFlow, each with the reason why no public one does: the only module that knows them.

`tests/test_tf_internal.py` fails when TensorFlow changes one of them.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

# The identity of a Python object as an argument of tf.function, which otherwise takes the object in its __wrapped__.
from tensorflow.core.function.trace_type.default_types import Weakref as TraceTypeOfAnObject

# Keeps AutoGraph from translating a function, without the scope that tf.autograph.experimental.do_not_convert enters.
from tensorflow.python.autograph.impl import api as _autograph

# Whether a dtype has gradients: TensorFlow's own answer, which changes with it.
from tensorflow.python.eager.backprop_util import IsTrainable as is_trainable

# Half the time of tf.compat.v1.placeholder, which looks for what a graph of a function has not got.
from tensorflow.python.eager.graph_only_ops import graph_placeholder

# Makes a function of a traced graph without the wrapper, cache and call counters of tf.function.
from tensorflow.python.eager.polymorphic_function.atomic_function import from_func_graph

# Whether anything at all is recorded: without that, an eager call is done when its op is.
from tensorflow.python.eager.record import could_possibly_record

# Which variables a function reads. tf.GradientTape.watched_variables knows only what is read under that very tape.
from tensorflow.python.eager.record import VariableWatcher

# Puts a Python closure on the tapes as the gradient of Tensors. tf.custom_gradient does so, but with its own rules.
from tensorflow.python.eager.record import record_operation

# Whether a tape watches a tensor: no public name tells.
from tensorflow.python.eager.record import should_record_backprop

# Computes without any tape, so that nothing of it is kept. tf.GradientTape.stop_recording speaks for one tape only.
from tensorflow.python.eager.record import stop_recording

# Which Tensors of a RaggedTensor (and the like) are differentiated, and how to put their gradients in.
from tensorflow.python.framework.composite_tensor_gradient import get_flat_tensors_for_gradients
from tensorflow.python.framework.composite_tensor_gradient import replace_flat_tensors_for_gradients

# Where gradient functions are found.
from tensorflow.python.framework import ops

# The type of a Tensor with a value: tf.Tensor stands for those of graphs, too.
from tensorflow.python.framework.ops import EagerTensor

# What an op is: whether it is stateful, and its definition for the list of ops in a SavedModel.
from tensorflow.python.framework import op_def_registry

# A graph whose captures are then known one by one, where tf.function hides them in its calls; and what orders those of
# its ops that have a state.
from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies
from tensorflow.python.framework.func_graph import FuncGraph

# The GraphDef of a function that a graph holds: tf.graph_util.import_graph_def takes no FunctionDef.
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

# Whether XLA will compile what is traced.
from tensorflow.python.ops import control_flow_util

# The shape and dtype of the gradient by a resource, those of the contents: no public name tells.
from tensorflow.python.ops.default_gradient import shape_and_dtype, supports_default_grad

# How TensorFlow differentiates loops and conditionals.
from tensorflow.python.ops import cond_v2
from tensorflow.python.ops import while_v2

# Where the op PyFunc looks for the function that it calls.
from tensorflow.python.ops import script_ops

# What the generated functions of ops call: it costs by the attribute, and they pass all of them.
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, core

# Whether a tape or an accumulator watches a tensor: should_record_backprop knows nothing of accumulators.
from tensorflow.python.ops.gradients_util import PossibleTapeGradientTypes as possible_gradient_types

# How tf.vectorized_map and jacobians treat an op of ours.
from tensorflow.python.ops.parallel_for.pfor import ConversionNotImplementedError
from tensorflow.python.ops.parallel_for.pfor import RegisterPFor
from tensorflow.python.ops.parallel_for.pfor import wrap as wrap_for_pfor

# The file format of a SavedModel; the public interface only loads one into graphs, by which it would be changed.
from tensorflow.python.saved_model.loader_impl import parse_saved_model

# The fingerprint is made of the bytes of saved_model.pb: a file that was changed needs a new one.
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint

# The shape of an EagerTensor as a tuple, which hashes and compares in a tenth of the time of a TensorShape.
shape_of = EagerTensor._shape_tuple


Marked = TypeVar("Marked", bound=Callable[..., Any])


# With types, which TensorFlow's own has not: what users see of a function is its signature.
def autograph_artifact(function: Marked) -> Marked:
    """Decorates a public function or class, in whose code AutoGraph has nothing to translate."""
    return _autograph.autograph_artifact(function)


# Half of an eager call's time is in the attributes, also in those that have their default values.
def execute(op: str, *inputs_and_attributes: Any) -> Any:
    """Runs an op on EagerTensors; after them come the names and values of attributes that are not as by default.

    Only where nothing records: gradient functions ask the record for all attributes.
    """
    try:
        return pywrap_tfe.TFE_Py_FastPathExecute(context.context(), op, None, *inputs_and_attributes)
    except core._NotOkStatusException as error:
        ops.raise_from_not_ok_status(error, None)


# stop_recording, at a tenth of the cost, for where something records.
def execute_unrecorded(op: str, *inputs_and_attributes: Any) -> Any:
    """The same, only where something records, which is not to see the op."""
    pywrap_tfe.TFE_Py_TapeSetStopOnThread()
    try:
        return execute(op, *inputs_and_attributes)
    finally:
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()


# tf.init_scope stops all recording on the thread, that of tapes which are opened in it, too.
@contextlib.contextmanager
def recording_init_scope() -> Iterator[None]:
    """tf.init_scope, in which tapes record as they do around it."""
    stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()
    with ops.init_scope():
        if not stopped:
            pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
        try:
            yield
        finally:
            if not stopped:
                pywrap_tfe.TFE_Py_TapeSetStopOnThread()


# A graph holds functions that its nodes name; the public interface only ever adds them by calling them.
def add_function(graph: Any, function: Any) -> None:
    """Makes a function, and all that it calls, known to a graph."""
    graph._add_function_recursive(function)


def find_function(graph: Any, name: str) -> Any:
    """The function of that name in a graph or in one of those around it; None if there is none."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function
        graph = getattr(graph, "outer_graph", None)
    return None


def definition_of(function: Any) -> Any:
    """The FunctionDef of a function that a graph holds."""
    return function.cached_definition


# A graph captures a tensor at the first op that reads it, and tells the tapes only if that op is recorded.
def capture(graph: Any, tensor: Any) -> Any:
    """Returns the capture of a tensor in the graph of a function; in other graphs, the tensor."""
    return graph.capture(tensor) if isinstance(graph, FuncGraph) else tensor


# The functions of tf.raw_ops take half the time of a trace to find out what is known here.
def create_op(graph: Any, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Makes an op of a graph from tensors of that graph, with attributes as protos."""
    return graph._create_op_internal(op_type, inputs, attrs=attributes)


_substitutes: weakref.WeakKeyDictionary[Any, list[dict[int, Any]]] = weakref.WeakKeyDictionary()


# The gradient of a conditional may capture tensors of the branch and of the graph around the gradient, but none from
# further outside, and that of a loop no large EagerTensor (tensorflow/python/ops/cond_v2.py and while_v2.py).
@contextlib.contextmanager
def capturing_instead(substitutes: dict[int, Any], forward: Any) -> Iterator[None]:
    """Lets the default graph capture other tensors, those of the graph `forward`, for the tensors with these ids."""
    graph = ops.get_default_graph()
    if not substitutes or graph is forward or not isinstance(graph, FuncGraph):
        yield
        return
    # Rules call others, and the replicas of a strategy take turns in one graph while their rules wait for each other.
    entered = _substitutes.setdefault(graph, [])
    if not entered:
        capture = graph.capture

        def capture_substitute(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            for found in reversed(entered):
                tensor = found.get(id(tensor), tensor)
            return capture(tensor, *args, **kwargs)

        graph.capture = capture_substitute
    entered.append(substitutes)
    try:
        yield
    finally:
        entered[:] = [other for other in entered if other is not substitutes]
        if not entered:
            del graph.capture
            del _substitutes[graph]


# A captured tensor is kept for the gradient, whole: in a loop once for each step. The gradient of a loop computes the
# same ops in the loop (tensorflow/python/ops/while_v2.py), for gradient functions in Python alone.
class RuleGraph(FuncGraph):
    """The graph of a function that captures, instead of a tensor, the shape that it reads of the tensor."""

    def _create_op_internal(self, op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        reads_shapes = op_type in ("Shape", "Size", "Rank", "TensorListElementShape", "TensorListLength")
        is_filled = op_type in ("ZerosLike", "OnesLike") and inputs[0].dtype != tf.variant
        if not (reads_shapes or is_filled) or any(isinstance(t, EagerTensor) or t.graph is self for t in inputs):
            return super()._create_op_internal(op_type, inputs, *args, **kwargs)
        if reads_shapes:
            kwargs["name"] = op_type  # The name that it was given is unused in this graph, not in that one.
            with self.outer_graph.as_default():
                return self.outer_graph._create_op_internal(op_type, inputs, *args, **kwargs)
        fill = tf.zeros if op_type == "ZerosLike" else tf.ones
        return fill(tf.shape(inputs[0]), inputs[0].dtype).op


_python_functions: weakref.WeakKeyDictionary[Any, list[Callable[..., Any]]] = weakref.WeakKeyDictionary()


# tf.numpy_function calls its functions by number, and the numbers of one process name other functions in the next: a
# graph that is loaded there would call them.
def add_python_function(graph: Any, token: str, function: Callable[..., Any]) -> None:
    """Makes a function known to the op PyFunc for as long as the outermost graph lives, as TensorFlow does it."""
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    _python_functions.setdefault(graph, []).append(function)
    script_ops._py_funcs._funcs[token] = function


# Only the contexts of TensorFlow 1's control flow tell an op in a branch from one outside.
def is_in_conditional_of_tensorflow_1(op: Any) -> bool:
    """Whether an op stands between a Switch and a Merge."""
    flow = op._get_control_flow_context()
    while flow is not None:
        if flow.IsCondContext():
            return True
        flow = flow.outer_context
    return False


# What is traced for XLA is known while tracing; afterwards its own messages would not name the argument at fault.
def is_compiled_by_xla(graph: Any) -> bool:
    """Whether a graph is being made for tf.function(jit_compile=True)."""
    return control_flow_util.GraphOrParentsInXlaContext(graph)


# Where TensorFlow looks for the body of a loop or a branch before it makes it anew from its definition.
def keep_graphs_of_control_flow(op: Any) -> None:
    """Gives an imported loop or conditional graphs of its own, as those have that Python functions made.

    Each differentiation would otherwise make new ones, in which it does not find what the last one accumulated, and
    the third derivative would never end.
    """
    if op.type in ("While", "StatelessWhile"):
        names = ["_cond_graph", "_body_graph"]
        graphs = [while_v2._get_graph(op, attribute, f"_{attribute}_graph") for attribute in ("cond", "body")]
    elif op.type in ("If", "StatelessIf"):
        names = ["_true_graph", "_false_graph"]
        graphs = list(cond_v2.get_func_graphs(op))
    elif op.type in ("Case", "StatelessCase"):
        graphs = list(cond_v2.get_func_graphs(op))
        names = [f"_branch_graph_{i}" for i in range(len(graphs))]
    else:
        return
    for name, graph in zip(names, graphs, strict=True):
        setattr(op, name, graph)
        for inner in graph.get_operations():
            keep_graphs_of_control_flow(inner)


# The registry of gradients is what tf.gradients looks into; a tape can be given an op only together with its rule.
def gradient_function_of(op: Any) -> Any:
    """The registered gradient function of an op; None if it has no gradient, or is of a kind that has none."""
    try:
        return ops.get_gradient_function(op)
    except LookupError:
        return None
