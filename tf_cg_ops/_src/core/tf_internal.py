"""All private names of TensorFlow that this library uses, each with the reason why a public name will not do.

`tests/packaging/test_tf_internal.py` fails when TensorFlow changes one of them.
"""

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

# The type of a function. Deriving it takes long, and only Python code that calls the function needs it: only ops call
# rules, so rules get an empty type. tf.vectorized_map counts the outputs of functions that other ops call.
from tensorflow.core.function.polymorphism.function_type import FunctionType

# Traces a Python object by its identity. tf.function would look at the object in its __wrapped__ instead.
from tensorflow.core.function.trace_type.default_types import Tuple as _TupleType
from tensorflow.core.function.trace_type.default_types import Weakref as TraceTypeByIdentity

# Tells whether AutoGraph translates the calling code.
from tensorflow.python.autograph.core import ag_ctx as _autograph_context

# Stops AutoGraph from translating a function, or makes it translate one. tf.autograph.experimental.do_not_convert also
# enters a scope, and the other has no public name.
from tensorflow.python.autograph.impl import api as _autograph

# Whether a dtype has gradients: TensorFlow's own answer, which changes between versions.
from tensorflow.python.eager.backprop_util import IsTrainable as is_trainable

# Takes half the time of tf.compat.v1.placeholder, whose checks the graph of a function does not need.
from tensorflow.python.eager.graph_only_ops import graph_placeholder

# Make a function from a traced graph or its definition, without the wrapper, cache and counters of tf.function.
from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction, from_func_graph

# The tangents of tensors in all accumulators. The public method is for one accumulator. While one computes a tangent,
# it does not record, nor do new tapes in it; the second name lets them go on.
from tensorflow.python.eager.forwardprop_util import pack_tangents, push_forwardprop_state

# Tells whether anything records. If not, an eager call only has to run its op.
from tensorflow.python.eager.record import could_possibly_record

# Collects the variables that a function reads. tf.GradientTape.watched_variables needs a tape for that.
from tensorflow.python.eager.record import VariableWatcher

# Puts a Python closure on the tapes as a gradient function. tf.custom_gradient would add its own rules.
from tensorflow.python.eager.record import record_operation

# Tells whether a tape watches a tensor.
from tensorflow.python.eager.record import should_record_backprop

# Stops all tapes. tf.GradientTape.stop_recording stops only that tape.
from tensorflow.python.eager.record import stop_recording

# The differentiable Tensors of a composite such as RaggedTensor, and the composite with their gradients instead.
from tensorflow.python.framework.composite_tensor_gradient import get_flat_tensors_for_gradients
from tensorflow.python.framework.composite_tensor_gradient import replace_flat_tensors_for_gradients

# The format of a LiteRT model. The public interfaces run it, or print it as text.
from tensorflow.lite.python import schema_py_generated as lite_schema

# Finds gradient functions.
from tensorflow.python.framework import ops

# The type of an eager Tensor. tf.Tensor also covers tensors of a graph.
from tensorflow.python.framework.ops import EagerTensor

# The definition of an op: whether it is stateful, and its entry in the list of ops of a SavedModel.
from tensorflow.python.framework import op_def_registry

# The type of Tensors whose dtype gives way to others, in the NumPy behavior with conversion of dtypes.
from tensorflow.python.framework.weak_tensor import WeakTensor

# A graph that lists its captures, and the order of stateful ops in it. tf.function hides both.
from tensorflow.python.framework import auto_control_deps
from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies
from tensorflow.python.framework.func_graph import FuncGraph

# Tells a tensor of a resource which shapes the resource has. Only ops that make resources do so by themselves.
from tensorflow.python.ops.handle_data_util import copy_handle_data

# The graph of a FunctionDef, and its GraphDef: tf.graph_util.import_graph_def takes no FunctionDef.
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph, function_def_to_graph_def

# Tells whether XLA will compile the graph that is being traced.
from tensorflow.python.ops import control_flow_util

# Makes tapes watch a trainable variable, as reading it does.
from tensorflow.python.ops.resource_variable_ops import variable_accessed

# The shape and dtype of what a resource holds, and so of its gradient.
from tensorflow.python.ops.default_gradient import shape_and_dtype, supports_default_grad

# How TensorFlow differentiates loops and conditionals.
from tensorflow.python.ops import cond_v2
from tensorflow.python.ops import while_v2

