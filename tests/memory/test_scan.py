"""scan gives the values and gradients of the loop in float64 NumPy, in every mode and for every segmentation."""

import collections
import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close, derivative, run_in_a_fresh_process, vjp, with_functions_run_eagerly
from ..support.tensors import pairs
from . import test_while_loop

CHECKPOINTS = ["sqrt", "log", 1, 3, 100, None]
RNG = np.random.default_rng(0)
INIT, W = RNG.normal(size=[3]), RNG.normal(size=[3, 3])
XS = RNG.normal(size=[100, 3])
DYS = RNG.normal(size=[100, 3])
DC = RNG.normal(size=[3])


def reference(init, xs, w, dc, dys, reverse=False):
    """The last carry, the outputs, and the gradients with respect to init, xs and w, step by step."""
    order = range(len(xs))[::-1] if reverse else range(len(xs))
    carries, ys = [init], np.zeros_like(xs)
    for t in order:
        carries.append(np.tanh(carries[-1] @ w + xs[t]))
        ys[t] = carries[-1] ** 2
    dxs, dw = np.zeros_like(xs), np.zeros_like(w)
    for step, t in reversed(list(enumerate(order))):
        before, after = carries[step], carries[step + 1]
        dz = (dc + 2 * after * dys[t]) * (1 - after**2)
        dxs[t], dc = dz, dz @ w.T
        dw += np.outer(before, dz)
    return carries[-1], ys, dc, dxs, dw


def scanned(w, **options):
    def f(carry, x):
        carry = tf.tanh(tf.linalg.matvec(tf.convert_to_tensor(w), carry, transpose_a=True) + x)
        return carry, carry**2

    return lambda init, xs: cg.scan(f, init, xs, **options)


def gradients_by(w, **options):
    """The results of scan and the gradients by the initial carry, the slices and w, as a function."""

    def run(init, xs):
        with tf.GradientTape() as tape:
            tape.watch([init, xs, w] if isinstance(w, tf.Tensor) else [init, xs])
            results = scanned(w, **options)(init, xs)
        upstream = [tf.constant(DC), tf.constant(DYS)[: tf.shape(xs)[0]]]
        return *results, *tape.gradient(results, [init, xs, w], output_gradients=upstream)

    return run


def assert_close(got, expected):
    assert_all_close(got, expected, rtol=1e-10, atol=1e-12)


def check(run, num_steps, reverse=False):
    found = run(tf.constant(INIT), tf.constant(XS[:num_steps]))
    assert_close(found, reference(INIT, XS[:num_steps], W, DC, DYS, reverse))


@pytest.mark.parametrize(("checkpoint", "mode"), pairs(CHECKPOINTS, MODES))
def test_values_and_gradients(checkpoint, mode):
    check(MODES[mode](gradients_by(tf.Variable(W), checkpoint=checkpoint)), 10)
    check(MODES[mode](gradients_by(tf.constant(W), checkpoint=checkpoint, reverse=True)), 7, reverse=True)


@pytest.mark.core
@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_one_step_and_no_steps(mode):
    for num_steps in (1, 0):
        check(MODES[mode](gradients_by(tf.Variable(W))), num_steps)


@pytest.mark.parametrize("checkpoint", ["sqrt", "log", 3, None])
def test_every_length_where_only_the_run_tells_it(checkpoint):
    specs = [tf.TensorSpec([None], tf.float64), tf.TensorSpec([None, None], tf.float64)]
    run = tf.function(gradients_by(tf.Variable(W), checkpoint=checkpoint), specs, autograph=False)
    for num_steps in (0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 100):
        check(run, num_steps)


def test_structures():
    point = collections.namedtuple("point", ["x", "y"])
    scales = np.array([2.0, 3.0, 5.0, 7.0, 11.0])

    def f(carry, inputs):
        total, where = carry["total"], carry["at"]
        where = point(where.x + 1, where.y * inputs["scale"][0])
        return {"total": total + where.y, "at": where}, (where.x, None, [total, {"y": where.y}])

    def run(scale):
        init = {"total": tf.zeros([2], tf.float64), "at": point(np.int32(0), np.array([1.0, 2.0]))}
        found[:] = cg.scan(f, init, {"scale": (scale,), "nothing": None})
        return found[0]["total"]

    found, scale = [], tf.constant(scales)
    total, gradient = vjp(lambda: run(scale), scale, tf.constant([1.0, 10.0], tf.float64))
    products, (x, none, (totals, y)) = np.cumprod(scales), found[1]
    assert (found[0]["at"].x, none) == (5, None)
    np.testing.assert_array_equal(x, [1, 2, 3, 4, 5])
    np.testing.assert_allclose(total, products.sum() * np.array([1.0, 2.0]))
    np.testing.assert_allclose(y["y"][:, 0], products)
    np.testing.assert_allclose(totals[:, 1], 2 * np.concatenate([[0.0], np.cumsum(products)[:-1]]))
    np.testing.assert_allclose(gradient, 21 * np.cumsum(products[::-1])[::-1] / scales, rtol=1e-12)


