"""What is special about a GPU. Each test runs on one if there is one, and briefly on the CPU, so that it stays right.

test_embed_grad_kernel.py tests the numbers of its kernels, together with the CPU's.
"""

import contextlib
import ctypes
import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..embed_gradient.test_shape_table import ROWS
from ..graph.test_modes import DY, FUNCTIONS, IMPOSSIBLE, X, by_hand
from ..support import reference
from ..support.modes import MODES, RUNS, assert_orders
from ..support.tensors import DTYPES, assert_gradient_close, random_array


def embed_vjp(row, inputs):
    fx, gx, x, dy = inputs
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = cg.embed_gradient(fx, gx, x, row.axis)
    return h, tape.gradient(h, x, output_gradients=dy)


@pytest.fixture(params=RUNS)
def way(request):
    return RUNS[request.param]


def is_on(tensor, device):
    return tf.DeviceSpec.from_string(tensor.device).device_type == device


def test_the_kernels_are_those_of_this_library(device):
    """Otherwise all that follows would test built-in ops."""
    if device == "GPU":
        assert cg.sysconfig.gpu_kernels() == "built and usable"


def test_gradients_in_all_forms_and_dtypes(device, way, rng):
    for i, row in enumerate(ROWS):
        for dtype in DTYPES if device == "GPU" else [DTYPES[i % len(DTYPES)]]:
            fx, gx, x, dy = (random_array(rng, shape, dtype) for shape in (row.fx, row.gx, row.x, row.fx))
            h, dx = way(functools.partial(embed_vjp, row))([tf.constant(a) for a in (fx, gx, x, dy)])
            assert is_on(h, device)
            assert is_on(dx, device)
            assert h.dtype == dx.dtype == dtype
            np.testing.assert_array_equal(h.numpy(), fx)
            assert_gradient_close(dx, reference.vjp(dy, gx, row.x, row.axis), dtype, scale=10.0)


def device_address(tensor):
    """The same for a tensor in the memory of any device."""
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # The capsule points to a struct that begins with the pointer to the numbers.
    return ctypes.cast(pointer_of(capsule, b"dltensor"), ctypes.POINTER(ctypes.c_void_p))[0]


def test_the_value_shares_the_memory_of_fx(device, dtype):
    fx = tf.identity(tf.ones([1000], dtype))
    embedded = cg.embed_gradient(fx, fx, tf.identity(fx))
    raw = library.custom_gradient_embed(fx, [fx], [fx])
    assert device_address(embedded) == device_address(raw) == device_address(fx)
    assert device_address(fx) != device_address(fx + 0)


@contextlib.contextmanager
def no_way_out():
    """Ops without a kernel for the device, and copies of eager tensors between devices, are errors."""
    soft_placement, policy = tf.config.get_soft_device_placement(), tf.config.experimental.get_device_policy()
    tf.config.set_soft_device_placement(False)
    tf.config.experimental.set_device_policy("explicit")
    try:
        yield
    finally:
        tf.config.experimental.set_device_policy(policy)
        tf.config.set_soft_device_placement(soft_placement)


def test_every_op_runs_on_the_device_and_copies_nothing_from_it(device, dtype):
    """Shapes are read on the host, where they already are."""
    x = tf.identity(tf.ones([5], dtype))
    with tf.device("CPU"):
        shape = tf.constant([5], tf.int64)
    with no_way_out():
        outputs = [
            library.custom_gradient_embed(x, [x], [x]),
            library.custom_gradient_embed_grad(x, x, shape, wrt="x"),
            library.custom_gradient_check_shape(x, shape, message="{expected} {got}"),
            *library.custom_gradient_barrier([x, x], [x]),
        ]
        for way in RUNS.values():
            outputs += [t for t in way(lambda x: embed_vjp(ROWS[0], [x] * 4))(x)]
    assert [t for t in outputs if not is_on(t, device)] == []
    for tensor in outputs:
        np.testing.assert_array_equal(tensor.numpy(), np.ones(5))


# The loops of eager mode run TensorFlow's own ops.
ON_THE_DEVICE = ["embed_gradient, axis", "nested", "while_loop", "cond", "recompute_grad", "with_variable"]


@pytest.mark.parametrize("function", ON_THE_DEVICE)
def test_first_and_second_order_in_every_mode(function, device):
    for mode in ("eager", "traced", "unknown_shape", "jit", "tf1") if device == "GPU" else ("traced",):
        if (function, mode) not in IMPOSSIBLE:
            assert_orders(MODES[mode](FUNCTIONS[function].function, X, DY), by_hand(function))
