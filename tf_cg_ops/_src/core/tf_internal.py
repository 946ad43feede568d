"""Private names of TensorFlow, used here and nowhere else, each with the reason why no public name will do.

`tests/packaging/test_tf_internal.py` fails when TensorFlow changes one of them.
"""

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

# The type of a function, which takes long to derive. Only Python code that calls a function needs it: rules,
# which ops call, get an empty one.
from tensorflow.core.function.polymorphism.function_type import FunctionType

# Traces a Python object by its identity. tf.function would look at the object in its __wrapped__ instead.
from tensorflow.core.function.trace_type.default_types import Weakref as TraceTypeByIdentity

# Whether AutoGraph translates the code that calls: no public name tells.
from tensorflow.python.autograph.core import ag_ctx as _autograph_context

# Keeps AutoGraph from translating a function, or has it translate one. tf.autograph.experimental.do_not_convert also
# enters a scope, and for the other there is no public name.
from tensorflow.python.autograph.impl import api as _autograph

# Whether a dtype has gradients: TensorFlow's own answer, which changes between versions.
from tensorflow.python.eager.backprop_util import IsTrainable as is_trainable

# Takes half the time of tf.compat.v1.placeholder, which makes checks that no graph of a function needs.
from tensorflow.python.eager.graph_only_ops import graph_placeholder

# Make a function of a traced graph, or of its definition, without the wrapper, cache and call counters of tf.function.
from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction, from_func_graph

# TensorFlow's own warning about too many traces, which it gives for calls of a tf.function alone.
from tensorflow.python.eager.polymorphic_function.polymorphic_function import (
    _frequent_tracing_detector_manager as frequent_tracing,
)

# The tangents that accumulators have of some tensors. An accumulator tells only its own.
from tensorflow.python.eager.forwardprop_util import pack_tangents

# Whether anything records at all: if nothing does, an eager call only has to run its op.
from tensorflow.python.eager.record import could_possibly_record

# The variables that a function reads. tf.GradientTape.watched_variables knows only those read under that very tape.
from tensorflow.python.eager.record import VariableWatcher

# Puts a Python closure on the tapes as a gradient function. tf.custom_gradient does so with its own rules.
from tensorflow.python.eager.record import record_operation

# Whether a tape watches a tensor: no public name tells.
from tensorflow.python.eager.record import should_record_backprop

# Computes without any tape. tf.GradientTape.stop_recording stops only that tape.
from tensorflow.python.eager.record import stop_recording

# The differentiable Tensors of a composite such as RaggedTensor, and the composite with their gradients instead.
from tensorflow.python.framework.composite_tensor_gradient import get_flat_tensors_for_gradients
from tensorflow.python.framework.composite_tensor_gradient import replace_flat_tensors_for_gradients

# Finds gradient functions.
from tensorflow.python.framework import ops

# The type of an eager Tensor: tf.Tensor stands for those of graphs, too.
from tensorflow.python.framework.ops import EagerTensor

# The definition of an op: whether it is stateful, and its entry in the list of ops of a SavedModel.
from tensorflow.python.framework import op_def_registry

# A graph with a list of its captures, which tf.function hides in its calls; and the order of its stateful ops.
from tensorflow.python.framework import auto_control_deps
from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies
from tensorflow.python.framework.func_graph import FuncGraph

# The graph of a FunctionDef, and its GraphDef: tf.graph_util.import_graph_def takes no FunctionDef.
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph, function_def_to_graph_def

# Keeps the variables that tf.compat.v1.get_variable makes in eager mode.
from tensorflow.python.ops.variable_scope import EagerVariableStore

# Whether XLA will compile the graph that is being traced.
from tensorflow.python.ops import control_flow_util

# The shape and dtype of the contents of a resource, which its gradient has: no public name tells.
from tensorflow.python.ops.default_gradient import shape_and_dtype, supports_default_grad

# How TensorFlow differentiates loops and conditionals.
from tensorflow.python.ops import cond_v2
from tensorflow.python.ops import while_v2

# The registry in which the op PyFunc looks up its function.
from tensorflow.python.ops import script_ops

# Runs an op. The generated functions of ops call it with all attributes, and each attribute costs time.
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, core

# Whether a tape or an accumulator watches a tensor: should_record_backprop knows nothing of accumulators.
from tensorflow.python.ops.gradients_util import PossibleTapeGradientTypes as possible_gradient_types

# Registers how an op is batched, for tf.vectorized_map and Jacobians.
from tensorflow.python.ops.parallel_for.pfor import ConversionNotImplementedError
from tensorflow.python.ops.parallel_for.pfor import RegisterPFor
from tensorflow.python.ops.parallel_for.pfor import wrap as wrap_for_pfor

