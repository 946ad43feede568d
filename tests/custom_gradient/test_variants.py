"""custom_vjp, recompute_grad and grad_pass_through beyond what custom_gradient/test_modes.py shows."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.observed import num_eager_tensors

pytestmark = pytest.mark.core

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


@pytest.fixture(params=[False, True], ids=["eager", "traced"])
def traced(request):
    return request.param


def gradients(function, sources, traced, upstream=DY):
    def run():
        with tf.GradientTape() as tape:
            tape.watch([s for s in sources if isinstance(s, tf.Tensor)])
            y = function(*[s for s in sources if isinstance(s, tf.Tensor)])
        return tape.gradient(y, sources, output_gradients=upstream)

    return (tf.function(run) if traced else run)()


def forward(x, y, mode="a", *, scale):
    return scale * x * y, {"x": x, "y": y}


def backward(residuals, dy, mode, scale):
    assert mode in ("a", "b")
    return 10.0 * scale * residuals["y"] * dy, (100.0 if mode == "a" else 1000.0) * residuals["x"] * dy


@pytest.mark.parametrize(("mode", "factor"), [("a", 100.0), ("b", 1000.0)])
def test_custom_vjp_passes_residuals_and_nondifferentiable_arguments(mode, factor, traced):
    function = cg.custom_vjp(forward, backward, nondiff_argnames=("mode", "scale"))
    arguments = {} if mode == "a" else {"mode": mode}  # The default is passed on, too.
    dx, dy = gradients(lambda x, y: function(x, y, **arguments, scale=2.0), [X, 3.0 * X], traced)
    np.testing.assert_allclose(dx, 20 * 3 * X * DY)
    np.testing.assert_allclose(dy, factor * X * DY)


def test_custom_vjp_where_a_nondifferentiable_argument_comes_first(traced):
    function = cg.custom_vjp(
        lambda mode, x, y: (x * y, (x, y)),
        lambda residuals, dy, mode: (factors[mode] * residuals[1] * dy, residuals[0] * dy),
        nondiff_argnames=["mode"],
    )
    factors = {"a": 5.0}
    dx, dy = gradients(lambda x, y: function("a", x, y), [X, 3.0 * X], traced)
    np.testing.assert_allclose(dx, 5 * 3 * X * DY)
    np.testing.assert_allclose(dy, X * DY)


def test_custom_vjp_with_variables(traced):
    v = tf.Variable([2.0, 3.0])
    function = cg.custom_vjp(
        lambda x: (x * v, x), lambda x, dy, variables: ([4.0 * dy], [float(len(variables)) * x * dy])
    )
    dx, dv = gradients(function, [X, v], traced)
    np.testing.assert_allclose(dx, 4 * DY)
    np.testing.assert_allclose(dv, X * DY)


def test_custom_vjp_names_itself_in_messages(traced):
    function = cg.custom_vjp(forward, lambda residuals, dy, **_: dy, nondiff_argnames=("mode", "scale"))
    with pytest.raises(
        ValueError, match=r"custom_vjp: backward '<lambda>' of 'forward' returned 1 gradient; expected 2 \("
    ):
        gradients(lambda x, y: function(x, y, scale=1.0), [X, X], traced)
    with pytest.raises(TypeError, match="custom_vjp: 'no_pair' did not return its value with its residuals"):
        cg.custom_vjp(no_pair, backward)(X)


def no_pair(x):
    return x


def test_custom_vjp_is_a_method_too(traced):
    class Unit:
        factor = 5.0

        def forward(self, x):
            return x, self.factor

        apply = cg.custom_vjp(forward, lambda factor, dy: factor * dy)

    (dx,) = gradients(Unit().apply, [X], traced)
    np.testing.assert_allclose(dx, 5 * DY)


def network(weights):
    def function(x, scale=1.0):
        for w in weights:
            x = tf.tanh(x @ w) * scale
        return x

    return function


def test_recompute_grad_equals_the_plain_gradient(traced):
    rng = np.random.default_rng(0)
    weights = [tf.Variable(rng.normal(size=[4, 4])) for _ in range(3)]
    x, dy = tf.constant(rng.normal(size=[2, 4])), tf.constant(rng.normal(size=[2, 4]))
    scale = tf.constant(0.7, tf.float64)

    def all_gradients(function):
        def run(x, scale):
            with tf.GradientTape() as tape:
                tape.watch([x, scale])
                y = function(x, scale=scale)
            return tape.gradient(y, [x, scale, *weights], output_gradients=dy)

        return (tf.function(run) if traced else run)(x, scale)

    plain = all_gradients(network(weights))
    for recomputed, expected in zip(all_gradients(cg.recompute_grad(network(weights))), plain, strict=True):
        np.testing.assert_allclose(recomputed, expected, rtol=1e-12)


def test_eager_recompute_grad_traces_once_and_computes_once_more_for_each_gradient():
    traced, computed = [], []

    def count(x):
        computed.append(1)
        return x

    @cg.recompute_grad
    def function(x):
        traced.append(1)
        x = tf.grad_pass_through(lambda x: tf.ensure_shape(stateless_op(count, x), [2]))(x)
        return tf.sin(x)

    for _ in range(2):
        computed.clear()
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(X)
            y = function(X)
        assert len(computed) == 1
        for number in (2, 3):
            dx = tape.gradient(y, X, output_gradients=DY)
            np.testing.assert_allclose(dx, DY * tf.cos(X), rtol=1e-6)
            assert len(computed) == number
    assert len(traced) == 1


def stateless_op(count, x):
    return tf.numpy_function(count, [x], tf.float32, stateful=False)


@pytest.mark.parametrize("where", ["plain", "loop"])
def test_a_graph_recomputes_once_for_each_gradient_at_run_time(where):
    """Counted by a Python function in the graph: the two computations are not merged, and there is no third."""
    counted = []

    def count(x):
        counted.append(1)
        return x

    @cg.recompute_grad
    def function(x):
        x = tf.grad_pass_through(lambda x: tf.ensure_shape(stateless_op(count, x), [2]))(x)
        return tf.sin(x)

    def loop(x):
        return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, function(x)), (0, x))[1]

    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x) if where == "plain" else loop(x)
        return y, tape.gradient(y, x, output_gradients=DY)

    _, dx = run(X)
    assert len(counted) == (2 if where == "plain" else 6)
    expected = DY.numpy()
    x = X.numpy()
    chain = [x] if where == "plain" else [x, np.sin(x), np.sin(np.sin(x))]
    for link in chain:
        expected = expected * np.cos(link)
    np.testing.assert_allclose(dx, expected, rtol=1e-5)


def test_the_recomputation_is_not_merged_with_the_first_one():
    """Two error functions in the optimised graph, where common subexpressions would leave one."""

    with tf.Graph().as_default() as graph:
        x, dy = tf.compat.v1.placeholder(tf.float32, [2]), tf.compat.v1.placeholder(tf.float32, [2])
        y = cg.recompute_grad(lambda x: x * tf.math.erf(x))(x)
        (dx,) = tf.gradients(y, x, grad_ys=dy)
        with tf.compat.v1.Session(graph=graph) as session:
            run_metadata = tf.compat.v1.RunMetadata()
            full = tf.compat.v1.RunOptions(output_partition_graphs=True)
            session.run([y, dx], {x: [1.0, 2.0], dy: [1.0, 10.0]}, full, run_metadata)
    executed = [node.op for partition in run_metadata.partition_graphs for node in partition.node]
    assert executed.count("Erf") == 2


def test_xla_does_not_merge_an_elementwise_recomputation_either():
    """Two hyperbolic tangents in the compiled program; the plain gradient has one, which it keeps."""

    def count(wrap):
        @tf.function(jit_compile=True)
        def run(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = wrap(lambda x: tf.tanh(tf.sin(x) * x))(x)
            return y, tape.gradient(y, x, output_gradients=dy)

        x = tf.ones([100])
        return run.experimental_get_compiler_ir(x, x)(stage="optimized_hlo").count(" tanh(")

    assert count(lambda f: f) == 1
    assert count(cg.recompute_grad) == 2


@pytest.mark.parametrize("loss", [tf.reduce_sum, lambda y: tf.reduce_sum(y * y)], ids=["linear", "quadratic"])
@pytest.mark.parametrize("loop", [False, True], ids=["", "loop"])
def test_xla_does_not_merge_the_matrix_products_of_a_recomputation(loss, loop):
    """Two in the forward pass, two in the recomputation, and two for the gradient by x; without it, four in all."""
    w = tf.random.stateless_normal([16, 16], [1, 2])

    def body(x):
        return tf.sin(tf.matmul(tf.sin(tf.matmul(x, w)), w))

    def count(wrap):
        function = wrap(body)

        @tf.function(jit_compile=True)
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                if loop:
                    y = tf.while_loop(
                        lambda i, x: i < 3, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=3
                    )[1]
                else:
                    y = function(x)
                value = loss(y)
            return value, tape.gradient(value, x)

        x = tf.ones([16, 16])
        program = run.experimental_get_compiler_ir(x)(stage="optimized_hlo")
        return program.count(" dot("), run(x)[1]

    plain, expected = count(lambda f: f)
    recomputed, dx = count(cg.recompute_grad)
    assert (plain, recomputed) == (4, 6)
    np.testing.assert_allclose(dx, expected, rtol=1e-5, atol=1e-6)


def test_recompute_grad_with_variables_and_structures_as_arguments(traced):
    v = tf.Variable([2.0, 3.0])

    @cg.recompute_grad
    def function(tree, v):
        assert v.handle is not None
        return tree["x"] * v + tree["ragged"].values

    def run(x):
        return function({"x": x, "ragged": tf.RaggedTensor.from_row_lengths(5.0 * x, [2])}, v)

    dx, dv = gradients(run, [X, v], traced)
    np.testing.assert_allclose(dx, DY * (v + 5.0))
    np.testing.assert_allclose(dv, DY * X)


def test_eager_recompute_grad_keeps_no_intermediate():
    """Between the passes the tape holds the argument and the value, and none of the ten tensors between them."""

    def deep(x):
        for _ in range(10):
            x = tf.sin(x) * tf.cos(x)
        return x

    def kept_by(function):
        x = tf.ones([1237])
        before = num_eager_tensors([1237])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        kept = num_eager_tensors([1237]) - before
        tape.gradient(y, x)
        return kept

    assert kept_by(cg.recompute_grad(deep)) <= 3
    assert kept_by(deep) >= 20


def test_grad_pass_through_leaves_variables_without_gradient(traced):
    v = tf.Variable([2.0, 3.0])
    function = cg.grad_pass_through(lambda x: tf.round(x * v))
    dx, dv = gradients(function, [X, v], traced)
    np.testing.assert_allclose(dx, DY)
    assert dv is None


def test_grad_pass_through_of_a_value_of_another_shape_is_refused(traced):
    with pytest.raises(
        ValueError,
        match=r"grad_pass_through: '<lambda>' does not keep the shape of 'x'; expected \(2,\), got \(\)\. Use",
    ):
        gradients(cg.grad_pass_through(lambda x: tf.reduce_sum(x)), [X], traced, tf.constant(1.0))


def test_grad_pass_through_of_a_bound_method(traced):
    """The usual use: an assignment with a gradient."""
    z = tf.Variable([0.0, 0.0])
    (dx,) = gradients(cg.grad_pass_through(z.assign), [X], traced)
    np.testing.assert_allclose(dx, DY)
    np.testing.assert_allclose(z, X)


@pytest.mark.parametrize("names", ["scale", ["nope"]], ids=str)
def test_custom_vjp_refuses_names_that_are_no_arguments(names):
    message = (
        r"custom_vjp: nondiff_argnames does not name arguments of 'forward'; expected some of \['x', 'y', 'mode', 's"
    )
    with pytest.raises(ValueError, match=message):
        cg.custom_vjp(forward, backward, nondiff_argnames=names)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_arguments_that_are_no_tensors_need_no_gradient(traced):
    """A tf.function passes the name=None of tf.round, which is an argument then, but none with a gradient."""
    function = cg.grad_pass_through(tf.round)
    function = tf.function(function) if traced else function
    x = tf.constant([0.2, 0.7])
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x, name="rounded") if not traced else function(x)
    np.testing.assert_array_equal(value, [0.0, 1.0])
    np.testing.assert_array_equal(tape.gradient(value, x, output_gradients=tf.constant([1.0, 10.0])), [1.0, 10.0])


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["", "functions_run_eagerly"])
def test_tangents_of_a_recomputation_with_all_kinds_of_arguments(run_eagerly):
    """Structures, a ragged tensor, a keyword, what is no tensor, and a variable."""
    v = tf.Variable([2.0, 3.0])

    @cg.recompute_grad
    def function(tree, name, *, power):
        assert name == "name"
        return tf.sin(tree["x"]) * v * tree["ragged"].values * power

    def run(x):
        return function({"x": x, "ragged": tf.RaggedTensor.from_row_lengths(5.0 * x, [2])}, "name", power=x)

    tf.config.run_functions_eagerly(run_eagerly)
    try:
        with tf.autodiff.ForwardAccumulator(X, DY) as accumulator:
            y = run(X)
        tangent = accumulator.jvp(y)
        with tf.autodiff.ForwardAccumulator(v, DY) as accumulator:
            y = run(X)
        by_variable = accumulator.jvp(y)
    finally:
        tf.config.run_functions_eagerly(False)
    x, t = X.numpy().astype(np.float64), DY.numpy()
    np.testing.assert_allclose(tangent, 5 * v.numpy() * (np.cos(x) * x**2 + 2 * x * np.sin(x)) * t, rtol=1e-5)
    np.testing.assert_allclose(by_variable, 5 * np.sin(x) * x**2 * t, rtol=1e-5)
