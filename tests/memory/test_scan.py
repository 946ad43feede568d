"""scan gives the values and gradients of the loop in float64 NumPy, in every mode and for every segmentation."""

import collections
import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close, derivative, vjp, vjp_in_a_fresh_process
from ..support.tensors import pairs

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


def scan_gradients(num_steps, w, *, wrap=lambda run: run, reverse=False, **options):
    def f(carry, x):
        carry = tf.tanh(tf.linalg.matvec(tf.convert_to_tensor(w), carry, transpose_a=True) + x)
        return carry, carry**2

    def run(init, xs):
        with tf.GradientTape() as tape:
            tape.watch([init, xs, w] if isinstance(w, tf.Tensor) else [init, xs])
            last, ys = cg.scan(f, init, xs, reverse=reverse, **options)
        return last, ys, *tape.gradient([last, ys], [init, xs, w], output_gradients=[DC, DYS[:num_steps]])

    return wrap(run)(tf.constant(INIT), tf.constant(XS[:num_steps]))


def assert_close(got, expected):
    assert_all_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.mode_table(feature="cg.scan", mode="mode")
@pytest.mark.parametrize(("checkpoint", "mode"), pairs(CHECKPOINTS, MODES))
def test_values_and_gradients(checkpoint, mode):
    for w, num_steps, reverse in ((tf.Variable(W), 10, False), (tf.constant(W), 7, True)):
        got = scan_gradients(num_steps, w, wrap=MODES[mode], checkpoint=checkpoint, reverse=reverse)
        assert_close(got, reference(INIT, XS[:num_steps], W, DC, DYS, reverse))


@pytest.mark.core
@pytest.mark.parametrize("mode", MODES)
def test_one_step_and_no_steps(mode):
    assert_close(scan_gradients(1, tf.Variable(W), wrap=MODES[mode]), reference(INIT, XS[:1], W, DC, DYS))
    last, ys, dinit, dxs, dw = scan_gradients(0, tf.Variable(W), wrap=MODES[mode])
    assert ys.shape == dxs.shape == [0, 3]
    assert_close([last, dinit, dw], [INIT, DC, np.zeros_like(W)])


@pytest.mark.mode_table(feature="cg.scan", mode="unknown_shape")
@pytest.mark.parametrize("checkpoint", ["sqrt", "log", 3, None])
def test_every_length_where_only_the_run_tells_it(checkpoint):
    w = tf.Variable(W)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float64), tf.TensorSpec([None, None], tf.float64)], autograph=False
    )
    def run(init, xs):
        def f(carry, x):
            carry = tf.tanh(tf.linalg.matvec(w, carry, transpose_a=True) + x)
            return carry, carry**2

        with tf.GradientTape() as tape:
            tape.watch([init, xs])
            last, ys = cg.scan(f, init, xs, checkpoint=checkpoint)
        dys = tf.constant(DYS)[: tf.shape(xs)[0]]
        return last, ys, *tape.gradient([last, ys], [init, xs, w], output_gradients=[tf.constant(DC), dys])

    for num_steps in (1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 100):
        assert_close(run(INIT, XS[:num_steps]), reference(INIT, XS[:num_steps], W, DC, DYS))
    last, ys, dinit, dxs, dw = run(INIT, XS[:0])
    assert ys.shape == dxs.shape == [0, 3]
    assert_close([last, dinit, dw], [INIT, DC, np.zeros_like(W)])