# The registry in which the op PyFunc looks up its function.
from tensorflow.python.ops import script_ops

# Runs an op. The public functions for ops pass all attributes, and each attribute takes time.
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, core

# Runs and records an op of any type with given attributes. tf.raw_ops has a function with other parameters for each.
from tensorflow.python.eager import execute as _execute

# Tells whether a tape or an accumulator watches a tensor; should_record_backprop ignores accumulators.
from tensorflow.python.ops.gradients_util import PossibleTapeGradientTypes as possible_gradient_types

# Registers how an op is batched, for tf.vectorized_map and Jacobians.
from tensorflow.python.ops.parallel_for.pfor import ConversionNotImplementedError
from tensorflow.python.ops.parallel_for.pfor import RegisterPFor
from tensorflow.python.ops.parallel_for.pfor import _fallback_converter
from tensorflow.python.ops.parallel_for.pfor import _pfor_converter_registry as pfor_converters
from tensorflow.python.ops.parallel_for.pfor import wrap as wrap_for_pfor

# Read and write the structure of what a saved function takes and returns. Only SavedModels' own code can.
from tensorflow.python.saved_model.nested_structure_coder import decode_proto, encode_structure

# Reads the proto of a SavedModel. The public interface changes it by loading it into graphs.
from tensorflow.python.saved_model.loader_impl import parse_saved_model

# What a checkpoint says about its objects. TensorFlow writes it from objects alone.
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

# Writes the fingerprint of saved_model.pb: a changed file needs a new one.
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint

from tf_cg_ops._src.core import calls as _calls
from tf_cg_ops._src.core.library import SUPPORTED_TENSORFLOW

# The shape of an EagerTensor as a tuple, which hashes and compares ten times faster than a TensorShape.
shape_of = EagerTensor._shape_tuple

# The dtype of an EagerTensor as a number, without the Python code of its property.
dtype_number_of = EagerTensor._datatype_enum

# Python code takes its objects for eager Tensors. Its subclass EagerTensor, in C, cannot compute its value later.
EagerTensorBase: Any = EagerTensor.__base__


Marked = TypeVar("Marked", bound=Callable[..., Any])


# TensorFlow's decorator has no types, and would hide the signatures of public functions from type checkers.
def autograph_artifact(function: Marked) -> Marked:
    """Decorates a public function or class that AutoGraph must not translate."""
    return _autograph.autograph_artifact(function)


# A list for each thread. While NOT_TRANSLATED is its last item, AutoGraph does not translate. The context manager of
# tf.autograph.experimental.do_not_convert also appends such an item, but takes three times as long.
autograph_statuses = _autograph_context._control_ctx
NOT_TRANSLATED = _autograph_context.ControlStatusCtx(_autograph_context.Status.DISABLED)


# A tf.function without AutoGraph switches it off for the layers of tf_keras that it calls, too.
def autograph_scope() -> contextlib.AbstractContextManager[Any]:
    """A context in which AutoGraph translates as it does now."""
    return _autograph_context.control_status_ctx()


# TensorFlow translates a function that you pass to a loop like the code around the call.
def converted_by_autograph(function: Callable[..., Any], status: Any = None) -> Callable[..., Any]:
    """The function, translated by AutoGraph if the code that calls this library is, or code with this status."""
    return _autograph.tf_convert(function, status or _autograph_context.control_status_ctx())


# Attributes take half the time of an eager call, even with their default values.
def execute(op: str, *inputs_and_attributes: Any) -> Any:
    """Runs an op on EagerTensors. After these come the names and values of attributes that differ from the default.

    Use it only if nothing records: gradient functions ask the record for all attributes.
    """
    try:
        return pywrap_tfe.TFE_Py_FastPathExecute(context.context(), op, None, *inputs_and_attributes)
    except core._NotOkStatusException as error:
        ops.raise_from_not_ok_status(error, None)


# tf.debugging.enable_check_numerics is one, and names the op in its reports.
def are_ops_watched() -> bool:
    """Whether a debugger gets a callback for each op of this thread."""
    return bool(context.context().op_callbacks)


# On the same device TensorFlow does not copy, and tapes do not see it. The op Identity takes six times as long.
def same_buffer(tensor: Any) -> Any:
    """Another EagerTensor with the same buffer, for a tensor in the memory of this process."""
    try:
        return tensor._copy_to_device(tensor.backing_device)
    except core._NotOkStatusException as error:
        ops.raise_from_not_ok_status(error, None)


