"""The private names of TensorFlow that the package uses: each is there and does what it is used for."""

import gc
import inspect

import pytest
import tensorflow as tf

from tf_cg_ops._src.core import rule_graph, tf_internal


def test_every_name_is_there():
    names = [name for name, value in vars(tf_internal).items() if not name.startswith("_")]
    assert sorted(names) == [
        "Any",
        "AtomicFunction",
        "AutomaticControlDependencies",
        "Callable",
        "ConversionNotImplementedError",
        "EagerTensor",
        "EagerTensorBase",
        "FuncGraph",
        "FuncGraphWithMakeOp",
        "FunctionType",
        "Iterator",
        "Marked",
        "RegisterPFor",
        "TraceTypeByIdentity",
        "TypeVar",
        "VariableWatcher",
        "add_function",
        "add_python_function",
        "auto_control_deps",
        "autograph_artifact",
        "autograph_scope",
        "cache_control_flow_graphs",
        "capture",
        "cond_v2",
        "context",
        "contextlib",
        "control_dependencies_added",
        "control_flow_graphs",
        "control_flow_util",
        "converted_by_autograph",
        "core",
        "could_possibly_record",
        "create_op",
        "creation_order",
        "decode_proto",
        "execute",
        "execute_unrecorded",
        "find_function",
        "find_gradient_function",
        "frequent_tracing",
        "from_func_graph",
        "function_def_of",
        "function_def_to_graph",
        "function_def_to_graph_def",
        "function_of_definition",
        "get_flat_tensors_for_gradients",
        "graph_of_function",
        "graph_placeholder",
        "is_in_v1_conditional",
        "is_ordered",
        "is_read",
        "is_traced_for_xla",
        "is_trainable",
        "op_def_registry",
        "ops",
        "parse_saved_model",
        "possible_gradient_types",
        "pywrap_tfe",
        "record_operation",
        "recording_init_scope",
        "replace_flat_tensors_for_gradients",
        "reported_accesses",
        "script_ops",
        "set_attribute",
        "shape_and_dtype",
        "shape_of",
        "should_record_backprop",
        "stop_recording",
        "supports_default_grad",
        "variable_accesses",
        "wait_for",
        "weakref",
        "while_v2",
        "wrap_for_pfor",
        "write_fingerprint",
    ]


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_signatures_are_those_that_are_called():
    assert parameters(tf_internal.record_operation)[:4] == [
        "op_type",
        "output_tensors",
        "input_tensors",
        "backward_function",
    ]
    assert parameters(tf_internal.FuncGraph)[0] == "name"
    assert parameters(tf_internal.AutomaticControlDependencies.mark_as_return) == ["self", "tensor"]
    assert parameters(tf_internal.from_func_graph)[:4] == ["name", "graph", "attrs", "function_type"]
    assert parameters(tf_internal.function_def_to_graph_def)[0] == "fdef"
    assert parameters(tf_internal.AtomicFunction)[:4] == ["name", "bound_context", "function_type", "children"]


def test_record_operation_puts_a_closure_on_the_tape():
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with tf_internal.stop_recording():
            y = tf.identity(x)
        tf_internal.record_operation("name", [y], [x], lambda dy: [3.0 * dy])
    assert tape.gradient(y, x) == 3.0


