"""Code that a callable gx may run, its results, and the gradients that call it."""

import concurrent.futures
import time

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.tensors import random_array


@pytest.fixture
def x(rng):
    return tf.constant(random_array(rng, [3]))


@pytest.fixture
def dy(rng):
    return tf.constant(random_array(rng, [3]))


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


def test_a_function_of_a_function_is_refused_wherever_it_is_called(x):
    def embedded(t):
        return cg.embed_gradient(tf.sin(t), lambda: lambda: tf.cos(t), t)

    with pytest.raises(TypeError, match=r"gx is not a dense tensor; .* Pass the value of the function"):
        tf.function(embedded, autograph=False)(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(TypeError, match="gx is not a dense tensor"):
            cg.embed_gradient(tf.sin(x), lambda: lambda: tf.cos(x), x, fx_gx_manually_stopped=True)


def test_a_flag_that_is_no_bool_is_refused_with_a_message_of_the_library(x):
    for flag in (np.array([True, False]), 1):
        with pytest.raises(TypeError, match="fx_gx_manually_stopped"):
            cg.embed_gradient(tf.sin(x), lambda: tf.cos(x), x, fx_gx_manually_stopped=flag)


def test_threads_that_ask_at_the_same_time_wait_for_one_call(x):
    calls = []

    def gx():
        calls.append(1)
        time.sleep(0.05)
        return tf.cos(x)

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = cg.embed_gradient(tf.sin(x), gx, x)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        gradients = [pool.submit(tape.gradient, h, x) for _ in range(4)]
    for gradient in gradients:
        np.testing.assert_allclose(gradient.result(), np.cos(x))
    assert calls == [1]