@pytest.mark.parametrize("mode", MODES)
def test_structures(mode):
    point = collections.namedtuple("point", ["x", "y"])

    def f(carry, inputs):
        total, where = carry["total"], carry["at"]
        where = point(where.x + 1, where.y * inputs["scale"][0])
        return {"total": total + where.y, "at": where}, (where.x, None, [total, {"y": where.y}])

    @MODES[mode]
    def run(scale):
        with tf.GradientTape() as tape:
            tape.watch(scale)
            init = {"total": 0.0, "at": point(np.int32(0), tf.constant([1.0, 2.0]) * 1.0)}
            init["total"] = tf.zeros([2])
            last, ys = cg.scan(f, init, {"scale": (scale,), "nothing": None})
        return last, ys, tape.gradient(last["total"], scale, output_gradients=tf.constant([1.0, 10.0]))

    last, ys, gradient = run(tf.constant([2.0, 3.0, 5.0, 7.0, 11.0]))
    assert isinstance(last["at"], point)
    assert last["at"].x == 5
    products = np.cumprod([2.0, 3.0, 5.0, 7.0, 11.0])
    np.testing.assert_allclose(last["total"], products.sum() * np.array([1.0, 2.0]))
    x, none, (total, y) = ys
    assert none is None
    np.testing.assert_array_equal(x, [1, 2, 3, 4, 5])
    np.testing.assert_allclose(y["y"][:, 0], products)
    np.testing.assert_allclose(total[:, 1], 2 * np.concatenate([[0.0], np.cumsum(products)[:-1]]))
    tails = [products[t:].sum() / scale for t, scale in enumerate([2.0, 3.0, 5.0, 7.0, 11.0])]
    np.testing.assert_allclose(gradient, 21 * np.array(tails), rtol=1e-5)


TWO = np.float64(2.0)


@pytest.mark.parametrize(("init", "mode"), [(None, "eager"), ({"a": None, "b": (TWO, None)}, "traced")])
def test_none_in_the_carry_stays_none(init, mode):
    def f(carry, x):
        numbers = [3.0 * leaf for leaf in tf.nest.flatten(carry) if leaf is not None]
        remaining = iter(numbers)
        carry = tf.nest.map_structure(lambda leaf: None if leaf is None else next(remaining), carry)
        return carry, x**2 * (numbers[0] if numbers else 1.0)

    factors = np.array([1.0, 1.0, 1.0] if init is None else [6.0, 18.0, 54.0])
    structure = []

    @MODES[mode]
    def run(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            last, ys = cg.scan(f, init, xs)
        structure.append(tf.nest.map_structure(lambda leaf: None if leaf is None else 0, last))
        return ys, tape.gradient(ys, xs, output_gradients=tf.constant(DYS[:3, 0]))

    xs = XS[:3, 0]
    ys, dxs = run(tf.constant(xs))
    assert structure[0] == tf.nest.map_structure(lambda leaf: None if leaf is None else 0, init)
    np.testing.assert_allclose(ys, xs**2 * factors, rtol=1e-12)
    np.testing.assert_allclose(dxs, 2 * xs * factors * DYS[:3, 0], rtol=1e-12)


@pytest.mark.parametrize("records", [False, True])
def test_functions_run_eagerly(records):
    xs = XS[:5, 0]
    tf.config.run_functions_eagerly(True)
    try:
        with tf.GradientTape() if records else contextlib.nullcontext() as tape:
            x = tf.Variable(xs)
            last, ys = cg.scan(lambda carry, x: (carry + x**2, carry), tf.constant(0.0, tf.float64), x)
        gradient = tape.gradient([last, ys], x, output_gradients=[np.float64(3.0), DYS[:5, 0]]) if records else None
    finally:
        tf.config.run_functions_eagerly(False)
    sums = np.cumsum(xs**2)
    np.testing.assert_allclose(last, sums[-1], rtol=1e-12)
    np.testing.assert_allclose(ys, [0.0, *sums[:-1]], rtol=1e-12)
    if records:
        later = np.append(np.cumsum(DYS[4:0:-1, 0])[::-1], 0.0)
        np.testing.assert_allclose(gradient, 2 * xs * (3.0 + later), rtol=1e-12)


def test_composite_carries():
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    sparse = tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]])

    def f(carry, x):
        ragged, sparse = carry
        return (ragged * x, tf.sparse.map_values(tf.multiply, sparse, x)), tf.reduce_sum(ragged)

    with tf.GradientTape() as tape:
        xs = tf.constant([2.0, 3.0, 4.0])
        tape.watch(xs)
        (ragged, sparse), ys = cg.scan(f, (ragged, sparse), xs)
        total = tf.reduce_sum(ragged.flat_values) + 10 * tf.reduce_sum(sparse.values)
    assert ragged.to_list() == [[24.0, 48.0], [72.0]]
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), [[0, 24], [48, 0]])
    np.testing.assert_array_equal(ys, [6, 12, 36])
    np.testing.assert_allclose(tape.gradient(total, xs), 864.0 / np.array([2.0, 3.0, 4.0]))