def test_execute_runs_an_op_and_raises_its_errors():
    assert tf_internal.execute("Add", tf.constant(1.0), tf.constant(2.0)) == 3.0
    assert tf_internal.execute("Sum", tf.ones([1, 2]), tf.constant(0), "keep_dims", True).shape == [1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible shapes"):
        tf_internal.execute("Add", tf.ones([2]), tf.ones([3]))


def test_execute_unrecorded_is_on_no_tape_and_goes_on_recording_afterwards():
    x = tf.constant(1.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        unseen = tf_internal.execute_unrecorded("Neg", x)
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf_internal.execute_unrecorded("Add", tf.ones([2]), tf.ones([3]))
        seen = 2.0 * x
    assert tape.gradient(unseen, x) is None
    assert tape.gradient(seen, x) == 2.0


def test_a_scope_outside_of_all_graphs_leaves_recording_as_it_was():
    x = tf.constant(3.0)
    with tf_internal.recording_init_scope(), tf.GradientTape() as inside:
        inside.watch(x)
        y = x * x
    assert inside.gradient(y, x) == 6.0
    with tf.GradientTape() as tape:
        tape.watch(x)
        with tf_internal.stop_recording():
            with tf_internal.recording_init_scope():
                assert not tf_internal.could_possibly_record()
            assert not tf_internal.could_possibly_record()
        with tf_internal.recording_init_scope():
            assert tf_internal.could_possibly_record()
        y = x * x
    assert tape.gradient(y, x) == 6.0


def test_the_graph_of_a_rule_captures_the_shape_of_an_outer_tensor_and_nothing_of_its_own():
    large = tf.range(200.0)  # TensorFlow captures small constants by their values.

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x):
        graph = rule_graph.RuleGraph("rule")
        with graph.as_default():
            zeros_of_outer = tf.zeros_like(x)
            own = tf.compat.v1.placeholder(tf.float32, [None])
            shape, zeros = tf.raw_ops.Shape(input=own), tf.raw_ops.ZerosLike(x=own)
            of_eager = tf.raw_ops.Shape(input=large)
        captured = [outer for outer, _ in graph.captures]
        assert [tensor.op.type for tensor in captured if tensor is not large] == ["Shape"]
        assert captured[0].op.inputs[0] is x
        assert captured[-1] is large
        assert {tensor.graph for tensor in (zeros_of_outer, shape, zeros, of_eager)} == {graph}
        assert shape.op.inputs[0] is own
        assert zeros.op.inputs[0] is own
        return x

    run.get_concrete_function()


def test_the_graph_of_a_rule_fills_tensors_like_outer_ones():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x):
        graph = rule_graph.RuleGraph("rule")
        with graph.as_default():
            filled = [tf.raw_ops.ZerosLike(x=x), tf.raw_ops.OnesLike(x=x)]
        return [tf.get_static_value(tensor.op.inputs[1]).tolist() for tensor in filled]

    assert [tensor.numpy() for tensor in run(tf.constant([5.0, 7.0]))] == [0.0, 1.0]


def test_recording_and_watching_are_seen_as_tapes_do_them():
    x, other = tf.constant(1.0), tf.constant(1.0)
    assert not tf_internal.could_possibly_record()
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert tf_internal.could_possibly_record()
        assert tf_internal.possible_gradient_types([x])
        assert not tf_internal.possible_gradient_types([other])
        with tape.stop_recording():
            assert not tf_internal.could_possibly_record()
        with tf_internal.stop_recording():
            assert not tf_internal.could_possibly_record()
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)):
        assert tf_internal.could_possibly_record()
        assert tf_internal.possible_gradient_types([x])
        assert not tf_internal.possible_gradient_types([other])


def test_shape_of_an_eager_tensor_is_a_tuple():
    assert type(tf.constant(1.0)) is tf_internal.EagerTensor
    assert [tf_internal.shape_of(tf.zeros(shape)) for shape in ([], [2, 0])] == [(), (2, 0)]


