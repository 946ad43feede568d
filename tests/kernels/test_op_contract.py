"""Registrations that every op of the library must have, so that no op is half added."""

import ctypes
import itertools
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels, ops
from tensorflow.python.ops.parallel_for import pfor

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.tensors import DTYPES, assert_gradient_close, pairs, random_array
from ..support.without_python import registered_ops

# The wrapper of an op library has two functions for each op: one with the op's name, and one in snake case.
OPS = sorted(
    n for n in vars(library._ops) if re.sub(r"(?<!^)(?=[A-Z])", "_", n).lower() in vars(library._ops) if n != n.lower()
)
DEFINITIONS = registered_ops()
# It always fails, and only a graph pass makes it: tests/graph/test_without_python.py.
REFUSAL = "CustomGradientRefusal"
# It has no floating point input and runs on the host: tests/external/test_numpy_residuals.py.
TOKEN = "CustomGradientToken"
OPS = [name for name in OPS if name not in (REFUSAL, TOKEN)]

EVERY_DTYPE = [*DTYPES, tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64]


def embed(fx, gx, x):
    return library.custom_gradient_embed(fx, [gx], [x], fx_gx_manually_stopped=True)


def embed_grad(lhs, rhs):
    return library.custom_gradient_embed_grad(
        lhs, rhs, tf.constant([3], tf.int64), wrt="x", fx_gx_manually_stopped=True
    )


def check_shape(x):
    return library.custom_gradient_check_shape(x, tf.constant([2, 3], tf.int64), message="")


def barrier(x, after):
    return library.custom_gradient_barrier([x], [after])[0]


@cg.custom_gradient
def rule(x, y):
    return x - y, lambda dy: (dy * y, dy + x)


class _Output(ctypes.Structure):
    """TF_Output: an output of an operation."""

    _fields_ = [("operation", ctypes.c_void_p), ("index", ctypes.c_int)]


class _Buffer(ctypes.Structure):
    """TF_Buffer: bytes, and a function that frees them."""

    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("deallocator", ctypes.c_void_p)]


def _load():
    library = ctypes.CDLL(str(pathlib.Path(tf.sysconfig.get_lib()) / "libtensorflow_cc.so.2"))
    for name in (
        "TF_NewStatus",
        "TF_NewGraph",
        "TF_NewImportGraphDefOptions",
        "TF_NewBufferFromString",
        "TF_NewBuffer",
        "TF_GraphOperationByName",
    ):
        getattr(library, name).restype = ctypes.c_void_p
    library.TF_NewBuffer.restype = ctypes.POINTER(_Buffer)
    library.TF_Message.restype = ctypes.c_char_p
    library.TF_AddGradients.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(_Output),
        ctypes.c_int,
        ctypes.POINTER(_Output),
        ctypes.c_int,
        ctypes.POINTER(_Output),
        ctypes.c_void_p,
        ctypes.POINTER(_Output),
    ]
    library.TF_OperationName.restype = ctypes.c_char_p
    return library


def add_gradients(graph_def, ys, xs, dys):
    """The graph with the gradients of the tensors `ys` by the tensors `xs`, and the names of these gradients."""
    library = _load()
    status = ctypes.c_void_p(library.TF_NewStatus())
    graph = ctypes.c_void_p(library.TF_NewGraph())

    def check():
        if library.TF_GetCode(status) != 0:
            raise RuntimeError(library.TF_Message(status).decode())

    def outputs(names):
        found = (_Output * len(names))()
        for output, name in zip(found, names, strict=True):
            operation, _, index = name.partition(":")
            output.operation = library.TF_GraphOperationByName(graph, operation.encode())
            output.index = int(index)
        return found

    serialized = graph_def.SerializeToString()
    definition = ctypes.c_void_p(library.TF_NewBufferFromString(serialized, ctypes.c_size_t(len(serialized))))
    options = ctypes.c_void_p(library.TF_NewImportGraphDefOptions())
    library.TF_GraphImportGraphDef(graph, definition, options, status)
    check()
    gradients = (_Output * len(xs))()
    library.TF_AddGradients(graph, outputs(ys), len(ys), outputs(xs), len(xs), outputs(dys), status, gradients)
    check()
    names = []
    for gradient in gradients:
        name = library.TF_OperationName(ctypes.c_void_p(gradient.operation)).decode() if gradient.operation else None
        names.append(None if name is None else f"{name}:{gradient.index}")
    buffer = library.TF_NewBuffer()
    library.TF_GraphToGraphDef(graph, buffer, status)
    check()
    result = tf.compat.v1.GraphDef.FromString(ctypes.string_at(buffer.contents.data, buffer.contents.length))
    library.TF_DeleteBuffer(buffer)
    library.TF_DeleteBuffer(definition)
    library.TF_DeleteImportGraphDefOptions(options)
    library.TF_DeleteGraph(graph)
    library.TF_DeleteStatus(status)
    return result, names