# The structure of what a saved function returns: the loader of SavedModels reads it, and nothing public does.
from tensorflow.python.saved_model.nested_structure_coder import decode_proto

# Reads the proto of a SavedModel. The public interface loads it into graphs, which changes it.
from tensorflow.python.saved_model.loader_impl import parse_saved_model

# Writes the fingerprint of saved_model.pb, which depends on its bytes: a changed file needs a new one.
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint

from tf_cg_ops._src.core import calls as _calls

# The shape of an EagerTensor as a tuple: it hashes and compares in a tenth of the time of a TensorShape.
shape_of = EagerTensor._shape_tuple

# The dtype of an EagerTensor as a number, without the Python code of its property.
dtype_number_of = EagerTensor._datatype_enum

# Python code takes its objects for eager Tensors. EagerTensor, its subclass in C, cannot wait for its value.
EagerTensorBase: Any = EagerTensor.__base__


Marked = TypeVar("Marked", bound=Callable[..., Any])


# TensorFlow's decorator has no types, and would hide the signatures of public functions from type checkers.
def autograph_artifact(function: Marked) -> Marked:
    """Decorates a public function or class whose code AutoGraph must not translate."""
    return _autograph.autograph_artifact(function)


# The list of a thread. While NOT_TRANSLATED is the last item, AutoGraph translates nothing. The context manager of
# tf.autograph.experimental.do_not_convert makes and appends such an item in three times the time.
autograph_statuses = _autograph_context._control_ctx
NOT_TRANSLATED = _autograph_context.ControlStatusCtx(_autograph_context.Status.DISABLED)


# A tf.function without AutoGraph switches it off for the layers of tf_keras that it calls, too.
def autograph_scope() -> contextlib.AbstractContextManager[Any]:
    """A context in which AutoGraph translates as it does now."""
    return _autograph_context.control_status_ctx()


# A function that is passed to a loop of TensorFlow is translated like the code around the call.
def converted_by_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as AutoGraph translates it, if it translates the code that calls this library."""
    return _autograph.tf_convert(function, _autograph_context.control_status_ctx())


# Attributes take half the time of an eager call, also those with their default values.
def execute(op: str, *inputs_and_attributes: Any) -> Any:
    """Runs an op on EagerTensors, followed by the names and values of attributes that differ from their defaults.

    Use it only if nothing records: gradient functions ask the record for all attributes.
    """
    try:
        return pywrap_tfe.TFE_Py_FastPathExecute(context.context(), op, None, *inputs_and_attributes)
    except core._NotOkStatusException as error:
        ops.raise_from_not_ok_status(error, None)


# tf.debugging.enable_check_numerics, for example, names the op in its reports.
def are_ops_watched() -> bool:
    """Whether functions of a debugger see each op of this thread."""
    return bool(context.context().op_callbacks)


# TensorFlow makes no copy on the same device, and tapes do not see it. The op Identity takes six times as long.
def same_buffer(tensor: Any) -> Any:
    """Another EagerTensor with the buffer of one that is in the memory of this process."""
    try:
        return tensor._copy_to_device(tensor.backing_device)
    except core._NotOkStatusException as error:
        ops.raise_from_not_ok_status(error, None)


# tf.init_scope stops all recording on the thread, also that of tapes opened inside, and ends by what was before.
@contextlib.contextmanager
def recording_init_scope() -> Iterator[None]:
    """tf.init_scope that leaves recording on or off as it was."""
    stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()
    with ops.init_scope():
        if not stopped:
            pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
        yield


# stop_recording also stops the tapes that a user's function opens inside.
@contextlib.contextmanager
def resume_recording() -> Iterator[None]:
    """Records again inside of stop_recording."""
    pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        pywrap_tfe.TFE_Py_TapeSetStopOnThread()


# VariableWatcher is four calls of Python functions, in every call of a decorated function.
def call_and_watch_variables(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What the function returns, and the trainable variables that it has read, as VariableWatcher knows them."""
    watcher = pywrap_tfe.TFE_Py_VariableWatcherNew()
    try:
        result = function(*args, **kwargs)
    finally:
        pywrap_tfe.TFE_Py_VariableWatcherRemove(watcher)
    return result, pywrap_tfe.TFE_Py_VariableWatcherWatchedVariables(watcher)


# VariableWatcher knows only trainable variables, but a tape may watch any. TensorFlow reports accesses to the default
# graph: to its method `watch_variable`, which that of eager mode does not have, and from inner graphs to the set.
@contextlib.contextmanager
def variable_accesses(accessed: list[Any]) -> Iterator[None]:
    """A context that adds to a list each variable that is read in it, trainable or not."""
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


