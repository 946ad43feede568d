"""tf.vectorized_map and jacobians of embed_gradient without a fallback, compared with a Python loop."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..embed_gradient.test_shape_table import ROWS
from ..support.modes import assert_all_close, vjp
from ..support.tensors import random_array

N = 3

# The shapes of fx, gx and x, and the axis: the table of embed_gradient, and more. gx has one shape for each x.
SHAPES = {str(row): (row.fx, [row.gx], [row.x], row.axis) for row in ROWS} | {
    "scalars": ([], [[]], [[]], ()),
    "scalar_fx_and_a_smaller_gx": ([], [[4]], [[2, 4]], ()),
    "axis_from_the_left": ([4], [[2, 4]], [[2, 4]], 0),
    "two_pairs": ([4], [[4], []], [[4], [4]], ()),
    "two_pairs_of_other_ranks": ([2, 4], [[2, 4], [4]], [[4], [2, 4]], ()),
    "axis_from_the_left_of_two_ranks": ([2, 4], [[2, 5, 4], [5, 4]], [[2, 5, 4], [5, 4]], -2),
    "axis_at_two_places_from_the_right": ([4], [[5, 4], [4, 3]], [[5, 4], [3]], 0),
    "all_axes_of_two_ranks": ([5], [[5, 4], [5, 2, 3]], [[4], [2, 3]], None),
}


def value_and_gradients(stopped, axis, pairs, tensors, dy):
    """The value, and first and second derivatives by everything that has a gradient."""
    with tf.GradientTape() as outer:
        outer.watch([*tensors, dy])
        with tf.GradientTape() as inner:
            inner.watch(tensors)
            h = embed(stopped, axis, pairs, tensors)
        first = inner.gradient(h, tensors, output_gradients=dy, unconnected_gradients="zero")
        weighted = sum(tf.reduce_sum(g * tf.cos(tf.cast(i, g.dtype) + g)) for i, g in enumerate(first))
    second = outer.gradient(weighted, [*tensors, dy], unconnected_gradients="zero")
    return [h, *first, *second]


def embed(stopped, axis, pairs, tensors):
    fx, gx, x = tensors[0], tensors[1 : 1 + pairs], tensors[1 + pairs :]
    return cg.embed_gradient(fx, list(gx), list(x), axis=axis, fx_gx_manually_stopped=stopped)


def mixes(count):
    """All inputs are stacked, or only one of them, or all except one."""
    alone = [tuple(i == k for i in range(count)) for k in range(count)]
    return [(True,) * count, *alone, *[tuple(not stacked for stacked in mix) for mix in alone]]


# Of most shapes, only a few of the mixes: an elementwise one, one with an axis and a Jacobian have all.
MIXES = [
    (name, mix)
    for row, (name, (_, gx, x, _)) in enumerate(SHAPES.items())
    for i, mix in enumerate(mixes(2 + len(gx) + len(x)))
    if row in (0, 7, 14) or i == 0 or i % 4 == row % 4
]


@pytest.mark.parametrize(
    ("name", "is_stacked"), [pytest.param(*m, id=f"{m[0]}-{''.join('01'[s] for s in m[1])}") for m in MIXES]
)
def test_vectorized_map_equals_a_loop(name, is_stacked, rng):
    """Gradients inside the batch; and with the tape around it, which sums over inputs that are not stacked."""
    fx, gx, x, axis = SHAPES[name]
    stopped, pairs = sum(is_stacked) % 2 == 0, len(x)
    values = [
        tf.constant(random_array(rng, [N, *shape] if stacked else shape))
        for shape, stacked in zip([fx, *gx, *x, fx], is_stacked, strict=True)
    ]
    members = [[v[i] if s else v for v, s in zip(values, is_stacked, strict=True)] for i in range(N)]

    def batch(function, values):
        def one(stacked):
            own = iter(stacked)
            return function([next(own) if s else v for v, s in zip(values, is_stacked, strict=True)])

        stacked = [v for v, s in zip(values, is_stacked, strict=True) if s]
        return tf.vectorized_map(one, stacked, fallback_to_while_loop=False)

    def inside(tensors):
        return value_and_gradients(stopped, axis, pairs, tensors[:-1], tensors[-1])

    @tf.function(autograph=False)
    def run(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            h = batch(lambda tensors: embed(stopped, axis, pairs, tensors[:-1]) * tensors[-1], values)
        return batch(inside, values), tape.gradient(h, values, unconnected_gradients="zero")

    found, around = run(values)
    loop = [inside(member) for member in members]
    for actual, *expected in zip(found, *loop, strict=True):
        np.testing.assert_allclose(actual, [tf.convert_to_tensor(e) for e in expected], rtol=1e-12, atol=1e-12)
    for k, stacked in enumerate(is_stacked[:-1]):
        expected = np.stack([one[1 + k] for one in loop])
        np.testing.assert_allclose(
            tf.convert_to_tensor(around[k]), expected if stacked else expected.sum(0), rtol=1e-12, atol=1e-12
        )


def test_sizes_that_are_unknown_while_tracing(rng):
    x, gx, dy = random_array(rng, [N, 2, 4]), random_array(rng, [4]), random_array(rng, [N, 2])

    @tf.function(input_signature=[tf.TensorSpec([None] * rank, tf.float64) for rank in (3, 1, 2)])
    def run(x, gx, dy):
        def one(member):
            x, dy = member
            return vjp(lambda: cg.embed_gradient(dy, gx[None], x, axis=[1], fx_gx_manually_stopped=True), [x, gx], dy)[
                1
            ]

        return tf.vectorized_map(one, (x, dy), fallback_to_while_loop=False)

    dx, dgx = run(x, gx, dy)
    np.testing.assert_allclose(dx, dy[:, :, None] * gx * np.ones_like(x), rtol=1e-12)
    np.testing.assert_array_equal(dgx, np.zeros([N, 4]))


def test_a_rank_that_is_unknown_while_tracing_takes_a_loop():
    """If a loop is allowed. The messages have the error if it is not."""

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def run(gx):
        return tf.vectorized_map(lambda x: cg.embed_gradient(2.0 * x, gx, x), tf.ones([N, 4]))

    np.testing.assert_array_equal(run(tf.ones([4])), np.full([N, 4], 2.0))


def test_a_checked_shape_in_a_batch(rng):
    """A rule whose gradient has a shape that is unknown while tracing, with stacked and with loop-invariant inputs."""
    x, w = random_array(rng, [N, 4]), random_array(rng, [4])

    @cg.custom_gradient
    def product(x, w):
        return x * w, lambda dy: (7.0 * dy * w, tf.reverse(dy, [0]))

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([None], tf.float64)])
    def run(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.vectorized_map(lambda x: product(x, w), x, fallback_to_while_loop=False)
        gradients = tape.gradient(y, [x, w], output_gradients=tf.sin(y))
        return [tf.convert_to_tensor(gradient) for gradient in gradients]  # Slices of x, as for built-in ops.

    dy = np.sin(x * w)
    dx, dw = run(x, w)
    np.testing.assert_allclose(dx, 7 * dy * w, rtol=1e-12)
    np.testing.assert_allclose(dw, dy[:, ::-1].sum(0), rtol=1e-12)


@pytest.mark.parametrize("count", [1, N])
def test_a_gradient_op_of_which_only_the_shape_is_stacked(count, rng):
    """As if it were computed from stacked inputs: all members have the same shape, and so the same gradient."""
    gx, x = random_array(rng, [3, 4]), random_array(rng, [4])

    # TensorFlow does not convert a batch if it knows while tracing that the batch has one member.
    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.int32)])
    def run(shapes):
        return tf.vectorized_map(
            lambda shape: library.custom_gradient_embed_grad(gx, x, shape, wrt="fx", all_axes=True),
            shapes,
            fallback_to_while_loop=False,
        )

    np.testing.assert_allclose(run([[3]] * count), [gx @ x] * count)


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_result_that_is_the_same_for_all_members_has_its_gradient_for_each(is_outside, rng):
    """The second result does not depend on the member, but the rule uses its upstream for a part of the gradient."""
    x, dy, dz = random_array(rng, [N]), random_array(rng, [N]), random_array(rng, [N])

    @cg.custom_gradient
    def f(x):
        return (tf.sin(x), tf.constant(3.0, tf.float64)), lambda dy, dz: dy * 7.0 + dz * 5.0

    @tf.function
    def run(x, dy, dz):
        def one(member):
            x, dy, dz = member
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, z = f(x)
            return z, tape.gradient([y, z], x, output_gradients=[dy, dz])

        if not is_outside:
            return tf.vectorized_map(one, (x, dy, dz), fallback_to_while_loop=False)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, z = tf.vectorized_map(f, x, fallback_to_while_loop=False)
        return z, tape.gradient([y, z], x, output_gradients=[dy, dz])

    z, dx = run(x, dy, dz)
    np.testing.assert_array_equal(z, [3.0] * N)
    np.testing.assert_allclose(dx, dy * 7.0 + dz * 5.0, rtol=1e-14)


@pytest.mark.parametrize("axis", [(), (-1,), None])
@pytest.mark.parametrize("size", [3, 1])
def test_a_scalar_with_sizes_that_show_at_run_time_is_what_it_is_in_eager_mode(size, axis):
    """A function of all of x: with an axis, or without one if gx has no more elements than x."""

    def gradient(x, gx, dy):
        return vjp(lambda: cg.embed_gradient(tf.reduce_sum(x), gx, x, axis), x, dy)[1]

    @tf.function(input_signature=[tf.TensorSpec([2, None]), tf.TensorSpec([None]), tf.TensorSpec([2])], autograph=False)
    def run(xs, gx, dys):
        return tf.vectorized_map(lambda e: gradient(e[0], gx, e[1]), (xs, dys), fallback_to_while_loop=False)

    gx, dys, xs = np.array([1.0, 5.0, -2.0], np.float32), np.array([3.0, -7.0], np.float32), tf.ones([2, size])
    if size == len(gx) or axis != ():
        expected = np.stack([gradient(x, gx, dy) for x, dy in zip(xs, dys, strict=True)])
        np.testing.assert_allclose(expected, dys[:, None] * (gx if size == 3 else gx.sum()))
        np.testing.assert_allclose(run(xs, gx, dys), expected)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="fx must have shape"):
            gradient(xs[0], gx, dys[0])
        with pytest.raises(tf.errors.InvalidArgumentError, match="got a scalar with the shapes of gx and x"):
            run(xs, gx, dys)


def normalized():
    layer = keras.layers.BatchNormalization(dtype="float64")
    layer.build([None, 3])
    return lambda x: layer(x, training=True), layer.variables


def weighted():
    w = tf.constant([2.0, 3.0, 5.0], tf.float64)
    return lambda x: tf.tanh(x * w), [w]


def counted():
    v = tf.Variable(1.0, dtype=tf.float64)

    def f(x):
        v.assign_add(2.0)
        return tf.sin(x) * v

    return f, [v]


def dropped():
    return lambda x: tf.nn.dropout(x, 0.5), []


# What makes a function that reads something or has state, with that.
RECOMPUTED = {"a Tensor": weighted, "a variable": counted, "dropout": dropped, "batch normalization": normalized}


@pytest.mark.parametrize("run", [lambda f: f, functools.partial(tf.function, autograph=False)], ids=["eager", "traced"])
@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputation_of_what_reads_and_writes_is_vectorized(name, run, rng):
    xs, dys = tf.constant(rng.normal(size=[2, 4, 3])), tf.constant(rng.normal(size=[2, 4, 3]))
    results = []
    for wrap in (lambda f: f, cg.recompute_grad):
        f, variables = RECOMPUTED[name]()
        function = wrap(f)

        def value_and_gradient(elements, function=function):
            x, dy = elements
            return vjp(lambda: function(x), [x], dy)

        value, (dx,) = run(
            lambda one=value_and_gradient: tf.vectorized_map(one, (xs, dys), fallback_to_while_loop=False)
        )()
        results.append([value, dx, *map(tf.convert_to_tensor, variables)])
    expected, found = results
    if name == "dropout":  # Other random numbers; the gradient has the same mask.
        expected = [found[0], found[0] / xs * dys]
        assert 0 < np.count_nonzero(found[0]) < tf.size(xs)
    assert_all_close(found, expected, rtol=1e-6)


@cg.custom_gradient
def with_a_loop_in_its_rule(x):
    def grad_fn(dy):
        return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * x), (0, dy))[1]

    return 2.0 * x, grad_fn


def test_a_rule_with_a_loop_is_vectorized_without_a_word(rng, monkeypatch):
    """TensorFlow looks for loop bodies only in the graph of the op, logs the ones that it misses, and falls back."""
    xs, dys = rng.normal(size=[4, 3]), rng.normal(size=[4, 3])

    said = []
    monkeypatch.setattr(tf.get_logger(), "handle", said.append)
    x = tf.constant(xs)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.vectorized_map(with_a_loop_in_its_rule, x)
    np.testing.assert_allclose(tape.gradient(y, x, output_gradients=tf.constant(dys)), dys * xs**3)
    # If other tests have called vectorized_map, TensorFlow warns that its own function is traced again.
    assert [record for record in said if "retracing" not in record.getMessage()] == []


@cg.custom_jvp
def squared(x):
    return x**2


@squared.defjvp
def squared_tangent(primals, tangents):
    return squared(*primals), 7.0 * tangents[0] * primals[0]


STACK = tf.TensorSpec([2], tf.float64)
# Every batching rule, and functions made of them.
OF_A_MEMBER = {
    "embed_gradient": lambda x: cg.embed_gradient(x**2, 7.0 * x, x),
    "embed_gradient twice": lambda x: vjp(lambda: cg.embed_gradient(x**2, 7.0 * x, x), x, x)[1],
    "embed_gradient with an axis": lambda x: cg.embed_gradient(tf.reduce_sum(x), 7.0 * x, x, axis=0) * x,
    "custom_gradient": cg.custom_gradient(lambda x: (x**2, lambda dy: 7.0 * dy * x)),
    "custom_vjp": cg.custom_vjp(
        lambda x: ((x**2, x), x), lambda x, dy, dz: 7.0 * dy * x if dz is None else dz, materialize_grads=False
    ),
    "custom_jvp": squared,
    "recompute_grad": cg.recompute_grad(lambda x: tf.sin(x) * x),
    "clip_gradient": lambda x: cg.clip_gradient(x, norm=0.5),
    "straight_through": cg.straight_through(tf.round),
}
# TensorFlow also runs the first member of these alone, which a batch of none does not have.
WITH_EFFECTS = {
    "numpy_function": cg.numpy_function(lambda x: (x**3, np.diag(3.0 * x**2)), STACK),
    "numpy_function batched": cg.numpy_function(
        lambda x: (x**3, 3.0 * x**2), tf.TensorSpec([], tf.float64), batched=True
    ),
    "numpy_function with a vjp": cg.numpy_function(lambda x: (x**3, x), STACK, vjp=lambda x, dy: (3.0 * dy * x**2,)),
    "check_numerics": lambda x: cg.watch_gradient(x, "x", check_numerics=True),
    "log": lambda x: cg.watch_gradient(x, "x", log=True),
    "callback": lambda x: cg.watch_gradient(x, "x", callback=lambda gradient: None),
    "implicit_root": lambda x: cg.implicit_root(lambda y, x: y**3 - x, lambda x: x ** (1 / 3))(x),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in (OF_A_MEMBER | WITH_EFFECTS) for case in ("same upstream", "same in a branch", "branch")]
    + [(name, "no members") for name in OF_A_MEMBER],
)
def test_a_batch_whose_members_have_the_same_upstream_or_that_has_no_members(name, case):
    x = tf.constant([[0.5, 2.0], [3.0, 4.0], [5.0, 6.0]], tf.float64)[: 0 if case == "no members" else 3]

    def gradient(x):
        def value():
            return tf.nest.flatten((OF_A_MEMBER | WITH_EFFECTS)[name](x))[0]

        return vjp(value, x, tf.constant([1.0, 10.0], tf.float64) if "same" in case else x + 1.0)[1]

    def one(x):
        if "branch" not in case:
            return gradient(x)
        return tf.cond(x[0] > 100.0, lambda: gradient(x), lambda: 3.0 * x)

    found = tf.function(lambda x: tf.vectorized_map(one, x, fallback_to_while_loop=False), autograph=False)(x)
    assert_all_close([found], [np.reshape([one(member) for member in x], x.shape)])
