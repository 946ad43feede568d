"""TensorFlow's C interface: the ops that are registered, and gradients that know nothing of Python's."""

import ctypes
import pathlib

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2


class _Output(ctypes.Structure):
    """TF_Output: an output of an operation."""

    _fields_ = [("operation", ctypes.c_void_p), ("index", ctypes.c_int)]


class _Buffer(ctypes.Structure):
    """TF_Buffer: bytes and who frees them."""

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
    library.TF_GetAllOpList.restype = ctypes.POINTER(_Buffer)
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


def registered_ops():
    """Every OpDef that this process knows, with its documentation, by name."""
    library = _load()
    buffer = library.TF_GetAllOpList()
    ops = op_def_pb2.OpList.FromString(ctypes.string_at(buffer.contents.data, buffer.contents.length))
    library.TF_DeleteBuffer(buffer)
    return {op.name: op for op in ops.op}


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
