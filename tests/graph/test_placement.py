"""The devices that the ops can run on, and the inputs that TensorFlow keeps on the host for them."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels  # Only a test may look inside.

import tf_cg_ops as cg

from ..support.modes import vjp
from ..support.processes import run_python
from ..support.tensors import DTYPES

# The inputs that a kernel reads on the host. All others stay on the device.
ON_THE_HOST = {
    "CustomGradientEmbed": [],
    "CustomGradientEmbedGrad": ["shape"],
    "CustomGradientRule": [],
    "CustomGradientBarrier": [],
    "CustomGradientCheckShape": ["shape"],
}


def unlabelled_kernels(op, device):
    registered = kernels.get_registered_kernels_for_op(op).kernel
    return [kernel for kernel in registered if kernel.device_type == device and not kernel.label]


@pytest.mark.parametrize("op", ON_THE_HOST)
def test_every_op_has_kernels_for_the_cpu_and_for_gpus_of_the_same_types(op):
    on_cpu, on_gpu = (unlabelled_kernels(op, device) for device in ("CPU", "GPU"))
    expected = set(DTYPES) if op == "CustomGradientEmbedGrad" else {None}
    for registered in (on_cpu, on_gpu):
        types = [t for k in registered for c in k.constraint for t in c.allowed_values.list.type] or [None]
        assert len(types) == len(registered) == len(expected)
        assert set(types) == {t and t.as_datatype_enum for t in expected}
    assert [list(kernel.host_memory_arg) for kernel in on_gpu] == [ON_THE_HOST[op]] * len(on_gpu)
    assert all(not kernel.host_memory_arg for kernel in on_cpu)


TWO_DEVICES = """
import tensorflow as tf
import tf_cg_ops as cg
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.device("CPU:0"):
    a = tf.Variable(2.0)
with tf.device("CPU:1"):
    b = tf.Variable(3.0)
in_the_rule = cg.custom_gradient(lambda x: (1.0 * x, lambda dy: dy * a * b))
for function in in_the_rule, cg.recompute_grad(lambda x: x * a * b):
    run = tf.function(lambda x: (y := function(x), tf.gradients(y, x)[0]))
    print(*(t.numpy() for t in run(tf.constant(5.0))))
"""


@pytest.mark.parametrize("keep", ["0", "1"])
def test_a_rule_may_read_variables_of_several_devices(keep, tmp_path):
    """Also if the op stays in the graph, so that TensorFlow must place it."""
    result = run_python(TWO_DEVICES, cwd=tmp_path, environment={"TF_CG_OPS_DISABLE_PASSES": keep})
    assert result.stdout == "5.0 6.0\n30.0 6.0\n"


@pytest.mark.parametrize(("n", "dtype"), [(3, tf.int32), (2**31 - 1, tf.int32), (2**31, tf.int64)])
def test_shapes_in_graphs_are_constants_of_a_type_that_gpus_keep_on_the_host_where_they_fit(n, dtype):
    def run(fx, gx, x):
        return vjp(lambda: cg.embed_gradient(fx, gx, x, axis=0), x)[1]

    specs = [tf.TensorSpec([]), tf.TensorSpec([n]), tf.TensorSpec([n])]
    graph = tf.function(run, input_signature=specs).get_concrete_function().graph
    (shape,) = [op.inputs[2] for op in graph.get_operations() if op.type == "CustomGradientEmbedGrad"]
    assert shape.dtype == dtype
    assert shape.op.type == "Const"
