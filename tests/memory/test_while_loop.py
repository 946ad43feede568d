"""while_loop gives the values and gradients of the loop in NumPy, wherever it ends."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close, vjp_in_a_fresh_process
from ..support.tensors import pairs

RNG = np.random.default_rng(1)
X, W, DY = RNG.normal(size=[4]), RNG.normal(size=[4]), RNG.normal(size=[4])


def reference(x, w, dy, num_steps):
    """x after num_steps steps x = sin(w * x), and the gradients with respect to x and w."""
    values = [x]
    for _ in range(num_steps):
        values.append(np.sin(w * values[-1]))
    dw = np.zeros_like(w)
    for before in values[-2::-1]:
        dz = np.cos(w * before) * dy
        dw, dy = dw + before * dz, w * dz
    return values[-1], dy, dw


def assert_close(got, expected):
    assert_all_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.mode_table(feature="cg.while_loop", mode="mode")
@pytest.mark.parametrize(("checkpoint", "mode"), pairs(["sqrt", "log", 1, 4, 100, None], MODES))
def test_loops_that_end_anywhere(checkpoint, mode):
    w = tf.Variable(W)

    @MODES[mode]
    def run(x, num_steps):
        def body(i, x):
            return i + 1, tf.sin(w * x)

        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = cg.while_loop(lambda i, x: i < num_steps, body, (0, x), maximum_iterations=11, checkpoint=checkpoint)
        return y, *tape.gradient(y, [x, w], output_gradients=tf.constant(DY))

    for num_steps in (0, 1, 3, 4, 5, 10, 11, 50):
        assert_close(run(tf.constant(X), tf.constant(num_steps)), reference(X, W, DY, min(num_steps, 11)))


@pytest.mark.core
@pytest.mark.parametrize("mode", MODES)
def test_a_condition_on_the_values(mode):
    traces = []

    def body(y):
        traces.append(1)
        return y * y

    def cond(y):
        return tf.reduce_max(y) < 1000.0

    @MODES[mode]
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            # A single loop variable need not be in a tuple.
            (y,) = cg.while_loop(cond, body, [x], maximum_iterations=50)
        return y, tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0]))

    for start in ([3.0, 2.0], [2.0, 3.0]):
        y, dx = run(tf.constant(start))
        np.testing.assert_allclose(y, np.power(start, 8))
        np.testing.assert_allclose(dx, [8.0, 80.0] * np.power(start, 7))
    assert len(traces) == (2 if mode == "eager" else 1)


@pytest.mark.parametrize("checkpoint", ["sqrt", "log", 3, None])
def test_a_maximum_that_only_the_run_tells(checkpoint):
    w = tf.Variable(W)

    @tf.function
    def run(x, maximum):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (y,) = cg.while_loop(
                lambda x: True, lambda x: (tf.sin(w * x),), (x,), maximum_iterations=maximum, checkpoint=checkpoint
            )
        return y, *tape.gradient(y, [x, w], output_gradients=tf.constant(DY))

    for maximum in (0, 1, 2, 9, 30):
        assert_close(run(tf.constant(X), tf.constant(maximum)), reference(X, W, DY, maximum))
    assert len(run.pretty_printed_concrete_signatures().split("\n\n")) == 1


@pytest.mark.parametrize(
    ("mode", "checkpoint"),
    [
        pytest.param("eager", "log", marks=pytest.mark.mode_table(feature="cg.while_loop", mode="forward_mode_eager")),
        pytest.param("traced", "sqrt", marks=pytest.mark.mode_table(feature="cg.while_loop", mode="forward_mode")),
        ("traced", None),
    ],
)
def test_forward_mode(mode, checkpoint):
    def run(x, tangent):
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            (y,) = cg.while_loop(lambda y: True, lambda y: (y * x,), (x,), maximum_iterations=10, checkpoint=checkpoint)
        return accumulator.jvp(y)

    assert_close([MODES[mode](run)(tf.constant(X), tf.constant(DY))], [11 * X**10 * DY])


@pytest.mark.mode_table(feature="cg.while_loop", mode="vectorized_map")
@pytest.mark.mode_table(feature="cg.while_loop", mode="jacobians")
@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_vectorized_map_and_jacobians(mode):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = cg.while_loop(lambda i, y: i < 7, lambda i, y: (i + 1, tf.sin(y * X)), (0, x), maximum_iterations=9)
        return y, tape.gradient(y, x, output_gradients=tf.constant(DY))

    xs = tf.constant(RNG.normal(size=[5, 4]))
    run = MODES[mode](lambda xs: tf.vectorized_map(gradient, xs, fallback_to_while_loop=False))
    assert_close(run(xs), [tf.stack(parts) for parts in zip(*map(gradient, xs), strict=True)])
    with tf.GradientTape() as tape:
        tape.watch(xs)
        (ys,) = cg.while_loop(lambda y: True, lambda y: (tf.sin(y * X),), (xs,), maximum_iterations=7)
    expected = [np.diag(reference(x, X, np.ones(4), 7)[1]) for x in xs.numpy()]
    np.testing.assert_allclose(tape.batch_jacobian(ys, xs), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("checkpoint", "around", "map_fn"), [(None, True, False), ("sqrt", True, True), (2, False, True)]
)
def test_members_of_a_map_can_have_different_numbers_of_steps(checkpoint, around, map_fn):
    xs = tf.constant([[1.5, 0.5], [3.0, 0.1], [200.0, 7.0]], tf.float64)
    dys = tf.constant([[1.0, -10.0], [3.0, 5.0], [-2.0, 7.0]], tf.float64)
    vectorized = lambda function, elements: tf.vectorized_map(function, elements)  # noqa: E731
    mapped = (lambda f, x: tf.map_fn(f, x, fn_output_signature=tf.float64)) if map_fn else vectorized

    def run(x):
        return cg.while_loop(
            lambda y: tf.reduce_max(y) < 100.0, lambda y: (y * y,), (x,), maximum_iterations=9, checkpoint=checkpoint
        )[0]

    def gradient(function, x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=dy)

    def gradients(mapped):
        if around:
            return gradient(lambda xs: mapped(run, xs), xs, dys)
        return mapped(lambda pair: gradient(run, *pair), (xs, dys))

    powers = np.array([[16.0], [8.0], [1.0]])  # 1.5**16 = 657, 3**8 = 6561
    np.testing.assert_allclose(gradients(mapped), dys * powers * xs.numpy() ** (powers - 1), rtol=1e-12)
    if map_fn:
        with pytest.raises(tf.errors.InvalidArgumentError):
            gradients(vectorized)


@pytest.mark.mode_table(feature="cg.while_loop", mode="tf1")
def test_a_session_of_tensorflow_1():
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        x = tf.compat.v1.placeholder(tf.float64, [4])
        w = tf.compat.v1.get_variable("w", initializer=W, use_resource=True)
        (_, y) = cg.while_loop(lambda i, x: i < 6, lambda i, x: (i + 1, tf.sin(w * x)), (0, x), maximum_iterations=10)
        gradients = tf.gradients(y, [x, w], tf.constant(DY))
        session.run(tf.compat.v1.global_variables_initializer())
        assert_close(session.run([y, *gradients], {x: X}), reference(X, W, DY, 6))


@pytest.mark.mode_table(feature="cg.while_loop", mode="reloaded")
def test_a_saved_model_in_a_fresh_process(tmp_path):
    model = tf.Module()
    model.v = tf.Variable(W)

    @tf.function(input_signature=[tf.TensorSpec([4], tf.float64), tf.TensorSpec([], tf.int32)])
    def f(x, num_steps):
        return cg.while_loop(
            lambda i, x: i < num_steps, lambda i, x: (i + 1, tf.sin(model.v * x)), (0, x), maximum_iterations=100
        )[1]

    model.f = f
    *got, _ = vjp_in_a_fresh_process(model, [X, np.int32(13)], [DY], tmp_path)
    assert_close(got, reference(X, W, DY, 13))


def test_no_iterations_at_all():
    assert cg.while_loop(lambda x: True, lambda x: (2 * x,), (tf.constant(3.0),), maximum_iterations=0) == (3.0,)