@pytest.mark.parametrize("init", [None, {"a": None, "b": (np.float64(2.0), None)}], ids=["none", "inside"])
def test_none_in_the_carry_stays_none(init):
    def f(carry, x):
        carry = tf.nest.map_structure(lambda leaf: None if leaf is None else 3.0 * leaf, carry)
        return carry, x**2 * (1.0 if carry is None else carry["b"][0])

    def run():
        last, ys = cg.scan(f, init, xs)
        assert where_none(last) == where_none(init)
        return ys

    where_none = functools.partial(tf.nest.map_structure, lambda leaf: leaf is None)
    xs, factors = tf.constant(XS[:3, 0]), np.array([1.0, 1.0, 1.0] if init is None else [6.0, 18.0, 54.0])
    found = vjp(run, xs, tf.constant(DYS[:3, 0]))
    assert_close(found, [xs**2 * factors, 2 * xs * factors * DYS[:3, 0]])


def test_functions_run_eagerly():
    found = with_functions_run_eagerly(lambda: gradients_by(tf.Variable(W)), [INIT, XS[:5]])
    assert_close(found, reference(INIT, XS[:5], W, DC, DYS))
    found = with_functions_run_eagerly(lambda: scanned(W), [INIT, XS[:5]])  # Without a tape.
    assert_close(found, reference(INIT, XS[:5], W, DC, DYS)[:2])


def test_composite_carries():
    def f(carry, x):
        ragged, sparse = carry
        return (ragged * x, tf.sparse.map_values(tf.multiply, sparse, x)), tf.reduce_sum(ragged)

    def total():
        init = tf.ragged.constant([[1.0, 2.0], [3.0]]), tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]])
        found[:] = cg.scan(f, init, xs)
        ragged, sparse = found[0]
        return tf.reduce_sum(ragged.flat_values) + 10 * tf.reduce_sum(sparse.values)

    found, xs = [], tf.constant([2.0, 3.0, 4.0])
    np.testing.assert_allclose(vjp(total, xs)[1], 864.0 / xs)
    (ragged, sparse), ys = found
    assert ragged.to_list() == [[24.0, 48.0], [72.0]]
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), [[0, 24], [48, 0]])
    np.testing.assert_array_equal(ys, [6, 12, 36])


in_graphs = functools.partial(pytest.mark.mode_table, mode="forward_mode")


@pytest.mark.parametrize(
    ("checkpoint", "mode"),
    [
        ("log", "eager"),
        pytest.param("sqrt", "traced", marks=in_graphs(feature="cg.scan", outcome="unsupported")),
        pytest.param(None, "traced", marks=in_graphs(feature="cg.scan, checkpoint=None")),
    ],
)
def test_forward_mode(checkpoint, mode):
    """TensorFlow makes no tangents of a loop in a loop in a tf.function."""
    x, tangent, t = np.array([0.9, 1.1]), np.array([1.0, 10.0]), np.arange(1, 11)[:, None]

    def run(x, tangent):
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            last, ys = cg.scan(lambda c, z: (c * x, c * z), x, XS[:10, 0], checkpoint=checkpoint)
        return accumulator.jvp(last), accumulator.jvp(ys)

    fails = (checkpoint, mode) == ("sqrt", "traced")
    with pytest.raises(TypeError, match=r"variant.*is not compatible") if fails else contextlib.nullcontext():
        found = MODES[mode](run)(tf.constant(x), tf.constant(tangent))
        assert_close(found, [11 * x**10 * tangent, XS[:10, :1] * t * x ** (t - 1) * tangent])


# A function of the start and w, its upstream, its gradients as a function of the start, the start and w.
WHILE_LOOP = (
    lambda x, w: [test_while_loop.looped(x, 4, w, maximum_iterations=6)],
    [test_while_loop.DY],
    lambda x: test_while_loop.reference(4, x)[1:],
    test_while_loop.X,
    test_while_loop.W,
)


