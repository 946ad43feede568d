"""A callable gx: when and how often it is called, and the derivatives of its value."""

import functools
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients, tape_vjp
from ..support.tensors import pairs, random_array

pytestmark = pytest.mark.core


class Counted:
    """A function without arguments that counts its calls."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.function()


@pytest.fixture
def x(rng):
    return tf.constant(random_array(rng, [3]))


@pytest.fixture
def dy(rng):
    return tf.constant(random_array(rng, [3]))


@pytest.mark.parametrize("stopped", [False, True])
def test_it_is_called_once_if_a_tape_watches_x(stopped, x, dy):
    gx = Counted(lambda: tf.cos(x))
    np.testing.assert_array_equal(cg.embed_gradient(tf.sin(x), gx, x, fx_gx_manually_stopped=stopped), tf.sin(x))
    other = 2.0 * x
    with tf.GradientTape() as tape:
        tape.watch(other)
        h = cg.embed_gradient(tf.sin(other), gx, x, fx_gx_manually_stopped=stopped)
    assert gx.calls == stopped  # With fx_gx_manually_stopped, it is called if something records.
    assert stopped or tape.gradient(h, other, output_gradients=dy) is None
    gx.calls = 0
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = cg.embed_gradient(tf.stop_gradient(tf.sin(x)), gx, x, fx_gx_manually_stopped=stopped)
    assert gx.calls == 1
    for upstream in (dy, 2.0 * dy):
        np.testing.assert_allclose(tape.gradient(h, x, output_gradients=upstream), upstream * np.cos(x))
    assert gx.calls == 1


def test_a_jacobian_and_forward_mode_call_it_once(x, dy):
    gx = Counted(lambda: tf.cos(x))
    with tf.autodiff.ForwardAccumulator(x, dy) as accumulator, tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = cg.embed_gradient(tf.sin(x), gx, x)
    np.testing.assert_allclose(accumulator.jvp(h), dy * np.cos(x))
    for use_pfor in False, True:
        jacobian = tape.jacobian(h, x, experimental_use_pfor=use_pfor)
        np.testing.assert_allclose(jacobian, np.diag(np.cos(x)))
    np.testing.assert_allclose(tape.gradient(h, x), np.cos(x))  # The value is not one of the graph of the loop.
    assert gx.calls == 1


@pytest.mark.parametrize(("wrapped", "stopped"), pairs(["tf_function", "xla", "tf1", "vectorized_map"], [False, True]))
def test_a_graph_calls_it_once_while_it_is_traced(stopped, wrapped, x, dy):
    gx = Counted(lambda: 0.0)

    def dx(x, dy):
        gx.function = lambda: tf.cos(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = cg.embed_gradient(tf.sin(x), gx, x, fx_gx_manually_stopped=stopped)
        return tape.gradient(h, x, output_gradients=dy)

    # With fx_gx_manually_stopped, sin(x) has its own gradient.
    expected = (1 + stopped) * dy * np.cos(x)
    if wrapped == "tf1":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            result = session.run(dx(tf.constant(x.numpy()), tf.constant(dy.numpy())))
    elif wrapped == "vectorized_map":
        result = tf.vectorized_map(lambda pair: dx(*pair), (x[None], dy[None]), fallback_to_while_loop=False)[0]
    else:
        function = tf.function(dx, jit_compile=wrapped == "xla")
        result = function(x, dy)
        function(2.0 * x, dy)
    np.testing.assert_allclose(result, expected)
    assert gx.calls == 1


def test_in_a_list_only_the_functions_for_a_watched_x_are_called(x, dy):
    y, z = 2.0 * x, 3.0 * x
    watched, unwatched = Counted(lambda: tf.cos(x)), Counted(lambda: tf.exp(x))
    with tf.GradientTape() as tape:
        tape.watch([x, z])
        h = cg.embed_gradient(tf.sin(x), [watched, unwatched, 7.0], [x, y, z])
    dx, dz = tape.gradient(h, [x, z], output_gradients=dy)
    np.testing.assert_allclose(dx, dy * np.cos(x))
    np.testing.assert_allclose(dz, 7.0 * dy)
    assert (watched.calls, unwatched.calls) == (1, 0)


@pytest.mark.parametrize("mode", RUNS)
def test_it_reads_variables_as_they_are_at_the_call(mode, x, dy):
    weight = tf.Variable(2.0, dtype=tf.float64)

    def run():
        weight.assign(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = cg.embed_gradient(tf.sin(x), lambda: weight * tf.cos(x), x)
        weight.assign(3.0)
        return tape.gradient(h, x, output_gradients=dy)

    np.testing.assert_allclose(RUNS[mode](run)(), dy * 2.0 * np.cos(x))


def test_it_is_called_if_a_tape_records_the_read_of_a_variable(dy):
    v = tf.Variable(np.array([2.0, 3.0, 5.0]))
    gx = Counted(lambda: 7.0 * v)
    cg.embed_gradient(tf.sin(v), gx, v)
    assert gx.calls == 0
    with tf.GradientTape() as tape:
        h = cg.embed_gradient(tf.sin(v), gx, v)
    np.testing.assert_allclose(tape.gradient(h, v, output_gradients=dy), dy * 7.0 * v)
    assert gx.calls == 1


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("stopped", [False, True])
def test_first_and_second_derivatives_match_a_gx_that_is_a_value(stopped, mode):
    """fx and gx depend on their own variables."""
    sources = [tf.constant([2.0, 3.0, 5.0]) * i for i in (1.0, 0.1, 0.3)]
    upstreams = tf.constant([1.0, 10.0, 100.0]), tf.constant([7.0, 0.5, 2.0])

    def derivatives(gx_of):
        def h(a, b, x):
            return cg.embed_gradient(tf.exp(a), gx_of(lambda: tf.sin(b * x)), x, fx_gx_manually_stopped=stopped)

        def first(i, *args):
            return tape_vjp(h, args, upstreams[0])[1][i]

        found = gradients(mode, h, sources, upstreams[0])
        for i in [i for i, derivative in enumerate(found) if derivative is not None]:
            found += gradients(mode, functools.partial(first, i), sources, upstreams[1])
        return [np.inf if t is None else t for t in found]

    for actual, expected in zip(derivatives(lambda gx: gx), derivatives(lambda gx: gx()), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_the_tape_keeps_neither_the_function_nor_what_it_computes(x):
    inner = []

    def gx():
        between = tf.sin(tf.stack([x] * 3))
        inner.append(weakref.ref(between))
        return tf.reduce_sum(tf.sin(between), 0)

    function = weakref.ref(gx)
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = cg.embed_gradient(tf.sin(x), gx, x)
    del gx
    gc.collect()
    assert function() is None
    assert inner[0]() is None
    np.testing.assert_allclose(tape.gradient(h, x), 3.0 * np.sin(np.sin(x)))


def test_the_tape_keeps_neither_fx_nor_x():
    x = tf.Variable([1.0, 2.0])
    # The second has shapes that broadcast.
    for gx in (tf.constant([3.0, 5.0]), tf.constant(3.0)):
        with tf.GradientTape() as tape:
            read, fx = tf.convert_to_tensor(x), tf.constant([7.0, 9.0])
            h = cg.embed_gradient(fx, gx, read)
            references = [weakref.ref(read), weakref.ref(fx)]
            del read, fx
        gc.collect()
        assert [reference() for reference in references] == [None, None]
        np.testing.assert_array_equal(tape.gradient(h, x), tf.broadcast_to(gx, [2]))


@pytest.mark.parametrize("use_pfor", [None, True, False])
@pytest.mark.parametrize("traced", [False, True])
def test_a_tape_of_its_own_records(traced, use_pfor, x, dy):
    def derivative():
        with tf.GradientTape() as own:
            own.watch(x)
            y = tf.sin(x)
        return own.gradient(y, x, unconnected_gradients="zero")

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = cg.embed_gradient(tf.sin(x), tf.function(derivative) if traced else derivative, x)
    if use_pfor is None:
        dx = tape.gradient(h, x, output_gradients=dy)
    else:
        dx = np.matmul(dy, tape.jacobian(h, x, experimental_use_pfor=use_pfor))
    np.testing.assert_allclose(dx, dy * np.cos(x))


def test_functional_models_take_it(library):
    inputs = library.Input([3])
    gx = Counted(lambda: 2.0 * inputs)
    model = library.Model(inputs, cg.embed_gradient(inputs * inputs, gx, inputs))
    x = tf.constant([[1.0, 2.0, 3.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    np.testing.assert_array_equal(y, x * x)
    dy = tf.constant([[1.0, 10.0, 100.0]])
    np.testing.assert_array_equal(tape.gradient(y, x, output_gradients=dy), dy * 2.0 * x)
    assert gx.calls == 1
