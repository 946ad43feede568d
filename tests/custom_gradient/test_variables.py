"""Which variables a function reads, and when its rule reads them, beyond the values and gradients of cases.py."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients

pytestmark = pytest.mark.core

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])
def test_a_variable_created_inside(wrap):
    made = []

    @cg.custom_gradient
    def function(x):
        if not made:
            made.append(tf.Variable([1.0, 1.0]))
        return x * made[0], lambda dy, variables: (2.0 * dy, [3.0 * dy])

    run = wrap(lambda x: function(x))
    for _ in range(2):  # Shared by the calls after the first.
        run(X)
        np.testing.assert_allclose(gradients("eager", lambda x, _: run(x), [X, made[0]], DY), [2 * DY, 3 * DY])


def test_reference_variables_of_tensorflow_1_are_arguments():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.get_variable("v", [2], initializer=tf.ones_initializer(), use_resource=False)
        x = tf.constant([1.0, 2.0])
        y = cg.custom_gradient(lambda x, v: (x * v, lambda dy: (3.0 * dy, 5.0 * dy)))(x, v)
        found = tf.gradients(y, [x, v], grad_ys=tf.constant([1.0, 10.0]))
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(found), [[3.0, 30.0], [5.0, 50.0]])


@pytest.mark.parametrize("mode", RUNS)
def test_a_grad_fn_reads_what_a_variable_holds_when_it_runs(mode):
    """As with tf.custom_gradient. Nobody watches the variable, which is not trainable, so no gradient is wanted for it."""
    v = tf.Variable([2.0, 3.0], trainable=False)
    product = cg.custom_gradient(lambda x: (x * v, lambda dy: dy * v))

    def run(x):
        v.assign([2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = product(x)
        v.assign([100.0, 1000.0])
        return tape.gradient(y, x, output_gradients=DY)

    np.testing.assert_array_equal(RUNS[mode](run)(X), DY * [100.0, 1000.0])


def test_a_watched_variable_is_an_error_for_a_grad_fn_that_takes_none():
    v = tf.Variable([3.0, 4.0], trainable=False, name="frozen")
    function = cg.custom_gradient(lambda x: (x * v, lambda dy: dy))

    with pytest.raises(TypeError, match=r"reads variables that are not among its arguments \('frozen:0'\)"):
        gradients("traced", lambda v: function(X), [v], DY)
    np.testing.assert_allclose(function(X), [3.0, 8.0])


def test_a_function_that_was_traced_before_a_variable_was_watched():
    """A trace does not know the tapes of later calls. Traced under the tape, it has the gradient."""
    v = tf.Variable([3.0, 4.0], trainable=False)
    product = cg.custom_gradient(lambda x: (x * v, lambda dy, variables=(): (dy, [5.0 * dy]) if variables else dy))
    traced_now, traced_before = tf.function(product), tf.function(product)
    traced_before(X)
    (dv,) = gradients("eager", lambda v: traced_now(X), [v], DY)
    np.testing.assert_allclose(dv, 5.0 * DY)
    assert gradients("eager", lambda v: traced_before(X), [v], DY) == [None]


V = tf.Variable([2.0, 3.0])
COUNT = tf.Variable(0.0, trainable=False)


def by_a_tape(read):
    with tf.GradientTape() as tape:
        half = tf.reduce_sum(read() ** 2) / 2.0
    return tf.convert_to_tensor(tape.gradient(half, V))


def after_a_write():
    COUNT.assign_add(1.0)
    return V * COUNT / COUNT


def between_reads():
    before = COUNT.read_value()
    COUNT.assign_add(2.0)
    return V * (COUNT.read_value() - before) / 2.0


# Ways in which a rule computes the value of V.
READS = {
    "once": lambda: V + 0.0,
    "twice": lambda: V * V / V,
    "slices": lambda: tf.gather(V, [0, 1]),
    "tape": lambda: by_a_tape(lambda: V),
    "tape, slices": lambda: by_a_tape(lambda: tf.gather(V, [0, 1])),
    "branch": lambda: tf.cond(tf.reduce_sum(V) > 0.0, lambda: V + 0.0, lambda: 2.0 * V),
    "loop": lambda: tf.while_loop(
        lambda *_: True, lambda i, sum_: (i + 1, sum_ + V / 2.0), (0, tf.zeros(2)), maximum_iterations=2
    )[1],
    "called function": tf.function(lambda: V + 0.0),
    "after a write": after_a_write,
    "before and after a write": between_reads,
}


def second_order(function, v):
    def run(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch([x, v])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            dx = tape.gradient(y, x, DY)
        return dx, outer.gradient(dx, x, DY), tf.convert_to_tensor(outer.gradient(dx, v, DY))

    return run


@pytest.mark.parametrize("mode", [*RUNS, "reloaded"])
@pytest.mark.parametrize("read", READS)
def test_a_rule_reads_a_variable_in_any_way(read, mode, tmp_path):
    function, v = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * READS[read]() * x**2)), V
    if mode == "reloaded":
        module = tf.Module()
        module.v, module.count = V, COUNT
        module.f = tf.function(function, input_signature=[tf.TensorSpec([2])])
        tf.saved_model.save(module, tmp_path)
        loaded = tf.saved_model.load(tmp_path)
        function, v = loaded.f, loaded.v
    found = RUNS.get(mode, lambda f: f)(second_order(function, v))(X)
    by_hand = [DY * V * X**2, DY**2 * V * 2.0 * X, DY**2 * X**2]
    for gradient, expected in zip(found, by_hand, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