@pytest.mark.mode_table(feature="cg.scan", mode="forward_mode_eager")
@pytest.mark.parametrize("checkpoint", ["sqrt", "log", None])
def test_forward_mode(checkpoint):
    x, tangent = np.array([0.9, 1.1]), np.array([1.0, 10.0])
    x_tensor = tf.constant(x)
    with tf.autodiff.ForwardAccumulator(x_tensor, tf.constant(tangent)) as accumulator:
        last, ys = cg.scan(lambda carry, t: (carry * x_tensor, carry * t), x_tensor, XS[:10, 0], checkpoint=checkpoint)
    np.testing.assert_allclose(accumulator.jvp(last), 11 * x**10 * tangent, rtol=1e-10)
    t = np.arange(1, 11)[:, None]
    np.testing.assert_allclose(accumulator.jvp(ys), XS[:10, :1] * t * x ** (t - 1) * tangent, rtol=1e-10)


@pytest.mark.parametrize(
    ("checkpoint", "works"),
    [
        pytest.param(
            "sqrt", False, marks=pytest.mark.mode_table(feature="cg.scan", mode="forward_mode", outcome="unsupported")
        ),
        pytest.param(None, True, marks=pytest.mark.mode_table(feature="cg.scan, checkpoint=None", mode="forward_mode")),
    ],
)
def test_forward_mode_in_a_function(checkpoint, works):
    """TensorFlow makes no tangents of a loop in a loop there."""
    x, tangent = np.array([0.9, 1.1]), np.array([1.0, 10.0])

    @tf.function(autograph=False)
    def run(x, tangent):
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            last, _ = cg.scan(lambda c, t: (c * x, c * t), x, XS[:10, 0], checkpoint=checkpoint)
        return accumulator.jvp(last)

    error = pytest.raises(TypeError, match=r"variant.*is not compatible")
    with contextlib.nullcontext() if works else error:
        np.testing.assert_allclose(run(tf.constant(x), tf.constant(tangent)), 11 * x**10 * tangent, rtol=1e-10)


@pytest.mark.mode_table(feature="cg.scan", mode="vectorized_map")
def test_vectorized_map():
    """Without segments, whose gradient TensorFlow takes long to vectorize: while_loop is tested with them."""
    xs = tf.constant(XS[:4])

    def value(arguments):
        return cg.scan(lambda c, x: (tf.tanh(c * x), c * c), *arguments)

    def gradient(init):
        dys = tf.constant(DC), tf.constant(DYS[:4])
        return vjp(lambda: cg.scan(lambda c, x: (c * x, c * c), init, xs, checkpoint=None), [init, xs], dys)

    inits, mapped_xs = tf.constant(RNG.normal(size=[3, 3])), tf.constant(RNG.normal(size=[3, 10, 3]))
    for function, batch in ((value, (inits, mapped_xs)), (gradient, inits)):
        found = tf.nest.flatten(tf.vectorized_map(function, batch, fallback_to_while_loop=False))
        examples = [tf.nest.flatten(function(example)) for example in tf.data.Dataset.from_tensor_slices(batch)]
        assert_close(found, map(tf.stack, zip(*examples, strict=True)))


@pytest.mark.mode_table(feature="cg.scan, mapped xs", mode="vectorized_map", outcome="unsupported")
def test_the_gradient_by_mapped_xs_is_not_vectorized():
    """Nor does TensorFlow vectorize the gradient of its own tf.scan."""

    def gradient(xs):
        return vjp(lambda: cg.scan(lambda c, x: (c * x, None), tf.constant(DC), xs, checkpoint=None)[0], [xs], DC)

    with pytest.raises(TypeError, match="variant"):
        tf.vectorized_map(gradient, tf.constant(RNG.normal(size=[4, 10, 3])), fallback_to_while_loop=False)