# The store in which tf.compat.v1.get_variable looks is the item of this collection.
def eager_variable_store() -> Any:
    """The store that keeps variables made in eager mode, such as a template has; None if none does."""
    return next((store for store in ops.get_collection(("__variable_store",)) if store._store_eager_variables), None)


# In eager mode, ops read their variables in C++, which reports trainable ones alone (pywrap_tfe_src.cc).
@contextlib.contextmanager
def reported_accesses(variables: list[Any]) -> Iterator[None]:
    """A context in which VariableWatcher reports these variables, too: they count as trainable."""
    variables = [variable for variable in variables if not variable.trainable]
    for variable in variables:
        variable._trainable = True
    try:
        yield
    finally:
        for variable in variables:
            variable._trainable = False


# VariableWatcher sorts variables by the numbers of their handles.
def creation_order(variable: Any) -> int:
    """A number that is larger for a variable that was made later; 0 if it cannot be told."""
    return getattr(getattr(variable, "_handle", None), "_id", 0)


# The public interface adds a function to a graph only by calling it.
def add_function(graph: Any, function: Any) -> None:
    """Adds a function, and all that it calls, to a graph."""
    graph._add_function_recursive(function)


def holds_function(graph: Any, name: str) -> bool:
    """Whether the graph itself has a function of that name: tf.vectorized_map asks only the graph of an op."""
    return graph._get_function(name) is not None


def find_function(graph: Any, name: str) -> Any:
    """The function of that name in a graph or a graph around it; None if there is none."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function
        graph = getattr(graph, "outer_graph", None)
    return None


def function_def_of(function: Any) -> Any:
    """The FunctionDef of a function that a graph holds."""
    return function.cached_definition


# The public interface makes functions by tracing alone.
def function_of_definition(definition: Any, called: list[Any], graph: Any = None) -> Any:
    """A function of this FunctionDef, for ops that name it.

    `called` are the functions that it needs. The graph, from which TensorFlow takes shapes and Python gradients when it
    saves the function, is made of the definition if it is not given.
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
    return AtomicFunction(definition.signature.name, current, FunctionType([]), called, cached_graph=graph)


# The gradient of an op in a batch may read tensors that TensorFlow did not convert, because no result depends on them.
def converted_for_pfor(pfor_input: Any, tensors: Sequence[Any]) -> list[tuple[Any, bool]]:
    """The values, for a whole batch, of tensors of one example, made in the current graph; and whether each is stacked.

    `pfor_input` is what an op of the example was converted with.
    """
    pfor = copy.copy(pfor_input.pfor)
    pfor._conversion_map = type(pfor._conversion_map)()
    pfor._conversion_map.update(pfor_input.pfor._conversion_map)
    converted = []
    for tensor in tensors:
        value = wrap_for_pfor(tensor, False) if isinstance(tensor, EagerTensor) else pfor._convert_helper(tensor)
        converted.append((value.t, value.is_stacked))
    return converted


# A graph captures a tensor at the first op that reads it, and tapes learn of that only if the op is recorded.
def capture(graph: Any, tensor: Any) -> Any:
    """Returns the capture of a tensor in the graph of a function; in other graphs, the tensor itself."""
    return graph.capture(tensor) if isinstance(graph, FuncGraph) else tensor


# The functions of tf.raw_ops derive the attributes again, which takes half the time of a trace.
def create_op(graph: Any, op_type: str, inputs: list[Any], attributes: dict[str, Any], **options: Any) -> Any:
    """Adds an op to a graph, with inputs of that graph and attributes as protos."""
    return graph._create_op_internal(op_type, inputs, attrs=attributes, **options)


# The graph in which TensorFlow builds the gradient of a tf.function has no order of stateful ops, and runs only those
# that an output needs.
@contextlib.contextmanager
def control_dependencies_added(graph: Any) -> Iterator[AutomaticControlDependencies]:
    """Has the stateful ops made inside run in their order; leaves what the graph itself does with its ops as it was."""
    before = graph._add_control_dependencies, graph.experimental_acd_manager
    order = AutomaticControlDependencies()
    order.__enter__()
    try:
        yield order
    finally:
        graph._add_control_dependencies, graph.experimental_acd_manager = before


# TensorFlow's own answer, as it orders the ops of a tf.function: not for random numbers and collectives.
def is_ordered(op: Any) -> bool:
    """Whether an op of a graph writes or reads something beside its inputs and outputs."""
    return auto_control_deps.op_is_stateful(op)


