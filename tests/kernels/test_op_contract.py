"""Registrations that every op of the library must have, so that no op is half added."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels, ops
from tensorflow.python.ops import gen_functional_ops as functional_ops
from tensorflow.python.ops.parallel_for import pfor

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.reference import widen
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


STOPPED = {"fx_gx_manually_stopped": True}
rule = cg.custom_gradient(lambda x, y: (x - y, lambda dy: (dy * y, dy + x)))
SIZES, SHAPE = np.array([3]), np.array([2, 3])
# A call of each op with tensors of these shapes, to differentiate by each of them.
CALLS = {
    "CustomGradientBarrier": (lambda x, after: library.custom_gradient_barrier([x], [after])[0], [[2, 3], [3]]),
    "CustomGradientCheckShape": (lambda x: library.custom_gradient_check_shape(x, SHAPE, message=""), [[2, 3]]),
    "CustomGradientEmbed": (
        lambda fx, gx, x: library.custom_gradient_embed(fx, [gx], [x], **STOPPED),
        [[2, 3], [2, 3], [3]],
    ),
    "CustomGradientEmbedGrad": (
        lambda lhs, rhs: library.custom_gradient_embed_grad(lhs, rhs, SIZES, wrt="x", **STOPPED),
        [[2, 3], [2, 3]],
    ),
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


def by_python(function, tensors, dy):
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
    return tape.gradient(y, tensors, output_gradients=dy, unconnected_gradients="zero")


def without_python(function, tensors, dy):
    """By a SymbolicGradient, for which TensorFlow reads its registry of gradients in C++."""
    traced = tf.function(function).get_concrete_function(*(tf.TensorSpec(t.shape, t.dtype) for t in tensors))
    assert any(op.type.startswith("CustomGradient") for op in traced.graph.get_operations())
    traced.add_to_graph(tf.compat.v1.get_default_graph())
    types = [t.dtype for t in tensors]
    return functional_ops.symbolic_gradient([*tensors, dy], types, f=traced)


@pytest.mark.parametrize(("name", "dtype"), pairs(OPS, DTYPES, quick=2))
def test_a_gradient_without_python(name, dtype, rng):
    """It has the numbers of Python's gradient. graph/test_c_api.py has the ops in a graph itself."""
    function, shapes = CALLS[name]
    tensors = [tf.constant(random_array(rng, shape, dtype)) for shape in shapes]
    dy = tf.constant(random_array(rng, function(*tensors).shape, dtype))
    found, expected = (tf.function(way)(function, tensors, dy) for way in (without_python, by_python))
    assert any(np.any(gradient != 0) for gradient in expected)
    for gradient, by_tape in zip(found, expected, strict=True):
        assert_gradient_close(gradient, widen(by_tape.numpy()), dtype, scale=4.0)


def test_the_barrier_hands_each_value_on():
    values = [tf.constant([1.0, 2.0]), tf.constant("text"), tf.constant([[3]])]
    for one, other in zip(library.custom_gradient_barrier(values, [tf.zeros([0])]), values, strict=True):
        tf.debugging.assert_equal(one, other)