@pytest.mark.parametrize(
    "mode",
    [
        "eager",
        pytest.param(
            "traced",
            marks=[
                pytest.mark.mode_table(feature="cg.scan", mode="while_loop"),
                pytest.mark.mode_table(feature="cg.scan", mode="cond"),
            ],
        ),
        pytest.param("jit", marks=pytest.mark.mode_table(feature="cg.scan", mode="while_loop_under_xla")),
    ],
)
def test_inside_control_flow_and_of_itself(mode):
    def power(x, n):
        return cg.scan(lambda carry, _: (carry * x, None), tf.ones_like(x), length=n)[0]

    @MODES[mode]
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            looped = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, power(y, 3)), (0, x), maximum_iterations=2)[
                1
            ]
            # XLA compiles no gradient of a loop in a branch: TensorFlow's own tf.while_loop fails there, too.
            chosen = power(x, 4) if mode == "jit" else tf.cond(x > 1.0, lambda: power(x, 4), lambda: x)
            nested = cg.scan(lambda carry, _: (carry + power(x, 3), None), 0.0, length=5)[0]
            recomputed = cg.recompute_grad(lambda x: power(x, 5))(x)
            y = looped + 10 * chosen + 100 * nested + 1000 * recomputed
        return y, tape.gradient(y, x)

    x = 1.1
    y, gradient = run(tf.constant(x))
    np.testing.assert_allclose(y, x**9 + 10 * x**4 + 100 * 5 * x**3 + 1000 * x**5, rtol=1e-5)
    np.testing.assert_allclose(gradient, 9 * x**8 + 40 * x**3 + 1500 * x**2 + 5000 * x**4, rtol=1e-5)


def test_an_upstream_gradient_of_one_result_alone():
    xs = tf.constant(XS[:9])
    for pick in (0, 1):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            result = cg.scan(lambda c, x: (c + x, c * x), tf.constant(INIT), xs)[pick]
        dy = DC if pick == 0 else DYS[:9]
        carries = INIT + np.concatenate([np.zeros([1, 3]), np.cumsum(XS[:9], 0)[:-1]])
        later = np.cumsum((XS[:9] * DYS[:9])[::-1], 0)[::-1] - XS[:9] * DYS[:9]
        expected = np.broadcast_to(DC, [9, 3]) if pick == 0 else DYS[:9] * carries + later
        np.testing.assert_allclose(tape.gradient(result, xs, output_gradients=tf.constant(dy)), expected, rtol=1e-10)


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


@pytest.mark.mode_table(feature="cg.scan", mode="tf1")
def test_a_session_of_tensorflow_1():
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        x = tf.compat.v1.placeholder(tf.float64, [None, 3])
        w = tf.compat.v1.get_variable("w", initializer=W, use_resource=True)
        init = tf.constant(INIT)

        def f(carry, x):
            carry = tf.tanh(tf.linalg.matvec(w, carry, transpose_a=True) + x)
            return carry, carry**2

        last, ys = cg.scan(f, init, x)
        gradients = tf.gradients([last, ys], [init, x, w], [tf.constant(DC), tf.constant(DYS[:10])])
        session.run(tf.compat.v1.global_variables_initializer())
        got = session.run([last, ys, *gradients], {x: XS[:10]})
    assert_close(got, reference(INIT, XS[:10], W, DC, DYS))


@pytest.mark.core
@pytest.mark.mode_table(feature="cg.scan", mode="reloaded")
def test_a_saved_model_in_a_fresh_process(tmp_path):
    model = tf.Module()
    model.v = tf.Variable(W)

    def f(carry, x):
        carry = tf.tanh(tf.linalg.matvec(model.v, carry, transpose_a=True) + x)
        return carry, carry**2

    specs = [tf.TensorSpec([3], tf.float64), tf.TensorSpec([None, 3], tf.float64)]
    model.f = tf.function(lambda init, xs: cg.scan(f, init, xs), input_signature=specs)
    *got, _ = vjp_in_a_fresh_process(model, [INIT, XS[:10]], [DC, DYS[:10]], tmp_path)
    assert_close(got, reference(INIT, XS[:10], W, DC, DYS))


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

    graph = run.get_concrete_function(tf.TensorSpec([7])).graph
    assert lists_outside_of_segments(graph) == [num_carries]


def lists_outside_of_segments(graph):
    """The lengths of the lists of Tensors of shape [7] that the outermost loops fill."""
    return [
        int(tf.get_static_value(reserve.inputs[1]))
        for reserve in graph.get_operations()
        if reserve.type in ("TensorListReserve", "EmptyTensorList")
        and tf.get_static_value(reserve.inputs[0]) is not None
        and list(tf.get_static_value(reserve.inputs[0])) == [7]
    ]


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