def of_scan(**options):
    gradients = lambda x: reference(x, XS[:5], W, DC, DYS)[2::2]  # noqa: E731
    return lambda x, w: scanned(w, **options)(x, XS[:5]), [DC, DYS[:5]], gradients, INIT, W


@pytest.mark.parametrize(
    ("loop", "mode", "watched"),
    [
        (of_scan(), "eager", [0, 1]),
        (of_scan(checkpoint=None), "jit", [0, 1]),
        (WHILE_LOOP, "eager", [1]),  # Not what has the tangent.
    ],
    ids=["scan", "scan, checkpoint=None", "while_loop"],
)
def test_a_tape_around_an_accumulator_gives_the_hessian_vector_product(loop, mode, watched):
    function, upstream, gradients, x, w = loop
    v = np.cos(x)

    @MODES[mode]
    def slope_and_products(*sources):
        def slope():
            with tf.autodiff.ForwardAccumulator(sources[0], tf.constant(v)) as accumulator:
                values = function(*sources)
            return sum(tf.reduce_sum(accumulator.jvp(y) * dy) for y, dy in zip(values, upstream, strict=True))

        return vjp(slope, [sources[i] for i in watched])

    slope, products = slope_and_products(tf.constant(x), tf.constant(w))
    np.testing.assert_allclose(slope, gradients(x)[0] @ v, rtol=1e-12)
    above, below = gradients(x + 1e-6 * v), gradients(x - 1e-6 * v)  # Central differences in float64.
    assert_all_close(products, [(above[i] - below[i]) / 2e-6 for i in watched], rtol=1e-6, atol=1e-8)


def test_mapped_xs():
    batch = RNG.normal(size=[2, 3]), RNG.normal(size=[2, 4, 3])
    map_batch = functools.partial(tf.vectorized_map, lambda each: scanned(W)(*each), fallback_to_while_loop=False)
    last, ys = tf.function(map_batch)(batch)
    for i, each in enumerate(zip(*batch, strict=True)):
        assert_close([last[i], ys[i]], reference(*each, W, DC, DYS)[:2])


@pytest.mark.mode_table(feature="cg.scan, mapped xs", mode="vectorized_map", outcome="unsupported")
def test_the_gradient_by_mapped_xs_is_not_vectorized():
    """Nor does TensorFlow vectorize the gradient of its own tf.scan."""

    def gradient(xs):
        return vjp(lambda: cg.scan(lambda c, x: (c * x, None), tf.constant(DC), xs, checkpoint=None)[0], [xs], DC)

    with pytest.raises(TypeError, match="variant"):
        tf.vectorized_map(gradient, tf.constant(RNG.normal(size=[4, 10, 3])), fallback_to_while_loop=False)


@pytest.mark.parametrize("mode", ["traced", "jit"])
def test_inside_control_flow_and_of_itself(mode):
    def power(x, n):
        return cg.scan(lambda carry, _: (carry * x, None), tf.ones_like(x), length=n)[0]

    def value():
        body = lambda i, y: (i + 1, power(y, 3))  # noqa: E731
        _, looped = tf.while_loop(lambda i, y: i < 2, body, (0, x), maximum_iterations=2)
        # XLA compiles no gradient of a loop in a branch: TensorFlow's own tf.while_loop fails there, too.
        chosen = power(x, 4) if mode == "jit" else tf.cond(x > 1.0, lambda: power(x, 4), lambda: x)
        nested, _ = cg.scan(lambda carry, _: (carry + power(x, 3), None), 0.0, length=5)
        return looped + 10 * chosen + 100 * nested + 1000 * cg.recompute_grad(lambda x: power(x, 5))(x)

    x = tf.constant(1.1)
    y, gradient = MODES[mode](lambda: vjp(value, x))()
    np.testing.assert_allclose(y, x**9 + 10 * x**4 + 100 * 5 * x**3 + 1000 * x**5, rtol=1e-5)
    np.testing.assert_allclose(gradient, 9 * x**8 + 40 * x**3 + 1500 * x**2 + 5000 * x**4, rtol=1e-5)


@pytest.mark.parametrize("used", [0, 1])
def test_an_upstream_gradient_of_one_result_alone(used):
    upstream, xs = [DC, DYS[:9]], tf.constant(XS[:9])
    _, found = vjp(lambda: scanned(W)(INIT, xs)[used], xs, tf.constant(upstream[used]))
    upstream[1 - used] = np.zeros_like(upstream[1 - used])
    assert_close([found], [reference(INIT, XS[:9], W, *upstream)[3]])


