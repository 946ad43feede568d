"""Captured variables of every kind are found by their handles, in the same order in every mode."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.modes import gradients

pytestmark = pytest.mark.core

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


def linear(*variables):
    """Reads the variables, in this order; the gradient of the i-th one of grad_fn's list is 10**(i + 1) dy."""

    @cg.custom_gradient
    def function(x):
        y = x + tf.add_n([tf.convert_to_tensor(v) for v in variables])

        def grad_fn(dy, variables):
            return 7.0 * dy, [10.0 ** (i + 1) * dy for i, _ in enumerate(variables)]

        return y, grad_fn

    return function


@pytest.fixture(params=["eager", "traced"])
def mode(request):
    return request.param


def test_trainable_variables_come_once_in_the_order_of_their_creation(mode):
    """Names do not matter; one is read twice."""
    first, second, third = (tf.Variable([0.0, 0.0], name=name) for name in ("same", "a", "same"))
    frozen = tf.Variable([0.0, 0.0], trainable=False)
    dx, *by_variable = gradients(
        mode, lambda x, *_: linear(third, first, frozen, second, first)(x), [X, first, second, third], DY
    )
    np.testing.assert_allclose(dx, 7 * DY)
    np.testing.assert_allclose(by_variable, [10 * DY, 100 * DY, 1000 * DY])


@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable], ids=["tf", "keras"])
def test_a_variable_passed_as_an_argument_is_not_captured(kind, mode):
    passed, captured = kind([0.5, 0.5]), tf.Variable([0.0, 0.0])

    @cg.custom_gradient
    def function(x, v):
        def grad_fn(dy, variables):
            assert len(variables) == 1
            return (dy, 3.0 * dy), [5.0 * dy]

        return x * v + captured, grad_fn

    variable = passed.value if isinstance(passed, keras.Variable) else passed
    _, dv, dw = gradients(mode, lambda x, *_: function(x, passed), [X, variable, captured], DY)
    np.testing.assert_allclose(dv, 3 * DY)
    np.testing.assert_allclose(dw, 5 * DY)


@pytest.mark.parametrize("where", ["cond", "while_loop", "function"])
def test_variables_read_in_inner_graphs(where, mode):
    v = tf.Variable([2.0, 3.0])

    def body(x):
        if where == "cond":
            return tf.cond(x[0] > 0, lambda: x * v, lambda: x)
        if where == "while_loop":
            return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x * v), (0, x))[1]
        return tf.function(lambda x: x * v)(x)

    @cg.custom_gradient
    def function(x):
        return body(x), lambda dy, variables: (4.0 * dy, [6.0 * dy * x])

    dx, dv = gradients(mode, lambda x, *_: function(x), [X, v], DY)
    np.testing.assert_allclose(dx, 4 * DY)
    np.testing.assert_allclose(dv, 6 * DY * X)


@pytest.mark.parametrize("make", [tf.Variable, tf.constant], ids=["variable", "constant"])
def test_second_order_by_what_only_grad_fn_reads(make, mode):
    """It is captured from outside of the graph, and f has not captured it before."""
    scale = make([2.0, 3.0])
    function = cg.custom_gradient(lambda x: (x**2, lambda dy: 10.0 * dy * scale * x))

    def first(x, _):
        return gradients("eager", function, [x], DY)[0]

    by_x, by_scale = gradients(mode, first, [X, scale], None)
    np.testing.assert_allclose(by_x, 10 * DY * scale)
    np.testing.assert_allclose(by_scale, 10 * DY * X)


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_weights_of_a_layer_in_mixed_precision(library, policy, mode):
    layer = library.layers.Dense(
        2, use_bias=False, dtype=library.mixed_precision.Policy(policy) if library is tf_keras else policy
    )
    layer.build([None, 2])

    @cg.custom_gradient
    def function(x):
        y = layer(x)

        def grad_fn(dy, variables):
            assert len(variables) == 1
            return None, [tf.cast(tf.transpose(x), tf.float32) @ tf.cast(dy, tf.float32) * 10.0]

        return y, grad_fn

    x, dy = tf.constant([[1.0, 2.0]]), tf.constant([[1.0, 10.0]])
    variable = layer.kernel.value if library is keras else layer.kernel
    (gradient,) = gradients(mode, lambda _: tf.cast(function(x), tf.float32), [variable], dy)
    assert gradient.dtype == tf.float32
    np.testing.assert_allclose(gradient, [[10.0, 100.0], [20.0, 200.0]])


