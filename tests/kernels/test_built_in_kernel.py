"""CustomGradientEmbedGrad made of TensorFlow's own operations, in Python and in the kernel for GPUs without CUDA kernels.

The kernel is registered for the CPU, too, under a label that only these tests ask for.
"""

import concurrent.futures
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops._src.core import library
from tf_cg_ops._src.ops import composed

from ..embed_gradient.test_shape_table import ROWS
from ..support import reference
from ..support.modes import built_in_session
from ..support.tensors import DTYPES, assert_gradient_close, bits, random_array

tf1 = tf.compat.v1
ROLES = ("fx", "gx", "x")
TIME_LIMIT = tf1.RunOptions(timeout_in_ms=60_000)


class Calls:
    """Calls of an op in one graph, with shapes that are unknown while tracing."""

    def __init__(self, device="CPU", op=library.custom_gradient_embed_grad):
        self.graph, self.outputs, self.feeds = tf.Graph(), [], {}
        self._device, self._op = f"/device:{device}:0", op

    def add(self, lhs, rhs, shape, wrt="x", **attributes):
        with self.graph.as_default(), tf.device(self._device):
            given = [self._fed(array) for array in (lhs, rhs, np.asarray(shape, np.int64))]
            self.outputs.append(self._op(*given, wrt=wrt, **attributes).name)

    def _fed(self, array):
        placeholder = tf1.placeholder(array.dtype)
        self.feeds[placeholder.name] = array
        return placeholder

    def by_built_in_ops(self, **config):
        with built_in_session(self.graph, **config) as session:
            return session.run(self.outputs, self.feeds, TIME_LIMIT)

    def by_the_usual_kernel(self):
        with tf1.Session(graph=self.graph) as session:
            return session.run(self.outputs, self.feeds)


def by_built_in_ops(*inputs, **attributes):
    calls = Calls()
    calls.add(*inputs, **attributes)
    (result,) = calls.by_built_in_ops()
    return result


@pytest.fixture(params=["by the kernel", "by Python"])
def by_composition(request, device):
    """Runs calls of the op as composed operations, given how to add the calls."""

    def run(add_calls):
        is_python = request.param == "by Python"
        calls = Calls(device, composed.embed_grad if is_python else library.custom_gradient_embed_grad)
        add_calls(calls)
        return calls.by_the_usual_kernel() if is_python else calls.by_built_in_ops()

    return run


def by_the_usual_kernel(add_calls):
    calls = Calls()
    add_calls(calls)
    return calls.by_the_usual_kernel()


def test_every_form_gives_what_the_usual_kernel_gives(by_composition, dtype, rng):
    """The dtypes differentiate by one operand each, in turn."""
    given = [{role: random_array(rng, getattr(row, role), dtype) for role in ROLES} for row in ROWS]

    def add(calls):
        for i, (row, arrays) in enumerate(zip(ROWS, given, strict=True), DTYPES.index(dtype)):
            operands = [array for role, array in arrays.items() if role != ROLES[i % 3]]
            axis = {"all_axes": True} if row.axis is None else {"axis": np.ravel(row.axis).astype(int).tolist()}
            calls.add(*operands, arrays[ROLES[i % 3]].shape, ROLES[i % 3], **axis)

    for actual, expected in zip(by_composition(add), by_the_usual_kernel(add), strict=True):
        assert actual.dtype == dtype.as_numpy_dtype
        assert_gradient_close(actual, reference.widen(expected), dtype, scale=20.0)


def test_products_that_are_not_summed_have_the_same_bits(device, dtype, rng):
    """In the kernel; operations called from Python can round a complex product differently."""
    given = [[random_array(rng, [n], dtype) for _ in range(2)] for n in (1, 1000)]

    def add(calls):
        for (lhs, rhs), wrt in itertools.product(given, ROLES):
            calls.add(lhs, rhs, lhs.shape, wrt)

    composed_calls = Calls(device)
    add(composed_calls)
    for actual, expected in zip(composed_calls.by_built_in_ops(), by_the_usual_kernel(add), strict=True):
        np.testing.assert_array_equal(bits(actual), bits(expected))


def test_sums_over_nothing_are_zero_and_so_is_all_where_x_is(by_composition, dtype):
    nothing, bad = np.zeros([0, 3], dtype.as_numpy_dtype), np.asarray([np.inf, np.nan, 1.0], dtype.as_numpy_dtype)

    def add(calls):
        calls.add(nothing, nothing, [3])
        calls.add(nothing[:, 0], nothing[:, 0], [])
        calls.add(bad, bad, [3], "gx", zero_x=True)
        calls.add(bad, bad, [], "fx", zero_x=True, axis=[0])

    for out, shape in zip(by_composition(add), ([3], [], [3], []), strict=True):
        np.testing.assert_array_equal(bits(out), bits(np.zeros(shape, dtype.as_numpy_dtype)))


