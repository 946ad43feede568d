"""What was built for a graph is found again for an equal graph, and nothing of a call is kept.

That each call reads Python as it is then is in tests/same.
"""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.memory import replay
from tf_cg_ops._src.rewrite import built_functions

from ..support.modes import vjp
from ..support.observed import made, new_objects_alone

X, DY = tf.constant([0.5, 2.0, -1.5]), tf.constant([3.0, 10.0, -7.0])


class Slotted:
    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w

    def method(self, x):
        return self.w * x


def scanned(f):
    return lambda x: cg.scan(lambda carry, _: (f(carry), None), x, length=2)[0]


def looped(f):
    return lambda x: cg.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, f(y)), (0, x), maximum_iterations=2)[1]


def overridden(f):
    return cg.override_gradients(f, {"Identity": cg.rules.built_in})


@pytest.fixture
def builds(monkeypatch):
    """One entry for each forward and backward pass that is built."""
    built_functions._table.entries.cache_clear()
    return made(monkeypatch, replay.Replay)


def call_under_a_tape(f, *args):
    return vjp(lambda: f(X, *args), X, DY)[1]


# For each program, a function of the number of the call.
PROGRAMS = {
    "a method of a class with slots": lambda i: call_under_a_tape(cg.recompute_grad(Slotted(tf.Variable(1.0)).method)),
    "a new lambda": lambda i: call_under_a_tape(cg.recompute_grad(lambda x: tf.sin(x) * x)),
    "a new variable as an argument": lambda i: call_under_a_tape(MULTIPLY, tf.Variable([1.0 * i])),
    "a new object as an argument": lambda i: call_under_a_tape(MULTIPLY, Slotted(tf.constant([2.0]))),
    "an annealed number": lambda i: call_under_a_tape(cg.recompute_grad(lambda x: tf.tanh(x / (0.5 + i)))),
    "a function of tf.custom_gradient": lambda i: call_under_a_tape(cg.recompute_grad(lambda x: tf.nn.silu(x) * 2.0)),
}


@cg.recompute_grad
def MULTIPLY(x, w):  # noqa: N802
    return tf.sin(x) * getattr(w, "w", w)


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_graphs_are_built_once(name, builds):
    for i in range(6):
        PROGRAMS[name](i)
    assert len(builds) == 1


@new_objects_alone()
def test_a_call_traces_once_and_nothing_of_it_is_kept():
    references, traces = [], []
    for size in range(3):
        state = tf.Module()
        state.w, state.mask = tf.Variable(tf.ones([3])), tf.random.normal([3, 1000 + size])

        def f(x, state=state):
            traces.append(tf.executing_eagerly())
            return tf.reduce_sum(state.mask, 1) * state.w * x

        for wrap in (cg.recompute_grad, scanned, looped, lambda f: overridden(lambda x: tf.identity(f(x)))):
            call_under_a_tape(wrap(f))
        assert traces == [False] * 4
        traces.clear()
        references += map(weakref.ref, (f, state, state.w))
        del f, state
    gc.collect()
    assert [reference() for reference in references] == [None] * 9


def test_what_is_built_is_bounded():
    built_functions._table.entries.cache_clear()
    for size in range(1, 150):
        built_functions.find_or_build(size, tf_internal.FuncGraph("empty"), [], object)
    assert built_functions._table.entries.cache_info().currsize == 128


def test_shapes_that_only_a_number_tells_are_not_confused():
    """The numbers of a range are inputs, but its length is in the graph."""

    def make(stop):
        return cg.recompute_grad(lambda x: x[0] * tf.reduce_sum(tf.reshape(tf.range(0.0, stop, 1.0), [-1])) * x)

    for stop in (3.0, 5.0):
        total = np.arange(stop).sum()
        x, dy = X.numpy(), DY.numpy()
        expected = x[0] * total * dy + np.array([total * (dy @ x), 0.0, 0.0])
        np.testing.assert_allclose(call_under_a_tape(make(stop)), expected, rtol=1e-6)


def test_random_numbers_go_on_when_a_number_changes():
    tf.random.set_seed(3)
    masks = [
        call_under_a_tape(cg.recompute_grad(lambda x, rate=rate: tf.nn.dropout(tf.tile(x, [64]), rate)[:3] + 0.0 * x))
        for rate in (0.5, 0.5, 0.4)
    ]
    assert any(np.any(masks[0] != other) for other in masks[1:])
