"""The modes in which a call is made; each returns its outputs and, for given upstreams, its gradients.

Gradients are those of all differentiable outputs with respect to all differentiable inputs.
"""

import functools

import tensorflow as tf

from tf_cg_ops._src.core import library

from . import node_defs
from .raw_calls import dtype_of, is_differentiable
from .raw_inputs import Handle

_WRAPPERS = {
    "CustomGradientEmbed": lambda groups, **kw: [library.custom_gradient_embed(groups[0][0], *groups[1:], **kw)],
    "CustomGradientEmbedGrad": lambda groups, **kw: [
        library.custom_gradient_embed_grad(*(group[0] for group in groups), **kw)
    ],
    "CustomGradientCheckShape": lambda groups, **kw: [
        library.custom_gradient_check_shape(*(group[0] for group in groups), **kw)
    ],
    "CustomGradientBarrier": lambda groups, **kw: library.custom_gradient_barrier(*groups, **kw),
    "CustomGradientRule": lambda groups, **kw: library.custom_gradient_rule(*groups, **kw),
}


@functools.cache
def _rules():
    """The functions that a rule may name."""
    vector, number = tf.TensorSpec(None, tf.float32), tf.TensorSpec(None, tf.int32)
    functions = {
        "product": (lambda dy, c: dy * c, [vector, vector]),
        "two_outputs": (lambda dy, c: (dy, c), [vector, vector]),
        "of_integers": (lambda dy, c: dy + c, [number, number]),
        "of_nothing": (lambda: None, []),
    }
    with tf.init_scope():
        return {
            name: tf.function(function, autograph=False).get_concrete_function(*specs)
            for name, (function, specs) in functions.items()
        }


def _rule_name(attributes):
    """The name of the rule's function, which is put into the graph at hand."""
    concrete = _rules().get(attributes["rule"])
    if concrete is None:
        return attributes["rule"]
    concrete.add_to_graph(None if tf.executing_eagerly() else tf.compat.v1.get_default_graph())
    return tf.compat.as_str(concrete.name)


def _apply(call, tensors):
    attributes = dict(call.attributes)
    if "rule" in attributes:
        attributes["rule"] = _rule_name(attributes)
    outputs = _WRAPPERS[call.op](call.grouped(tensors), **attributes)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _tensor(value):
    if not isinstance(value, Handle):
        return tf.constant(value)
    if value.dtype == tf.resource:
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3])
    return tf.raw_ops.EmptyTensorList(element_shape=[3], max_num_elements=2, element_dtype=tf.float32)


def _differentiate(call, tensors, upstreams):
    if upstreams is None:
        return _apply(call, tensors), None
    sources = [t for t in tensors if is_differentiable(t)]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = _apply(call, tensors)
    targets = [t for t in outputs if is_differentiable(t)]
    return outputs, tape.gradient(targets, sources, output_gradients=upstreams)


def eager(call, upstreams):
    given = None if upstreams is None else [tf.constant(u) for u in upstreams]
    return _differentiate(call, [_tensor(value) for value in call.inputs], given)


def _spec(value, known):
    shape = tf.TensorShape(value.shape)
    return tf.TensorSpec({"shape": shape, "rank": [None] * len(shape), "nothing": None}[known], dtype_of(value))


def _traced(call, upstreams, jit_compile=False):
    """Some inputs are constants of the function, the others arguments of it with shapes partly known."""
    is_constant = [c and not isinstance(v, Handle) for c, v in zip(call.constants, call.inputs, strict=True)]
    arguments = [v for v, c in zip(call.inputs, is_constant, strict=True) if not c]
    specs = [_spec(v, k) for v, k, c in zip(call.inputs, call.known, is_constant, strict=True) if not c]
    specs += [_spec(u, "shape") for u in upstreams or []]

    @tf.function(input_signature=specs, autograph=False, jit_compile=jit_compile)
    def run(*tensors):
        given = iter(tensors)
        inputs = [tf.constant(v) if c else next(given) for v, c in zip(call.inputs, is_constant, strict=True)]
        return _differentiate(call, inputs, None if upstreams is None else list(given))

    return run(*map(_tensor, [*arguments, *(upstreams or [])]))


def function(call, upstreams):
    return _traced(call, upstreams)


def xla(call, upstreams):
    return _traced(call, upstreams, jit_compile=True)


_traces = {}


def reused(call, upstreams):
    values = [*call.inputs, *(upstreams or [])]
    dtypes = [dtype_of(v) for v in values]
    key = (call.op, call.keeps_ops, tuple(call.counts), repr(call.attributes), tuple(dtypes), upstreams is None)
    if key not in _traces:

        @tf.function(input_signature=[tf.TensorSpec(None, dtype) for dtype in dtypes], autograph=False)
        def run(*tensors):
            count = sum(call.counts)
            return _differentiate(call, list(tensors[:count]), None if upstreams is None else list(tensors[count:]))

        _traces[key] = run.get_concrete_function()
    return _traces[key](*map(_tensor, values))


def _fed(call, feed, values):
    """Inputs of a graph of TensorFlow 1: placeholders, variables and constants. Returns them and what initialises."""
    tensors, initializers = [], []
    for value, known, constant, variable in zip(call.inputs, call.known, call.constants, call.variables, strict=True):
        if isinstance(value, Handle):
            tensors.append(_tensor(value))
        elif variable:
            made = tf.compat.v1.Variable(
                lambda value=value: tf.constant(value), dtype=dtype_of(value), use_resource="resource" in variable
            )
            if not variable.endswith("without a value"):
                initializers.append(made.initializer)
            tensors.append(made._ref() if "ref" in variable else made.value())
        elif constant:
            tensors.append(tf.constant(value))
        else:
            spec = _spec(value, known)
            tensors.append(tf.compat.v1.placeholder(spec.dtype, spec.shape))
            feed[tensors[-1]] = value
    return tensors, initializers