# A call of each op with tensors of these shapes, to differentiate by each of them.
CALLS = {
    "CustomGradientBarrier": (barrier, [[2, 3], [3]]),
    "CustomGradientCheckShape": (check_shape, [[2, 3]]),
    "CustomGradientEmbed": (embed, [[2, 3], [2, 3], [3]]),
    "CustomGradientEmbedGrad": (embed_grad, [[2, 3], [2, 3]]),
    "CustomGradientRule": (rule, [[2, 3], [2, 3]]),
}


def test_every_op_has_a_call_below():
    assert list(CALLS) == OPS


def dtype_attributes(name):
    """The attributes that are dtypes, each with the dtypes that the op allows."""
    for attribute in DEFINITIONS[name].attr:
        if attribute.type in ("type", "list(type)"):
            allowed = [tf.as_dtype(dtype) for dtype in attribute.allowed_values.list.type]
            yield attribute.name, allowed or EVERY_DTYPE


def kernels_of(name, device):
    return [k for k in kernels.get_registered_kernels_for_op(name).kernel if k.device_type == device]


def serves(kernel, attribute, dtype):
    constraints = [c for c in kernel.constraint if c.name == attribute]
    return all(dtype.as_datatype_enum in c.allowed_values.list.type for c in constraints)


@pytest.mark.parametrize("name", OPS)
def test_a_kernel_for_every_dtype_a_python_gradient_and_a_pfor_converter(name):
    # TensorFlow registers XLA's kernels when it needs them.
    tf.function(lambda x: x + 1, jit_compile=True)(tf.ones([1]))
    for attribute, allowed in dtype_attributes(name):
        for dtype, device in itertools.product(allowed, ("CPU", "XLA_CPU_JIT")):
            assert any(serves(kernel, attribute, dtype) for kernel in kernels_of(name, device)), (attribute, dtype)
    assert ops.gradient_registry.lookup(name) is not None
    assert name in pfor._pfor_converter_registry


def sources(name, dtype, rng):
    return [tf.constant(random_array(rng, shape, dtype)) for shape in CALLS[name][1]]


def by_python(name, tensors, dy):
    @tf.function
    def run(tensors, dy):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = CALLS[name][0](*tensors)
        return tape.gradient(y, tensors, output_gradients=dy, unconnected_gradients="zero")

    return run(tensors, dy)


@pytest.mark.parametrize(("name", "dtype"), pairs(OPS, DTYPES, quick=2))
def test_a_gradient_without_python(name, dtype, rng):
    """The C API adds a SymbolicGradient, from both of TensorFlow's registries, and gives the same numbers as Python."""
    tensors = sources(name, dtype, rng)
    with tf.Graph().as_default() as graph:
        fed = [tf.compat.v1.placeholder(dtype, t.shape) for t in tensors]
        y = CALLS[name][0](*fed)
        fed_dy = tf.compat.v1.placeholder(dtype, y.shape)
        assert name in {op.type for op in graph.get_operations()}
    graph_def, names = add_gradients(graph.as_graph_def(), [y.name], [t.name for t in fed], [fed_dy.name])
    assert "SymbolicGradient" in {node.op for node in graph_def.node}

    dy = tf.constant(random_array(rng, y.shape, dtype))
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        feed = {t.name: value.numpy() for t, value in zip([*fed, fed_dy], [*tensors, dy], strict=True)}
        with tf.compat.v1.Session() as session:
            found = iter(session.run([name for name in names if name], feed))
    actual = [next(found) if name else np.zeros(t.shape) for name, t in zip(names, tensors, strict=True)]
    wide = np.complex128 if dtype.is_complex else np.float64
    by_tape = by_python(name, tensors, dy)
    assert any(np.any(gradient != 0) for gradient in by_tape)
    for gradient, expected in zip(actual, by_tape, strict=True):
        assert_gradient_close(gradient, expected.numpy().astype(wide), dtype, scale=4.0)


def test_the_barrier_hands_each_value_on():
    values = [tf.constant([1.0, 2.0]), tf.constant("text"), tf.constant([[3]])]
    for one, other in zip(library.custom_gradient_barrier(values, [tf.zeros([0])]), values, strict=True):
        tf.debugging.assert_equal(one, other)


def run_a_rule():
    function = cg.custom_gradient(lambda x: ((x + 1.0, tf.argmax(x), 2.0 * x), lambda a, b, c: a + c))
    first, second, third = tf.function(function, autograph=False)(tf.constant([1.0, 5.0, 3.0]))
    np.testing.assert_array_equal(first, [2.0, 6.0, 4.0])
    assert second == 1
    np.testing.assert_array_equal(third, [2.0, 10.0, 6.0])


def test_the_rule_hands_each_value_on(tmp_path):
    """If no pass removes the op from the graph."""
    code = "from tests.kernels.test_op_contract import run_a_rule\nrun_a_rule()"
    run_python(code, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT), "TF_CG_OPS_DISABLE_PASSES": "1"})