def test_a_variable_created_inside(mode):
    made = []

    @cg.custom_gradient
    def function(x):
        if not made:
            made.append(tf.Variable([1.0, 1.0]))
        return x * made[0], lambda dy, variables: (2.0 * dy, [3.0 * dy])

    run = tf.function(lambda x: function(x)) if mode == "traced" else function
    for _ in range(2):  # Shared by the calls after the first.
        run(X)
        np.testing.assert_allclose(gradients("eager", lambda x, _: run(x), [X, made[0]], DY), [2 * DY, 3 * DY])


def test_variables_in_a_tensorflow_1_graph():
    with tf.Graph().as_default():
        b = tf.compat.v1.get_variable("b", [2], initializer=tf.ones_initializer(), use_resource=True)
        a = tf.compat.v1.get_variable("a", [2], initializer=tf.ones_initializer(), use_resource=True)
        x = tf.constant([1.0, 2.0])
        y = linear(a, b)(x)
        gradients = tf.gradients(y, [x, b, a], grad_ys=tf.constant([1.0, 10.0]))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found = session.run(gradients)
    np.testing.assert_allclose(found, [[7.0, 70.0], [10.0, 100.0], [100.0, 1000.0]])


def test_reference_variables_of_tensorflow_1_are_refused_unless_they_are_passed():
    with tf.Graph().as_default():
        v = tf.compat.v1.get_variable("v", [2], initializer=tf.ones_initializer(), use_resource=False)
        x = tf.constant([1.0, 2.0])
        message = (
            r"^custom_gradient: 'function' must not use reference variables of TensorFlow 1, got "
            r"'v'. Make them with use_resource=True, or pass them as arguments.$"
        )

        @cg.custom_gradient
        def function(x):
            return x * v, lambda dy: dy

        with pytest.raises(TypeError, match=message):
            function(x)

        y = cg.custom_gradient(lambda x, v: (x * v, lambda dy: (3.0 * dy, 5.0 * dy)))(x, v)
        gradients = tf.gradients(y, [x, v], grad_ys=tf.constant([1.0, 10.0]))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found = session.run(gradients)
    np.testing.assert_allclose(found, [[3.0, 30.0], [5.0, 50.0]])


@pytest.mark.parametrize("mode", ["eager", "traced", "jit"])
def test_a_grad_fn_reads_what_a_variable_holds_when_it_runs(mode):
    """As with tf.custom_gradient."""
    v = tf.Variable([2.0, 3.0], trainable=False)
    product = cg.custom_gradient(lambda x: (x * v, lambda dy: dy * v))

    def run(x):
        v.assign([2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = product(x)
        v.assign([100.0, 1000.0])
        return tape.gradient(y, x, output_gradients=DY)

    run = run if mode == "eager" else tf.function(run, jit_compile=mode == "jit")
    np.testing.assert_array_equal(run(X), DY * [100.0, 1000.0])


def test_a_rule_that_writes_to_a_variable_keeps_it():
    count = tf.Variable(0.0, trainable=False)

    @cg.custom_gradient
    def counting(x):
        def grad_fn(dy):
            count.assign_add(1.0)
            return dy * count.read_value()

        return 2.0 * x, grad_fn

    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = counting(x)
        return tape.gradient(y, x, output_gradients=DY)

    np.testing.assert_array_equal(run(X), DY)
    np.testing.assert_array_equal(run(X), 2 * DY)
