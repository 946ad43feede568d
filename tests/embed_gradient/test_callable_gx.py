"""A callable gx: when and how often it is called, and the derivatives of its value."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import ALL_MODES, MODES, RUNS, assert_all_close, vjp
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


@pytest.mark.parametrize(("mode", "stopped"), pairs(["traced", "jit", "tf1", "per_example"], [False, True]))
def test_a_graph_calls_it_once_while_it_is_traced(mode, stopped, x, dy):
    gx = Counted(None)

    def function(x):
        gx.function = lambda: tf.cos(x)
        return cg.embed_gradient(tf.sin(x), gx, x, fx_gx_manually_stopped=stopped)

    _, (dx,) = ALL_MODES[mode].vjp(function, [x.numpy()], dy.numpy())
    np.testing.assert_allclose(dx, (1 + stopped) * dy * np.cos(x))  # If manually stopped, sin(x) has its own gradient.
    assert gx.calls == 1


def test_in_a_list_only_the_functions_for_a_watched_x_are_called(x, dy):
    """A tape watches a variable if it records its read."""
    v = tf.Variable(x)
    watched, unwatched, of_variable = Counted(lambda: tf.cos(x)), Counted(lambda: tf.exp(x)), Counted(lambda: 7.0 * v)
    cg.embed_gradient(tf.sin(v), of_variable, v)
    assert of_variable.calls == 0
    _, gradients = vjp(
        lambda: cg.embed_gradient(tf.sin(x), [watched, unwatched, 5.0, of_variable], [x, 2.0, 3.0 * x, v]), [x, v], dy
    )
    np.testing.assert_allclose(gradients, [dy * (np.cos(x) + 15.0), dy * 7.0 * x])
    assert (watched.calls, unwatched.calls, of_variable.calls) == (1, 0, 1)


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


@pytest.mark.parametrize(("mode", "stopped"), [*itertools.product(["eager", "traced"], [False, True])])
def test_first_and_second_derivatives_match_a_gx_that_is_a_value(mode, stopped, x, dy):
    def orders(gx_of):
        def function(x):
            return cg.embed_gradient(tf.exp(x), gx_of(lambda: tf.sin(3.0 * x)), 2.0 * x, fx_gx_manually_stopped=stopped)

        return MODES[mode](function, x.numpy(), dy.numpy())

    assert_all_close(orders(lambda gx: gx), orders(lambda gx: gx()), rtol=0.0)


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


@pytest.mark.parametrize("traced", [False, True])
def test_a_tape_of_its_own_records(traced, x, dy):
    derivative = lambda: vjp(lambda: tf.sin(x), x)[1]  # noqa: E731
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = cg.embed_gradient(tf.sin(x), tf.function(derivative) if traced else derivative, x)
    for use_pfor in True, False:
        jacobian = tape.jacobian(h, x, experimental_use_pfor=use_pfor)
        np.testing.assert_allclose(jacobian, np.diag(np.cos(x)))
    np.testing.assert_allclose(tape.gradient(h, x, output_gradients=dy), dy * np.cos(x))


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
