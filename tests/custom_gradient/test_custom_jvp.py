"""custom_jvp: tangents come from the rule, gradients from its transpose."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, eager, gradients, traced
from ..support.tensors import random_array

pytestmark = pytest.mark.core


def jvp(function, args, tangents):
    with tf.autodiff.ForwardAccumulator(args, tangents) as accumulator:
        y = function(*args)
    return tf.nest.map_structure(accumulator.jvp, y)


def test_a_complex_rule(rng):
    """The transpose conjugates, as TensorFlow's gradients do."""
    square = cg.custom_jvp(lambda z: z**2)
    square.defjvp(lambda primals, tangents: (primals[0] ** 2, 2 * primals[0] * tangents[0]))
    z, dy = random_array(rng, [3], tf.complex128), random_array(rng, [3], tf.complex128)
    for run in (eager, traced):
        _, (dz,) = run(square, [z], dy)
        np.testing.assert_allclose(dz, run(tf.square, [z], dy)[1][0], rtol=1e-13)


def test_only_floats_and_complex_numbers_have_a_zero_tangent(rng):
    seen = []

    @cg.custom_jvp
    def function(x, *constants):
        return 2.0 * x

    @function.defjvp
    def rule(primals, tangents):
        seen.append(tangents[1:])
        return function(*primals), 2.0 * tangents[0]

    constants = 1.5, 2j, np.float32(3.0), np.ones([2], np.complex64), 1, True, "text", None, np.arange(3)
    gradients("eager", lambda x: function(x, *constants), [tf.constant(random_array(rng, [3]))], None)
    number, imaginary, single, array, *others = seen[0]
    assert (number, imaginary) == (0.0, 0j)
    assert (single.dtype, single.shape, float(single)) == (tf.float32, [], 0.0)
    assert (array.dtype, array.shape, array.numpy().tolist()) == (tf.complex64, [2], [0j, 0j])
    assert others == [None] * 5


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_gather_keeps_its_gradient_sliced(mode):
    rows = cg.custom_jvp(lambda table: tf.gather(table, [2, 0]))
    rows.defjvp(lambda primals, tangents: (tf.gather(primals[0], [2, 0]), 5 * tf.gather(tangents[0], [2, 0])))
    table, dy = tf.ones([4, 2]), tf.constant([[1.0, 2.0], [10.0, 20.0]])

    (dx,) = gradients(mode, rows, [table], dy)
    assert isinstance(dx, tf.IndexedSlices)
    expected = [[50.0, 100.0], [0.0, 0.0], [5.0, 10.0], [0.0, 0.0]]
    np.testing.assert_array_equal(tf.convert_to_tensor(dx), expected)


@pytest.mark.parametrize("mode", RUNS)
def test_mixed_second_derivatives(mode, rng):
    """Forward over reverse and reverse over forward: the operations of the rule are differentiated."""
    x, dy, t = (tf.constant(random_array(rng, [3])) for _ in range(3))
    function = cg.custom_jvp(tf.sin)
    function.defjvp(lambda primals, tangents: (tf.sin(primals[0]), primals[0] ** 3 * tangents[0]))

    def vjp(function, x):
        return gradients("eager", function, [x], dy)[0]

    over_reverse = RUNS[mode](lambda: jvp(lambda x: vjp(function, x), [x], [t]))()
    over_forward = RUNS[mode](lambda: vjp(lambda x: jvp(function, [x], [t]), x))()
    np.testing.assert_allclose([over_reverse, over_forward], [3 * x**2 * dy * t] * 2, rtol=1e-12)


def test_the_rule_runs_only_for_a_derivative():
    calls = []
    function = cg.custom_jvp(tf.sin)
    function.defjvp(lambda primals, tangents: calls.append(1) or (primals[0], tangents[0]))
    x = tf.constant([1.0])
    function(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert not calls
    tape.gradient(y, x)
    assert len(calls) == 1
    jvp(function, [x], [x])
    assert len(calls) == 2