# stop_recording, and tf.init_scope, which uses it, also stop tapes that a user's function opens inside.
@contextlib.contextmanager
def resume_recording() -> Iterator[None]:
    """Records again inside of a stop_recording, if there is one."""
    if not pywrap_tfe.TFE_Py_TapeSetIsStopped():
        yield
        return
    pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        pywrap_tfe.TFE_Py_TapeSetStopOnThread()


# VariableWatcher would cost four calls of Python functions in every call of a decorated function.
def call_and_watch_variables(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Calls a function; returns its result and the trainable variables that it reads, as a VariableWatcher does."""
    watcher = pywrap_tfe.TFE_Py_VariableWatcherNew()
    try:
        result = function(*args, **kwargs)
    finally:
        pywrap_tfe.TFE_Py_VariableWatcherRemove(watcher)
    return result, pywrap_tfe.TFE_Py_VariableWatcherWatchedVariables(watcher)


# VariableWatcher only reports trainable variables, but a tape can watch others. TensorFlow reports each access to the
# default graph: to its method `watch_variable`, which eager mode does not have, or to the set of an inner graph.
@contextlib.contextmanager
def variable_accesses(accessed: list[Any]) -> Iterator[None]:
    """A context that appends each variable that is read inside to a list, trainable or not."""
    graph = ops.get_default_graph()
    if isinstance(graph, FuncGraph):
        before = graph._watched_variables
        graph._watched_variables = type(before)()
        try:
            yield
        finally:
            accessed.extend(graph._watched_variables)
            graph._watched_variables = before
            for variable in accessed:
                before.add(variable)
        return
    outer = getattr(graph, "watch_variable", None)
    graph.watch_variable = accessed.append
    try:
        yield
    finally:
        del graph.watch_variable
        if outer is not None:
            graph.watch_variable = outer
            for variable in accessed:
                outer(variable)


# VariableWatcher sorts variables by the numbers of their handles.
def creation_order(variable: Any) -> int:
    """A number that is larger for variables created later; 0 if it is not known."""
    return getattr(getattr(variable, "_handle", None), "_id", 0)


# The public way to add a function to a graph is to call it.
def add_function(graph: Any, function: Any) -> None:
    """Adds a function, and all that it calls, to a graph."""
    graph._add_function_recursive(function)


def holds_function(graph: Any, name: str) -> bool:
    """Whether the graph itself has a function with this name: tf.vectorized_map does not look further out."""
    return graph._get_function(name) is not None


def find_function(graph: Any, name: str) -> Any:
    """The function with this name in a graph or the graphs around it, or None."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function
        graph = getattr(graph, "outer_graph", None)
    return None


def function_def_of(function: Any) -> Any:
    """The FunctionDef of a function that a graph holds."""
    return function.cached_definition


# The public interface only makes functions by tracing.
def function_of_definition(definition: Any, called: list[Any], graph: Any = None) -> Any:
    """Makes a function from a FunctionDef, for ops that name it.

    `called` are the functions that it calls. When TensorFlow saves the function, it takes shapes and Python gradients
    from `graph`; by default that is a new graph made from the definition.
    """
    current = context.context()
    current.add_function_def(definition)
    if graph is None:
        with ops.Graph().as_default() as library:
            for function in called:
                library._add_function(function)
            graph = function_def_to_graph(definition, include_library_functions=False)
            for function in called:
                graph._add_function(function)
    outputs = _TupleType(*(tf.TensorSpec(None, output.type) for output in definition.signature.output_arg))
    function_type = FunctionType([], return_annotation=outputs)
    return AtomicFunction(definition.signature.name, current, function_type, called, cached_graph=graph)


# The gradient of a batched op can read tensors that TensorFlow did not convert, because the results do not need them.
def converted_for_pfor(pfor_input: Any, tensors: Sequence[Any]) -> list[tuple[Any, bool]]:
    """Converts tensors of one example to the whole batch, in the current graph; returns whether each is stacked, too.

    `pfor_input` comes from the conversion of an op of the example.
    """
    pfor = copy.copy(pfor_input.pfor)
    pfor._conversion_map = type(pfor._conversion_map)()
    pfor._conversion_map.update(pfor_input.pfor._conversion_map)
    converted = []
    for tensor in tensors:
        value = wrap_for_pfor(tensor, False) if isinstance(tensor, EagerTensor) else pfor._convert_helper(tensor)
        converted.append((value.t, value.is_stacked))
    return converted


# A graph captures a tensor at the first op that reads it, but tapes only see that if the op is recorded.
def capture(graph: Any, tensor: Any) -> Any:
    """The capture of a tensor in the graph of a function; in other graphs the tensor itself."""
    return graph.capture(tensor) if isinstance(graph, FuncGraph) else tensor


# Whether a tape is used up is private, and a gradient function can hide its tapes.
USED_UP_TAPE = "A non-persistent GradientTape can only be used to compute one set of gradients"


# Tapes and accumulators find a tensor by its capture, which TensorFlow only records when it makes a placeholder.
def record_capture(capture: Any, tensor: Any) -> None:
    """Tells tapes and accumulators that one tensor is the capture of another."""
    capture._record_tape(tensor)


# tf.gradients goes from a tensor to its capture by the list of captures.
def list_capture(graph: Any, tensor: Any, placeholder: Any) -> bool:
    """Lists a placeholder as the capture of a tensor, too; returns whether it was not listed before."""
    is_new = id(tensor) not in graph.function_captures.by_val_internal
    if is_new:
        graph.replace_capture(tensor, placeholder)
    return is_new


def unlist_capture(graph: Any, tensor: Any) -> None:
    """Undoes `list_capture`."""
    graph.function_captures.pop(id(tensor))


# A graph is part of a reference cycle, and holds what it captured until garbage is collected.
def forget_captures(graph: Any) -> None:
    """Lets a graph release the tensors and handles that it captured. It must not be called or copied any more."""
    graph.function_captures.clear()


# The functions of tf.raw_ops would derive the attributes again, which takes half the time of a trace.
def create_op(graph: Any, op_type: str, inputs: list[Any], attributes: dict[str, Any], **options: Any) -> Any:
    """Adds an op to a graph, with inputs from that graph and attributes as protos."""
    return graph._create_op_internal(op_type, inputs, attrs=attributes, **options)


# TensorFlow only records ops that its Python functions create, and these take other arguments for each type.
def run_like(op: Any, inputs: list[Any]) -> list[Any]:
    """Runs an op of a graph in eager mode, on other inputs, and records it as plain code does."""
    if op.type == "Const":
        return [tf.constant(tf.make_ndarray(op.get_attr("value")), op.outputs[0].dtype)]
    attributes = _attributes_of(op)
    outputs = _execute.execute(op.type, len(op.outputs), inputs, attributes, context.context())
    _execute.record_gradient(op.type, inputs, attributes, outputs)
    return outputs


def record_copy(op: Any) -> None:
    """Records an op that `create_op` made, as TensorFlow's Python functions do."""
    if op.inputs and op.outputs:
        _execute.record_gradient(op.type, list(op.inputs), _attributes_of(op), list(op.outputs))


def _attributes_of(op: Any) -> tuple[Any, ...]:
    """The names and values of all attributes, in the form in which TensorFlow's Python functions pass them."""
    flat: list[Any] = []
    for attribute in op.op_def.attr:
        value = op.get_attr(attribute.name)
        flat += [attribute.name, [*map(_plain, value)] if isinstance(value, list) else _plain(value)]
    return tuple(flat)


def _plain(value: Any) -> Any:
    if isinstance(value, tf.DType):
        return value.as_datatype_enum
    if isinstance(value, tf.compat.v1.NameAttrList):
        return value.name
    if type(value).__name__ == "TensorShapeProto":
        shape = tf.TensorShape(value)
        return None if shape.rank is None else shape.as_list()
    return value


# The graph in which TensorFlow builds the gradient of a tf.function does not order stateful ops, and only runs the ones
# that an output needs.
@contextlib.contextmanager
def control_dependencies_added(graph: Any) -> Iterator[AutomaticControlDependencies]:
    """Makes the stateful ops that are created inside run in order, without changing the graph's own settings."""
    before = graph._add_control_dependencies, graph.experimental_acd_manager
    order = AutomaticControlDependencies()
    order.__enter__()
    try:
        yield order
    finally:
        graph._add_control_dependencies, graph.experimental_acd_manager = before


# tf.function orders them when the trace is complete, the graph of a gradient or of TensorFlow 1 does not.
def orders_side_effects(graph: Any) -> bool:
    """Whether the stateful ops of a graph will run in the order in which they are created."""
    return isinstance(graph, FuncGraph) and graph._add_control_dependencies


# How TensorFlow decides which ops of a tf.function to order: not random numbers and collectives.
def is_ordered(op: Any) -> bool:
    """Whether an op in a graph reads or writes anything besides its inputs and outputs."""
    return auto_control_deps.op_is_stateful(op)


def is_read(op: Any) -> bool:
    """Whether an op only reads a resource, such as a variable."""
    return op.type in auto_control_deps.utils.RESOURCE_READ_OPS


# The public interface only lets an op wait for others when it is created.
def wait_for(op: Any, others: list[Any]) -> None:
    """Makes an op run after others, unless they are not in the same loop or branch of TensorFlow 1."""
    context = op._get_control_flow_context()
    op._add_control_inputs([other for other in others if other._get_control_flow_context() is context])


# All ops of a graph are created by this method, which the public create_op calls, too.
class FuncGraphWithMakeOp(FuncGraph):
    """The graph of a function, with a method that creates all its ops and that subclasses can override."""

    def make_op(self, op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes an op; the arguments are TensorFlow's."""
        return super()._create_op_internal(op_type, inputs, *args, **kwargs)

    def _create_op_internal(self, *args: Any, **kwargs: Any) -> Any:
        return self.make_op(*args, **kwargs)


_python_functions: weakref.WeakKeyDictionary[Any, list[Callable[..., Any]]] = weakref.WeakKeyDictionary()


# tf.numpy_function numbers its functions, so that in another process a loaded graph would call the wrong one.
def add_python_function(graph: Any, token: str, function: Callable[..., Any]) -> None:
    """Registers a function for the op PyFunc as long as the outermost graph lives, as TensorFlow does."""
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    _python_functions.setdefault(graph, []).append(function)
    script_ops._py_funcs._funcs[token] = function


# tf.convert_to_tensor copies the array, and takes longer than the rest of an eager call of Python code.
def tensor_of_own_array(array: Any) -> EagerTensor:
    """A Tensor for an array that nothing else uses: they can share memory."""
    return EagerTensor(array, context.context().device_name, None)


# The op PyFunc has only the name of its function.
def python_function(token: bytes) -> Callable[..., Any] | None:
    """The function that `add_python_function` or TensorFlow registered under this name."""
    return script_ops._py_funcs.get(tf.compat.as_str(token))


# An op with a converter has no other way to be converted as TensorFlow would convert it without one.
def converted_in_a_loop(pfor_input: Any) -> Any:
    """Converts an op as TensorFlow does if its type has no converter: calls it for one example after the other."""
    if not pfor_input.pfor.fallback_to_while_loop:
        raise ConversionNotImplementedError(
            f"No pfor vectorization defined for {pfor_input.op_type}\n{pfor_input.op}\n inputs: {pfor_input.inputs}. "
            "Consider enabling the fallback_to_while_loop option to pfor, which may run slower."
        )
    cause = "there is no registered converter for this op."
    return _fallback_converter(pfor_input, root_cause=cause, warn=pfor_input.pfor._warn)


# Only the control flow contexts of TensorFlow 1 know which ops are in a branch.
def is_in_v1_conditional(op: Any) -> bool:
    """Whether an op is between a Switch and a Merge."""
    flow = op._get_control_flow_context()
    while flow is not None:
        if flow.IsCondContext():
            return True
        flow = flow.outer_context
    return False


# An error while tracing can name the wrong argument; XLA's own messages do not.
def is_traced_for_xla(graph: Any) -> bool:
    """Whether a graph is being traced for tf.function(jit_compile=True)."""
    return control_flow_util.GraphOrParentsInXlaContext(graph)


# TensorFlow looks for these attributes first, and otherwise makes the graphs from their definitions.
def cache_control_flow_graphs(op: Any) -> None:
    """Keeps the graphs of an imported loop or conditional with its op, as tracing does.

    Otherwise each derivative would make new graphs without what the last one accumulated, and the third derivative
    would never end.
    """
    if op.type not in _calls.LOOPS | _calls.CONDITIONALS:
        return
    graphs = control_flow_graphs(op)
    if op.type in _calls.LOOPS:
        names = ["_cond_graph", "_body_graph"]
    elif op.type in ("If", "StatelessIf"):
        names = ["_true_graph", "_false_graph"]
    else:
        names = [f"_branch_graph_{i}" for i in range(len(graphs))]
    for name, graph in zip(names, graphs, strict=True):
        setattr(op, name, graph)
        for inner in graph.get_operations():
            cache_control_flow_graphs(inner)


# tf.gradients looks into this registry; recording an op on a tape needs its gradient function, too.
def find_gradient_function(op: Any) -> Any:
    """The registered gradient function of an op, or None."""
    try:
        return ops.get_gradient_function(op)
    except LookupError:
        return None


def lacks_gradient(op: Any) -> bool:
    """Whether TensorFlow has no gradient of an op. For some, such as OnesLike, it knows that there is none."""
    try:
        ops.get_gradient_function(op)
    except LookupError:
        return True
    return False


# TensorFlow keeps the user's gradient function and the number of results in closures, and nowhere else.
def has_python_gradient(op: Any) -> bool:
    """Whether an op of `tf.custom_gradient` has a gradient of its own, a Python function."""
    # Ops that call Python functions have this attribute, too, so that they cannot be saved.
    return op.type in ("Identity", "IdentityN") and "_gradient_op_type" in op.node_def.attr


def name_of_python_gradient(op: Any) -> str:
    """The name of the function of `tf.custom_gradient` that made the op; empty in a loaded model."""
    function = _closed_over(op, "grad_fn")
    names = getattr(function, "__qualname__", "").split(".<locals>")
    return names[-2].rpartition(".")[2] if len(names) > 1 else ""


def num_results_of_python_gradient(op: Any) -> int | None:
    """How many results the function of `tf.custom_gradient` that made the op has; None in a loaded model."""
    return _closed_over(op, "flat_result_len")


def _closed_over(op: Any, variable: str) -> Any:
    """A variable of the call of `tf.custom_gradient` that made the op; None for an op that has no such call."""
    value = find_gradient_function(op)
    if getattr(value, "__module__", None) != tf.custom_gradient.__module__:
        return None  # Such as the gradient of an op in a loaded model.
    for name in ("tape_grad_fn", variable):
        names = getattr(getattr(value, "__code__", None), "co_freevars", ())
        if name not in names:
            raise RuntimeError(
                f"tf_cg_ops: tf.custom_gradient must have a variable '{name}', got none: TensorFlow {tf.__version__} "
                f"has renamed it. Install TensorFlow {SUPPORTED_TENSORFLOW}."
            )
        value = value.__closure__[names.index(name)].cell_contents
    return value


# tf.Operation has a public method to read attributes, but not to write them.
def set_attribute(op: Any, name: str, value: Any) -> None:
    """Sets an attribute of an op in a graph, as a proto."""
    op._set_attr(name, value)


# Only the AtomicFunction still has its graph, with the Python gradients of the ops.
def graph_of_function(function: Any) -> Any:
    """The graph of a function that a graph holds; None for one that `Defun` of TensorFlow 1 made, as in ctc_loss."""
    return getattr(function, "graph", None)


# The attributes of these ops only name functions. Their graphs, with the Python gradients of the ops, are kept beside.
def control_flow_graphs(op: Any) -> list[Any]:
    """The graphs of the functions of a loop (its condition first) or of the branches of a conditional."""
    if op.type in _calls.LOOPS:
        # Under a ForwardAccumulator, TensorFlow changes a loop without updating the graphs that it keeps.
        if len(getattr(op, "_body_graph", op).inputs) != len(op.inputs):
            del op._cond_graph, op._body_graph
        return [while_v2._get_graph(op, name, f"_{name}_graph") for name in ("cond", "body")]
    return list(cond_v2.get_func_graphs(op))


# After any TypeError, even from a gradient function, a plain call tries another signature and joins both messages.
def call_trace(trace: Any, *tensors: Any) -> Any:
    """Calls a trace, a ConcreteFunction of Tensors."""
    return trace._call_flat(list(tensors), trace.captured_inputs)


# The operators of a model are numbers, and have a name only if they are not built in.
def custom_ops_of_lite_model(content: bytes) -> list[str]:
    """The names of the ops in a LiteRT model that are not built into LiteRT."""
    model = lite_schema.ModelT.InitFromPackedBuf(content, 0)
    return [tf.compat.as_str(code.customCode) for code in model.operatorCodes if code.customCode]
