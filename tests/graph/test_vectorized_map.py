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


def weights_of(tensor):
    """A different number for each element."""
    return tf.reshape(tf.cos(1.3 * tf.cast(tf.range(tf.size(tensor)), tensor.dtype)), tf.shape(tensor))


def assert_equals_a_loop(function, stacked, shared, around=False, is_known=True):
    """Compares results; or gradients with a tape around, which are sums over the batch for shared tensors.

    The sizes are known while tracing or not.
    """

    def batch(stacked, shared):
        return tf.vectorized_map(lambda each: function(*each, *shared), stacked, fallback_to_while_loop=False)

    def results(call, stacked, shared, dy):
        if not around:
            return tf.nest.flatten(call(stacked, shared))
        sources = [*stacked, *shared]
        _, found = vjp(lambda: call(stacked, shared), sources, dy)
        return [tf.convert_to_tensor(tf.zeros_like(t) if g is None else g) for g, t in zip(found, sources, strict=True)]

    members = list(zip(*stacked, strict=True))
    values = [function(*each, *shared) for each in members] if around else []
    dy = tf.nest.map_structure(lambda *parts: weights_of(tf.stack(parts)), *values) if around else []
    loop = [
        results(lambda each, shared: function(*each, *shared), each, shared, tf.nest.map_structure(lambda t: t[i], dy))  # noqa: B023
        for i, each in enumerate(members)
    ]
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape if is_known else [None] * t.shape.rank, t.dtype), [stacked, shared, dy]
    )
    run = tf.function(lambda *args: results(batch, *args), input_signature=specs, autograph=False)
    for k, (actual, *expected) in enumerate(zip(run(stacked, shared, dy), *loop, strict=True)):
        expected = np.sum(expected, 0) if around and k >= len(stacked) else np.stack(expected)
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def embed(stopped, axis, pairs, tensors):
    fx, gx, x = tensors[0], tensors[1 : 1 + pairs], tensors[1 + pairs :]
    return cg.embed_gradient(fx, list(gx), list(x), axis=axis, fx_gx_manually_stopped=stopped)


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


def mixes(count):
    """All inputs are stacked, or only one of them, or all except one."""
    alone = [tuple(i == k for i in range(count)) for k in range(count)]
    return [(True,) * count, *alone, *[tuple(not stacked for stacked in mix) for mix in alone]]


# Of most shapes, only two of the mixes: an elementwise one, one with an axis and a Jacobian have all.
MIXES = [
    (name, mix)
    for row, (name, (_, gx, x, _)) in enumerate(SHAPES.items())
    for i, mix in enumerate(mixes(2 + len(gx) + len(x)))
    if row in (0, 7, 14) or i == 0 or i == 1 + row % (4 + 2 * (len(gx) + len(x)))
]


@pytest.mark.parametrize(
    ("name", "is_stacked"), [pytest.param(*m, id=f"{m[0]}-{''.join('01'[s] for s in m[1])}") for m in MIXES]
)
def test_vectorized_map_equals_a_loop(name, is_stacked, rng):
    """Gradients inside the batch; and with the tape around it, which sums over inputs that are not stacked."""
    fx, gx, x, axis = SHAPES[name]
    stopped, pairs = sum(is_stacked) % 2 == 0, len(x)
    stacked, shared = [], []
    for shape, where in zip([fx, *gx, *x, fx], is_stacked, strict=True):
        (stacked if where else shared).append(tf.constant(random_array(rng, [N, *shape] if where else shape)))

    def in_order(tensors):
        parts = iter(tensors[: len(stacked)]), iter(tensors[len(stacked) :])
        return [next(parts[not where]) for where in is_stacked]

    def inside(*tensors):
        *tensors, dy = in_order(tensors)
        return value_and_gradients(stopped, axis, pairs, tensors, dy)

    def value(*tensors):
        *tensors, dy = in_order(tensors)
        return embed(stopped, axis, pairs, tensors) * dy

    assert_equals_a_loop(inside, stacked, shared)
    assert_equals_a_loop(value, stacked, shared, around=True)


@cg.custom_gradient
def product(x, w):
    """Where sizes are not known while tracing, the shapes of its gradients are checked at run time."""
    return x * w, lambda dy: (7.0 * dy * w, tf.reverse(dy, [0]))


@cg.custom_gradient
def with_a_constant(x):
    """The second result does not depend on the member, but the rule uses its upstream for a part of the gradient."""
    return (tf.sin(x), tf.constant(3.0, tf.float64)), lambda dy, dz: dy * 7.0 + dz * 5.0


