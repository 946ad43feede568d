"""Observes a call: the tensors that stay alive, how often something is computed, the ops that ran."""

import collections
import contextlib
import gc
import itertools

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tf_cg_ops._src.core.tf_internal import EagerTensor


@contextlib.contextmanager
def new_objects_alone():
    """Python's garbage collector only sees objects that are made inside, which is quick also in a large process."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def num_eager_tensors(shape):
    """How many EagerTensors of a shape are alive."""
    gc.collect()
    # isinstance would ask every object for its class, and some of PyTorch's objects then warn.
    return sum(type(o) is EagerTensor and o.shape == shape for o in gc.get_objects())


def made(monkeypatch, kind):
    """One entry for each object of this kind that is made from now on."""
    found, make = [], kind.__init__

    def count(self, *args):
        found.append(None)
        make(self, *args)

    monkeypatch.setattr(kind, "__init__", count)
    return found


COUNTS = collections.Counter()
ORDER = []
_NUMBERS = itertools.count()
OURS = {"CustomGradientEmbed", "CustomGradientRule"}


def counted(x, name="gx", stateful=False):
    """x, through a Python function that counts its calls."""

    def count(array):
        COUNTS[name] += 1
        ORDER.append(name)
        return array

    y = tf.numpy_function(count, [x], x.dtype, stateful=stateful)
    y.set_shape(x.shape)
    return y


def start_counting():
    COUNTS.clear()
    ORDER.clear()


def ops_that_ran(folder, function, x):
    """The value of the traced function, and the types of the operations that run in a call, one for each run."""
    # TensorFlow also writes what ran before, so this has to find the graph.
    name = f"argument_{next(_NUMBERS)}"
    traced = tf.function(function).get_concrete_function(tf.TensorSpec(x.shape, x.dtype, name))
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        tf.summary.trace_on(graph=True, profiler=False)
        result = traced(x)
        tf.summary.trace_export("graphs", step=0)
    writer.close()
    [path] = folder.iterdir()
    found = []
    for record in tf.data.TFRecordDataset(str(path)):
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
            for text in value.tensor.string_val:
                found += config_pb2.RunMetadata.FromString(text).function_graphs
    [graphs] = [graphs for graphs in found if any(node.name == name for node in graphs.pre_optimization_graph.node)]
    return result, ops_of(graphs)


def ops_of(run_metadata):
    """The types of the operations that a session ran, with RunOptions(output_partition_graphs=True)."""
    ops = collections.Counter()
    for graph in run_metadata.partition_graphs:
        ops.update(node.op for node in graph.node)
    return ops


def bits(tensors):
    return [np.asarray(tensor).tobytes() for tensor in tf.nest.flatten(tensors)]