def test_autograph_translates_the_function_where_it_translates_the_caller():
    @tf.function
    def run(xs):
        def f(carry, x):
            if x > 0.0:
                carry += x
            return carry, carry

        return cg.scan(f, 0.0, xs)

    last, ys = run(tf.constant([1.0, -2.0, 3.0, -4.0]))
    assert last == 4.0
    np.testing.assert_array_equal(ys, [1, 1, 4, 4])


@pytest.mark.core
@pytest.mark.mode_table(feature="cg.scan", mode="reloaded")
@pytest.mark.mode_table(feature="cg.while_loop", mode="reloaded")
def test_saved_functions_in_a_fresh_process(tmp_path):
    model = tf.Module()
    model.w, model.v, model.n = tf.Variable(W), tf.Variable(test_while_loop.W), tf.Variable(2.0)

    @cg.recompute_grad
    def recomputed(x):
        y = tf.nn.dropout(x, 0.5) * model.n
        model.n.assign_add(1.0)
        return y

    specs = [tf.TensorSpec([3], tf.float64), tf.TensorSpec([None, 3], tf.float64)]
    model.scan = tf.function(scanned(model.w), specs)
    specs = [tf.TensorSpec([4], tf.float64), tf.TensorSpec([], tf.int32)]
    model.loop = tf.function(lambda x, num_steps: test_while_loop.looped(x, num_steps, model.v), specs)
    model.recomputed = tf.function(recomputed, [tf.TensorSpec([64])])
    ones, dy = np.ones(64, np.float32), RNG.normal(size=64).astype(np.float32)
    tasks = {
        "scan": ([INIT, XS[:10], "w"], [DC, DYS[:10]]),
        "loop": ([test_while_loop.X, np.int32(13), "v"], [test_while_loop.DY]),
        "recomputed": ([ones, "n"], [dy]),
    }
    found = run_in_a_fresh_process(model, tasks, tmp_path)
    values, gradients, _ = found["scan"]
    assert_close([*values, *gradients], reference(INIT, XS[:10], W, DC, DYS))
    values, (dx, _, dv), _ = found["loop"]
    assert_close([*values, dx, dv], test_while_loop.reference(13))
    [y], (dx, dn), [n] = found["recomputed"]
    assert_all_close([dx, dn], [dy * y, np.sum(dy * y) / 2.0], rtol=1e-4)
    assert np.unique(y).size > 1
    assert n == 3.0


@pytest.mark.parametrize(
    ("checkpoint", "num_steps", "num_carries"), [("sqrt", 900, 30), ("log", 512, 8), ("log", 4096, 8), (100, 900, 9)]
)
def test_only_the_beginnings_of_segments_are_kept(checkpoint, num_steps, num_carries):
    @tf.function(autograph=False)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            last, _ = cg.scan(lambda c, _: (tf.sin(tf.cos(c)) * x, None), x, length=num_steps, checkpoint=checkpoint)
        return tape.gradient(last, x)

    # The lengths of the lists of Tensors of shape [7] that the outermost loops fill.
    operations = run.get_concrete_function(tf.TensorSpec([7])).graph.get_operations()
    lists = [op.inputs for op in operations if op.type in ("TensorListReserve", "EmptyTensorList")]
    shapes_and_lengths = [[tf.get_static_value(each) for each in inputs] for inputs in lists]
    assert [int(length) for shape, length in shapes_and_lengths if np.array_equal(shape, [7])] == [num_carries]


@pytest.mark.mode_table(feature="cg.scan", mode="functional", outcome="unsupported")
def test_a_functional_model_is_refused():
    with pytest.raises(TypeError, match=r"^scan: xs must hold Tensors, got a KerasTensor"):
        cg.scan(lambda carry, x: (carry, x), 0.0, keras.Input([3]))


def test_a_length_that_is_a_tensor():
    run = tf.function(lambda x, length: cg.scan(lambda carry, _: (carry * x, carry), 1.0, length=length))
    last, ys = run(tf.constant(2.0), tf.constant(5))
    assert last == 32.0
    np.testing.assert_array_equal(ys, [1, 2, 4, 8, 16])


def test_the_loops_over_segments_do_not_run_ahead():
    gradient = derivative(lambda x: cg.scan(lambda carry, x: (tf.sin(carry) + x, None), 1.0, x, checkpoint="log")[0])
    graph = tf.function(gradient).get_concrete_function(tf.TensorSpec([100])).graph
    loops = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")]
    assert [op.get_attr("parallel_iterations") for op in loops] == [1, 1]  # The loop and its gradient.