@pytest.mark.parametrize("wrt", ROLES)
def test_python_composes_it_under_xla(wrt, rng):
    """As in a stripped model: a call of a function of unknown ranks, with a shape that depends on a variable."""
    shapes, attributes = {"fx": [5], "gx": [5, 2, 3], "x": [2, 3]}, {"wrt": wrt, "all_axes": True}
    specs, zero = [tf.TensorSpec(None, tf.float64)] * 2, tf.Variable(0.0, trainable=False)
    composed_op = functools.partial(composed.embed_grad, **attributes)
    called = tf.function(composed_op, [*specs, tf.TensorSpec([None], tf.int64)], autograph=False)

    @tf.function(input_signature=[*specs, tf.TensorSpec(None)], jit_compile=True)
    def call(lhs, rhs, like):
        return called(lhs, rhs, tf.shape(like + zero, tf.int64))

    lhs, rhs = (tf.constant(random_array(rng, shape)) for role, shape in shapes.items() if role != wrt)
    expected = library.custom_gradient_embed_grad(lhs, rhs, tf.constant(shapes[wrt], tf.int64), **attributes)
    np.testing.assert_allclose(call(lhs, rhs, tf.zeros(shapes[wrt])), expected, rtol=1e-13)


def test_an_empty_output_may_have_a_dimension_that_int32_cannot_hold():
    nothing = np.zeros([0, 2**40])
    assert by_built_in_ops(nothing, nothing, [0, 2**40]).shape == (0, 2**40)


def test_operands_of_several_dimensions_none_of_which_goes_with_the_next(rng):
    """More dimensions than TensorFlow can multiply are an error."""
    for pairs in (1, 2):
        dy, gx = random_array(rng, [2] * 2 * pairs), random_array(rng, [1, 2] * pairs)
        actual = by_built_in_ops(dy, gx, [2, 1] * pairs)
        np.testing.assert_allclose(actual, reference.vjp(dy, gx, [2, 1] * pairs), rtol=1e-12)
    with pytest.raises(tf.errors.UnimplementedError, match="Broadcast between"):
        by_built_in_ops(random_array(rng, [2] * 8), random_array(rng, [1, 2] * 4), [2, 1] * 4)


@pytest.mark.parametrize("zero_x", [False, True])
def test_a_shape_that_int32_cannot_hold_is_refused_with_a_message(zero_x):
    """Before anything of that size is allocated. The CPU kernel would allocate it."""
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        by_built_in_ops(np.ones([1]), np.ones([1]), [2**31], wrt="fx", zero_x=zero_x)
    assert (
        "CustomGradientEmbedGrad: without CUDA kernels, dimensions on a GPU must be at most 2147483647, got shape "
        "[2147483648]. Build the library with CUDA, or compute on the CPU."
    ) in caught.value.message


@pytest.mark.parametrize(
    "config",
    [
        {"inter_op_parallelism_threads": 1, "intra_op_parallelism_threads": 1, "use_per_session_threads": True},
        {"experimental": tf1.ConfigProto.Experimental(executor_type="SINGLE_THREADED_EXECUTOR")},
    ],
    ids=["one thread", "the executor of one thread"],
)
def test_one_thread_is_enough(config, rng):
    """Of many kernels that are ready to run, none waits for another thread."""
    calls, expected = Calls(), []
    for _ in range(40):
        a, b = random_array(rng, [30, 20]), random_array(rng, [30, 20])
        calls.add(a, b, [20])
        expected.append((a * b).sum(0))
    for actual, wanted in zip(calls.by_built_in_ops(**config), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-12)


def test_many_threads_in_one_session(rng):
    """Even their first calls run at the same time, each with its own shapes, dtypes and steps."""
    calls = Calls()
    for i in range(24):
        dtype = DTYPES[i % len(DTYPES)]
        a, b = random_array(rng, [7, 1 + i], dtype), random_array(rng, [7, 1 + i], dtype)
        calls.add(a, b, [[7, 1 + i], [1 + i], []][i % 3])
    expected = calls.by_the_usual_kernel()
    with built_in_session(calls.graph) as session, concurrent.futures.ThreadPoolExecutor(16) as pool:

        def run(i):
            return session.run(calls.outputs[i % 24], calls.feeds, TIME_LIMIT)

        for i, actual in enumerate(pool.map(run, range(96))):
            dtype = DTYPES[i % 24 % len(DTYPES)]
            assert_gradient_close(actual, reference.widen(expected[i % 24]), dtype, scale=20.0)