def test_an_object_of_the_base_of_eager_tensors_is_a_tensor_for_ops_and_tapes():
    class Lazy(tf_internal.EagerTensorBase):
        def __tf_tensor__(self, dtype=None, name=None):
            return x.__tf_tensor__(dtype, name)

        def _datatype_enum(self):
            return x.dtype.as_datatype_enum

        def _shape_tuple(self):
            return tuple(x.shape)

        @property
        def shape(self):
            return x.shape

        @property
        def _id(self):
            return x._id

    x = tf.constant([3.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = [Lazy() * Lazy(), tf.square(Lazy()), tf.function(lambda t: 2.0 * t)(Lazy())]
    assert [part.numpy().tolist() for part in y] == [[9.0, 16.0], [9.0, 16.0], [6.0, 8.0]]
    assert tape.gradient(y, x).numpy().tolist() == [14.0, 18.0]


def test_control_dependencies_of_a_part_of_a_graph_leave_those_of_the_graph():
    with tf.Graph().as_default() as graph:
        before = graph._add_control_dependencies, graph.experimental_acd_manager
        with tf_internal.control_dependencies_added(graph) as order:
            assert graph._add_control_dependencies
            assert graph.experimental_acd_manager is order
        assert (graph._add_control_dependencies, graph.experimental_acd_manager) == before


def test_which_ops_are_ordered_and_which_only_read():
    with tf.Graph().as_default():
        variable = tf.Variable(0.0, use_resource=True)
        read, constant, printed = (
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32).op,
            tf.constant(0.0).op,
            tf.print(1),
        )
        written = tf.raw_ops.AssignVariableOp(resource=variable.handle, value=1.0)
        drawn = tf.raw_ops.RandomUniform(shape=[1], dtype=tf.float32).op
        every = [read, written, printed, drawn, constant]
        assert [tf_internal.is_ordered(op) for op in every] == [True, True, True, False, False]
        assert [tf_internal.is_read(op) for op in every] == [True, False, False, False, False]
        tf_internal.wait_for(printed, [constant])
        assert printed.control_inputs == [constant]


def test_variable_watcher_sees_trainable_variables_in_inner_graphs():
    read, frozen = tf.Variable(1.0), tf.Variable(1.0, trainable=False)
    with tf_internal.VariableWatcher() as watcher:
        tf.function(lambda: read + frozen)()
    assert [v is read for v in watcher.watched_variables()] == [True]


def test_variables_that_are_not_trainable_are_seen_in_graphs_and_stay_those_of_the_graph():
    v, earlier = tf.Variable(1.0, trainable=False), tf.Variable(2.0, trainable=False)
    found = []

    @tf.function
    def run(n):
        tf.identity(earlier)
        with tf_internal.variable_accesses(found):
            for _ in tf.range(n):
                tf.identity(v)

    graph = run.get_concrete_function(tf.constant(2)).graph
    assert [id(variable) for variable in found] == [id(v)]
    assert {id(variable) for variable in graph.variables} == {id(v), id(earlier)}


def test_a_traced_function_tells_its_captures_and_its_body():
    with tf.Graph().as_default() as graph:
        captured = tf.constant(2.0)
        inner = tf_internal.FuncGraph("f")
        with inner.as_default():
            x = tf.compat.v1.placeholder(tf.float32, [])
            inner.inputs = [x]
            inner.outputs.append(x * captured)
            inner.structured_outputs = inner.outputs
            inner.structured_input_signature = ((tf.TensorSpec([]),), {})
            inner.inputs = [x, *inner.internal_captures]
        assert [capture is captured for capture in inner.external_captures] == [True]
        function = tf_internal.from_func_graph("f", inner, {})
        tf_internal.add_function(graph, function)
        assert tf_internal.find_function(graph, function.name) is function
        assert tf_internal.find_function(graph, "no_such_function") is None
        definition = tf_internal.function_def_of(function)
        graph_def, names = tf_internal.function_def_to_graph_def(definition)
    assert [node.op for node in graph_def.node[:2]] == ["Placeholder", "Placeholder"]
    (returned,) = definition.ret.values()
    assert names[returned].split(":")[0] in {node.name for node in graph_def.node}


def test_the_graphs_of_calls_loops_and_conditionals():
    @tf.function
    def function(x):
        called = tf.function(lambda x: tf.sin(x))(x)
        looped = tf.while_loop(lambda x: x < 1.0, lambda x: tf.exp(x), [called])[0]
        return tf.cond(x > 0.0, lambda: tf.cos(looped), lambda: tf.tan(looped))

    graph = function.get_concrete_function(tf.TensorSpec([])).graph
    ops = {op.type: op for op in graph.get_operations()}
    name = ops["PartitionedCall"].get_attr("f").name
    graphs = {
        "Sin": tf_internal.graph_of_function(tf_internal.find_function(graph, name)),
        **dict(zip(["Less", "Exp"], tf_internal.control_flow_graphs(ops["StatelessWhile"]), strict=True)),
        **dict(zip(["Cos", "Tan"], tf_internal.control_flow_graphs(ops["StatelessIf"]), strict=True)),
    }
    for op_type, inner in graphs.items():
        assert op_type in [op.type for op in inner.get_operations()]


def test_an_attribute_of_an_op_is_set():
    with tf.Graph().as_default():
        op = tf.identity(1.0).op
        tf_internal.set_attribute(op, "_attribute", tf.compat.v1.AttrValue(s=b"value"))
        assert op.get_attr("_attribute") == b"value"


def test_trainable_dtypes():
    assert tf_internal.is_trainable(tf.constant(1.0))
    assert not tf_internal.is_trainable(tf.constant(1))


def test_python_functions_are_found_by_the_name_that_they_got():
    with tf.Graph().as_default() as graph:
        tf_internal.add_python_function(graph, "a name", lambda x: 2 * x)
        (doubled,) = tf.raw_ops.PyFunc(input=[tf.constant(21.0)], token="a name", Tout=[tf.float32])
        with tf.compat.v1.Session() as session:
            assert session.run(doubled) == 42.0
    registry = tf_internal.script_ops._py_funcs
    assert registry.get("a name") is not None
    del graph, doubled, session
    gc.collect()
    assert registry.get("a name") is None


def test_ops_tell_whether_they_are_stateful():
    assert tf_internal.op_def_registry.get("AssignVariableOp").is_stateful
    assert not tf_internal.op_def_registry.get("Identity").is_stateful
    assert tf_internal.op_def_registry.get("NoSuchOp") is None


def test_a_saved_model_is_read_and_gets_a_fingerprint(tmp_path):
    tf.saved_model.save(tf.Module(), tmp_path)
    proto = tf_internal.parse_saved_model(str(tmp_path))
    assert list(proto.meta_graphs[0].meta_info_def.tags) == ["serve"]
    first = tf.saved_model.experimental.read_fingerprint(str(tmp_path))
    (tmp_path / "fingerprint.pb").unlink()
    tf_internal.write_fingerprint(str(tmp_path))
    assert tf.saved_model.experimental.read_fingerprint(str(tmp_path)) == first


def test_the_structure_that_a_saved_model_keeps_of_an_output_is_read(tmp_path):
    module = tf.Module()
    module.f = tf.function(lambda x: {"a": x, "b": (x[0], [])}, input_signature=[tf.TensorSpec([2], name="x")])
    tf.saved_model.save(module, tmp_path)
    (meta_graph,) = tf_internal.parse_saved_model(str(tmp_path)).meta_graphs
    (concrete,) = meta_graph.object_graph_def.concrete_functions.values()
    outputs = tf_internal.decode_proto(concrete.output_signature)
    assert sorted(outputs) == ["a", "b"]
    assert [outputs["a"].shape, outputs["b"][0].shape, outputs["b"][1]] == [[2], [], []]


def doubled_if_positive(x):
    if x > 0.0:
        x = 2.0 * x
    return x


@pytest.mark.parametrize("is_translated", [True, False])
def test_a_function_is_translated_where_the_code_that_passes_it_is(is_translated):
    @tf.function(autograph=False)
    def run(x):
        with tf_internal.autograph_scope():
            return tf_internal.converted_by_autograph(doubled_if_positive)(x)

    if is_translated:
        assert tf.function(lambda x: run.python_function(x))(tf.constant(3.0)) == 6.0
    else:
        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
            run(tf.constant(3.0))


def test_a_read_in_cpp_is_reported_for_the_variables_that_are_named():
    x, frozen, other = tf.constant(1.0), tf.Variable(1.0, trainable=False), tf.Variable(1.0, trainable=False)
    with tf_internal.VariableWatcher() as watcher, tf_internal.reported_accesses([frozen]):
        x * frozen * other
    assert [id(v) for v in watcher.watched_variables()] == [id(frozen)]
    assert not frozen.trainable


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_accesses_of_variables_are_noted_also_those_of_inner_calls_and_branches(traced):
    frozen, branched, called, v = (tf.Variable(1.0, trainable=trainable) for trainable in (False, False, False, True))
    inner = tf.function(lambda: called + 1.0)

    def run():
        noted, outside = [], []
        with tf_internal.variable_accesses(outside):
            with tf_internal.variable_accesses(noted):
                frozen + v + inner() + tf.cond(v > 0.0, lambda: branched + 0.0, lambda: 0.0)
            with tf_internal.variable_accesses([]):
                pass
        found = {id(variable) for variable in noted}
        assert found == {id(frozen), id(branched), id(called), id(v)}
        assert found == {id(variable) for variable in outside}
        assert traced or not hasattr(tf.compat.v1.get_default_graph(), "watch_variable")
        assert sorted([v, frozen], key=tf_internal.creation_order)[0] is frozen
        return tf.constant(0.0)

    (tf.function(run, autograph=False) if traced else run)()