def infer(call, upstreams):
    """The op is only added to a graph; its outputs are that graph's, of which the shapes are known in part."""
    with tf.Graph().as_default():
        tensors, _ = _fed(call, {}, call.inputs)
        return _apply(call, tensors), None


def session(call, upstreams):
    feed = {}
    with tf.Graph().as_default():
        tensors, initializers = _fed(call, feed, call.inputs)
        outputs = _apply(call, tensors)
        gradients = None
        if upstreams is not None:
            targets = [t for t in outputs if is_differentiable(t)]
            sources = [t for t in tensors if is_differentiable(t)]
            gradients = tf.gradients(targets, sources, grad_ys=[tf.constant(u) for u in upstreams])
        with tf.compat.v1.Session() as running:
            running.run(initializers)
            present = [g for g in gradients or [] if g is not None]
            fetched = iter(running.run([*outputs, *present], feed))
        outputs = [next(fetched) for _ in outputs]
        return outputs, None if gradients is None else [None if g is None else next(fetched) for g in gradients]


def _graph_of_inputs(call):
    """A graph of inputs alone, the names of these, and what a rule is called there."""
    with tf.Graph().as_default() as graph:
        names = []
        for i, (value, known) in enumerate(zip(call.inputs, call.known, strict=True)):
            if isinstance(value, Handle):
                names.append(_tensor(value).op.name)
            else:
                names.append(tf.compat.v1.placeholder(dtype_of(value), _spec(value, known).shape, f"in_{i}").op.name)
        tf.constant(0.0, name="other")
        rule = _rule_name(call.attributes) if "rule" in call.attributes else ""
        return graph.as_graph_def(), names, rule


def _run_imported(graph_def, call, names, fetches):
    feed = {f"{name}:0": v for name, v in zip(names, call.inputs, strict=True) if not isinstance(v, Handle)}
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session() as running:
            return running.run(fetches, feed), None


def _count_of_outputs(call):
    return call.counts[0] if call.op in ("CustomGradientBarrier", "CustomGradientRule") else 1


def node_def(call, upstreams):
    graph_def, names, rule = _graph_of_inputs(call)
    graph_def.node.append(node_defs.build(call, [dtype_of(v) for v in call.inputs], names, rule))
    return _run_imported(graph_def, call, names, [f"call:{i}" for i in range(_count_of_outputs(call))] or "call")


def function_def(call, upstreams):
    graph_def, names, rule = _graph_of_inputs(call)
    kinds = [dtype_of(v).as_datatype_enum for v in call.inputs] + [tf.float32.as_datatype_enum]
    returned = (kinds * 2)[: _count_of_outputs(call)]
    body = graph_def.library.function.add()
    body.signature.name = "body"
    for i, kind in enumerate(kinds):
        body.signature.input_arg.add(name=f"in_{i}", type=kind)
    for i, kind in enumerate(returned):
        body.signature.output_arg.add(name=f"out_{i}", type=kind)
        body.ret[f"out_{i}"] = f"call:{_OUTPUT_NAMES[call.op]}:{i}"
    node = node_defs.build(call, [dtype_of(v) for v in call.inputs], [f"in_{i}" for i in range(len(names))], rule)
    other_names = {"other": f"in_{len(names)}", "call": f"call:{_OUTPUT_NAMES[call.op]}:0"}
    node.input[:] = [other_names.get(name, name) for name in node.input]
    body.node_def.append(node)
    caller = graph_def.node.add(name="caller", op="PartitionedCall", input=[*names, "other"])
    caller.attr["f"].func.name = "body"
    for name, types in (("Tin", kinds), ("Tout", returned)):
        caller.attr[name].list.type[:] = types
        caller.attr[name].list.SetInParent()
    return _run_imported(graph_def, call, names, [f"caller:{i}" for i in range(len(returned))] or "caller")


_OUTPUT_NAMES = {
    "CustomGradientEmbed": "h",
    "CustomGradientEmbedGrad": "out",
    "CustomGradientCheckShape": "checked",
    "CustomGradientBarrier": "outputs",
    "CustomGradientRule": "outputs",
}


def pfor(call, upstreams):
    def one(elements):
        given = iter(elements)
        return _apply(call, [next(given) if s else tf.constant(v) for v, s in inputs])

    inputs = list(zip(call.inputs, call.stacked, strict=True))
    specs = [
        # The rank has to be known.
        _spec(v, "shape" if k == "nothing" else k)
        for (v, stacked), k in zip(inputs, call.known, strict=True)
        if stacked
    ]
    run = tf.function(
        lambda *tensors: tf.vectorized_map(one, list(tensors), fallback_to_while_loop=False),
        input_signature=specs,
        autograph=False,
    )
    return run(*(tf.constant(v) for v, stacked in inputs if stacked)), None


def make(call, upstreams):
    return _MODES[call.mode](call, upstreams)


_MODES = {
    "eager": eager,
    "reused": reused,
    "infer": infer,
    "session": session,
    "node_def": node_def,
    "function_def": function_def,
    "function": function,
    "xla": xla,
    "pfor": pfor,
}