def is_read(op: Any) -> bool:
    """Whether an op only reads a resource, such as a variable."""
    return op.type in auto_control_deps.utils.RESOURCE_READ_OPS


# There is no public way to have an op wait after it was made.
def wait_for(op: Any, others: list[Any]) -> None:
    """Has an op of a graph run after others, unless it stands in a loop or branch of TensorFlow 1 and they do not."""
    context = op._get_control_flow_context()
    op._add_control_inputs([other for other in others if other._get_control_flow_context() is context])


# tf.raw_ops and all others make the ops of a graph by this method; the public create_op calls it, too.
class FuncGraphWithMakeOp(FuncGraph):
    """The graph of a function, with a method that makes all its ops, for subclasses to override."""

    def make_op(self, op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes an op; the arguments are TensorFlow's."""
        return super()._create_op_internal(op_type, inputs, *args, **kwargs)

    def _create_op_internal(self, *args: Any, **kwargs: Any) -> Any:
        return self.make_op(*args, **kwargs)


_python_functions: weakref.WeakKeyDictionary[Any, list[Callable[..., Any]]] = weakref.WeakKeyDictionary()


# tf.numpy_function calls its functions by number. In another process the number names another function, which a loaded
# graph would call.
def add_python_function(graph: Any, token: str, function: Callable[..., Any]) -> None:
    """Registers a function for the op PyFunc while the outermost graph lives, as TensorFlow does."""
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    _python_functions.setdefault(graph, []).append(function)
    script_ops._py_funcs._funcs[token] = function


# Only the contexts of TensorFlow 1's control flow tell an op in a branch from one outside.
def is_in_v1_conditional(op: Any) -> bool:
    """Whether an op stands between a Switch and a Merge."""
    flow = op._get_control_flow_context()
    while flow is not None:
        if flow.IsCondContext():
            return True
        flow = flow.outer_context
    return False


# An error raised while tracing can name the argument at fault; XLA's own messages do not.
def is_traced_for_xla(graph: Any) -> bool:
    """Whether a graph is being traced for tf.function(jit_compile=True)."""
    return control_flow_util.GraphOrParentsInXlaContext(graph)


# TensorFlow looks for these attributes before it makes the graph of a body or a branch from its definition.
def cache_control_flow_graphs(op: Any) -> None:
    """Keeps the graphs of an imported loop or conditional on its op, as tracing does.

    Otherwise each differentiation makes new graphs, does not find what the last one accumulated, and the third
    derivative never ends.
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


# tf.gradients looks into this registry; to record an op on a tape takes its gradient function, too.
def find_gradient_function(op: Any) -> Any:
    """The registered gradient function of an op; None if it is not differentiable or has none."""
    try:
        return ops.get_gradient_function(op)
    except LookupError:
        return None


# TensorFlow keeps the user's gradient function in closures, and its name nowhere else.
def name_of_python_gradient(op: Any) -> str:
    """The name of the function of `tf.custom_gradient` that made the op; empty in a loaded model."""
    function = find_gradient_function(op)
    for variable in ("tape_grad_fn", "grad_fn"):
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        function = function.__closure__[names.index(variable)].cell_contents if variable in names else None
    names = getattr(function, "__qualname__", "").split(".<locals>")
    return names[-2].rpartition(".")[2] if len(names) > 1 else ""


# tf.Operation has a public method to read an attribute, and none to write one.
def set_attribute(op: Any, name: str, value: Any) -> None:
    """Sets an attribute of an op in a graph, as a proto."""
    op._set_attr(name, value)


# Only the AtomicFunction has the graph that it was made of, with the Python gradients of its ops.
def graph_of_function(function: Any) -> Any:
    """The graph of a function that a graph holds."""
    return function.graph


# The attributes of these ops name functions; their graphs, with the Python gradients of the ops inside, stand beside.
def control_flow_graphs(op: Any) -> list[Any]:
    """The graphs of the functions of a loop (its condition first) or of the branches of a conditional."""
    if op.type in _calls.LOOPS:
        # Under a ForwardAccumulator, TensorFlow changes a loop before it notes the graphs, which are then out of date.
        if len(getattr(op, "_body_graph", op).inputs) != len(op.inputs):
            del op._cond_graph, op._body_graph
        return [while_v2._get_graph(op, name, f"_{name}_graph") for name in ("cond", "body")]
    return list(cond_v2.get_func_graphs(op))


# After any TypeError, such as one of a gradient function, a plain call tries another signature and joins both messages.
def call_trace(trace: Any, *tensors: Any) -> Any:
    """Calls a trace, a ConcreteFunction of Tensors."""
    return trace._call_flat(list(tensors), trace.captured_inputs)