def embedded_along_an_axis(x, dy, gx):
    return vjp(lambda: cg.embed_gradient(dy, gx[None], x, axis=[1], fx_gx_manually_stopped=True), [x, gx], dy)[1]


def by_fx(shape, gx, x):
    """As if the shape were computed from stacked inputs: all members have the same one, and so the same gradient."""
    return library.custom_gradient_embed_grad(gx, x, shape, wrt="fx", all_axes=True)


# Functions of stacked and of shared tensors, these or their shapes, and whether the tape is around.
OF_UNKNOWN_SIZES = {
    "an axis": (embedded_along_an_axis, [[N, 2, 4], [N, 2]], [[4]], False),
    "a gradient op of which only the shape is stacked": (by_fx, [tf.fill([N, 1], 3)], [[3, 4], [4]], False),
    # TensorFlow does not convert a batch if it knows while tracing that the batch has one member.
    "the same with one member": (by_fx, [tf.fill([1, 1], 3)], [[3, 4], [4]], False),
    "a tape in a map with a constant": (lambda x, *dy: vjp(lambda: with_a_constant(x), x, dy), [[N]] * 3, [], False),
    "a tape around a constant": (with_a_constant, [[N]], [], True),
    "a checked shape": (product, [[N, 4]], [[4]], True),
}


@pytest.mark.parametrize("name", OF_UNKNOWN_SIZES)
def test_sizes_that_are_unknown_while_tracing(name, rng):
    function, *parts, around = OF_UNKNOWN_SIZES[name]
    tensors = [[t if tf.is_tensor(t) else tf.constant(random_array(rng, t)) for t in part] for part in parts]
    assert_equals_a_loop(function, *tensors, around, is_known=False)


def test_a_rank_that_is_unknown_while_tracing_takes_a_loop():
    """If a loop is allowed. The messages have the error if it is not."""

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def run(gx):
        return tf.vectorized_map(lambda x: cg.embed_gradient(2.0 * x, gx, x), tf.ones([N, 4]))

    np.testing.assert_array_equal(run(tf.ones([4])), np.full([N, 4], 2.0))


@pytest.mark.parametrize("axis", [(), (-1,), None])
@pytest.mark.parametrize("size", [3, 1])
def test_a_scalar_with_sizes_that_show_at_run_time_is_what_it_is_in_eager_mode(size, axis):
    """A function of all of x: with an axis, or without one if gx has no more elements than x."""

    def gradient(x, dy, gx):
        return vjp(lambda: cg.embed_gradient(tf.reduce_sum(x), gx, x, axis), x, dy)[1]

    stacked, gx = [tf.ones([2, size]), tf.constant([3.0, -7.0])], tf.constant([1.0, 5.0, -2.0])
    if size == len(gx) or axis != ():
        np.testing.assert_allclose(
            gradient(stacked[0][0], 3.0, gx), 3.0 * (gx.numpy() if size == 3 else np.sum(gx)[None])
        )
        assert_equals_a_loop(gradient, stacked, [gx], is_known=False)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="fx must have shape"):
        gradient(stacked[0][0], 3.0, gx)
    specs = [tf.TensorSpec([None] * rank) for rank in (2, 1, 1)]

    @functools.partial(tf.function, input_signature=specs)
    def run(x, dy, gx):
        return tf.vectorized_map(lambda each: gradient(*each, gx), (x, dy), fallback_to_while_loop=False)

    with pytest.raises(tf.errors.InvalidArgumentError, match="got a scalar with the shapes of gx and x"):
        run(*stacked, gx)


def reading_and_writing():
    """A function that reads a Tensor and a variable and changes variables, and these."""
    layer, w = keras.layers.BatchNormalization(dtype="float64"), tf.constant([2.0, 3.0, 5.0], tf.float64)
    layer.build([None, 3])
    v = tf.Variable(1.0, dtype=tf.float64)

    def f(x):
        v.assign_add(2.0)
        return layer(tf.tanh(x * w), training=True) * v

    return f, [v, *layer.variables]


RECOMPUTED = {"state": reading_and_writing, "dropout": lambda: (lambda x: tf.nn.dropout(x, 0.5), [])}


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
    "fake_quant": lambda x: tf.cast(cg.fake_quant(tf.cast(x, tf.float32), [0.5, 2.0], axis=0), tf.float64),
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
