"""Planned functions segment by segment: the derivatives of the plain function, and one order of the backward pass."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.memory import recompute_grad
from tf_cg_ops._src.memory.plan import Plan, SegmentOps

from ..support.modes import RUNS as MODES
from ..support.modes import vjp

_rng = np.random.default_rng(0)
W = [tf.Variable(_rng.normal(size=[8, 8]) / 3, dtype=tf.float32) for _ in range(4)]
TABLE = tf.Variable(_rng.normal(size=[100, 8]), dtype=tf.float32)
X, DY = (tf.constant(_rng.normal(size=[16, 8]), tf.float32) for _ in range(2))
ROWS = tf.constant([3, 0, 99, 3] * 4)


def layers(x, weights=W):
    for w in weights:
        x = tf.tanh(x @ w)
    return x


def stopped(x):
    """The first variable is behind a stop_gradient, the last is not used."""
    return tf.tanh(tf.tanh(tf.stop_gradient(tf.tanh(x @ W[0])) + x) @ W[1]) @ W[2]


def towers(x):
    """Two towers that do not read each other."""
    return layers(x, W[:2]), layers(x, W[2:])


def looked_up(x):
    rows = tf.nn.embedding_lookup(TABLE, ROWS)
    return layers(tf.tanh(x + rows) * tf.nn.embedding_lookup(TABLE, tf.argmax(x, 1)))


def read_early(x):
    table = TABLE.read_value()
    return layers(x) * tf.gather(table, ROWS)


def transposed(x):
    return layers(tf.matmul(x, tf.matmul(x, x, transpose_a=True)) / 8.0)


def several_results(x):
    a, b, c = tf.split(layers(x), [2, 3, 3], 1)
    return tf.concat([tf.sin(b), tf.reduce_max(c, 1, keepdims=True) * a, tf.nn.relu(c)], 1) @ W[0]


@tf.function
def called(x):
    return tf.function(layers)(x) * 2.0


@tf.function(jit_compile=True)
def compiled(x):
    return layers(x) * 2.0


FUNCTIONS = {
    "stopped": stopped,
    "looked_up": looked_up,
    "read_early": read_early,
    "transposed": transposed,
    "several_results": several_results,
    "calls": lambda x: called(tf.tanh(x @ W[0])) + called(x),
    "compiled": lambda x: compiled(tf.tanh(x @ W[0])) @ W[1],
    "its_own_rules": lambda x: tf.tanh(tf.nn.silu(cg.scale_gradient(tf.tanh(x @ W[0]), 3.0) @ W[1])),
}
# TensorFlow's own tangents of functions that it calls are wrong in places.
WITHOUT_CALLS = {
    "calls": lambda x: layers(tf.tanh(x @ W[0])) * 2.0 + layers(x) * 2.0,
    "compiled": lambda x: (layers(tf.tanh(x @ W[0])) * 2.0) @ W[1],
}
# Which segments the backward pass computes again, in turn.
PATTERNS = {"all": [True], "third": [False, False, True], "other": [True, False]}


@pytest.fixture
def cuts(request, monkeypatch):
    """Cuts functions in about five segments, of which the backward pass computes some again, by default every other."""
    which = getattr(request, "param", "other")

    def cut(api, name, memory, flat, sources, is_kept):
        at = np.linspace(0, len(flat.operations), 6).astype(int)
        pattern = PATTERNS[which] * 5
        parts = [
            SegmentOps(flat.operations[a:b], again) for a, b, again in zip(at, at[1:], pattern, strict=False) if a < b
        ]
        return Plan(0, 0, 0.0, (), (), ()), parts

    monkeypatch.setattr(recompute_grad, "make_plan", cut)
    return which


def by_tape(function, x):
    return vjp(lambda: function(x), [x, *W, TABLE], DY)[1]


def by_tape_of_tape(function, x):
    def loss():
        return tf.add_n([tf.reduce_sum(g**2) for g in by_tape(function, x)[:2] if g is not None])

    return vjp(loss, [x, *W])[1]


def by_tangent(function, x, sources):
    with tf.autodiff.ForwardAccumulator(sources, [tf.cos(tf.convert_to_tensor(s)) for s in sources]) as accumulator:
        y = function(x)
    return [accumulator.jvp(y)]


def by_tape_around_a_tangent(function, x):
    return vjp(lambda: by_tangent(function, x, [x]), [x, *W], [DY])[1]


DERIVATIVES = {
    "gradient": by_tape,
    "second": by_tape_of_tape,
    "tangent": lambda function, x: by_tangent(function, x, [x]),
    "tangent of variables": lambda function, x: by_tangent(function, x, [W[0], W[1]]),
    "tape around a tangent": by_tape_around_a_tangent,
}


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(tf.convert_to_tensor(a), tf.convert_to_tensor(b), rtol=2e-4, atol=1e-5)


# Each function once with each kind of cuts, and one of the derivatives in turn.
CASES = [(name, "gradient", "all") for name in FUNCTIONS]
CASES += [
    (name, kind, "other") for i, name in enumerate(FUNCTIONS) for kind in ("gradient", list(DERIVATIVES)[1 + i % 4])
]


@pytest.mark.parametrize(("name", "derivative", "cuts"), CASES, indirect=["cuts"])
def test_derivatives_are_those_of_the_plain_function(name, derivative, cuts):
    run, derive = MODES["eager" if cuts == "all" else "traced"], DERIVATIVES[derivative]
    planned, plain = cg.recompute_grad(FUNCTIONS[name], memory="auto"), WITHOUT_CALLS.get(name, FUNCTIONS[name])
    assert_same(run(lambda: derive(planned, X))(), run(lambda: derive(plain, X))())


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_result_that_is_not_used_has_no_gradients(mode, cuts):
    """None, not zeros, with which an optimizer would decay the weights."""
    none = []

    def derive(used):
        _, gradients = vjp(lambda: cg.recompute_grad(towers, memory="auto")(X)[used], W, DY)
        none[:] = [g is None for g in gradients]

    for used in (0, 1):
        MODES[mode](lambda: derive(used))()  # noqa: B023
        assert none == [bool(used)] * 2 + [not used] * 2


def test_zeros_as_the_upstream_gradient_are_not_none_in_a_graph_alone(cuts):
    inner = cg.recompute_grad(lambda x: (layers(x, W[:1]), layers(x, W[1:2])), memory="auto")
    function = cg.recompute_grad(lambda x: [inner(x)[0], x @ W[2]], memory="auto")
    none = []

    def derive(x):
        _, gradients = vjp(lambda: function(x), [x, *W], [tf.zeros([16, 8])] * 2)
        none.append([g is None for g in gradients])

    derive(X)
    tf.function(derive)(X)
    assert none[0] == none[1]
    assert none[0][:2] + none[0][3:] == [False, False, False, True]


@pytest.mark.parametrize("function", [looked_up, read_early])
def test_rows_of_a_table_have_slices_for_gradients_and_a_lookup_does_not_read_the_table(function, cuts):
    types, operations = [], []

    @tf.function
    def step():
        gradients = by_tape(cg.recompute_grad(function, memory="auto"), X)
        types.append(type(gradients[-1]))
        operations.extend(tf.compat.v1.get_default_graph().get_operations())
        return [tf.convert_to_tensor(g) for g in gradients[:-1]]

    step()
    assert types == [tf.IndexedSlices]
    if function is looked_up:
        assert not [op.name for op in operations if any(output.shape == TABLE.shape for output in op.outputs)]


def behind(op):
    """All ops that run before an op."""
    waiting, found = [op], {}
    while waiting:
        for other in [tensor.op for tensor in waiting[-1].inputs] + list(waiting.pop().control_inputs):
            if id(other) not in found:
                found[id(other)] = other
                waiting.append(other)
    return set(found)


@pytest.mark.core
@pytest.mark.parametrize("cuts", PATTERNS, indirect=True)
def test_a_segment_waits_for_all_gradients_of_later_ones(cuts):
    """In a graph that runs on any number of threads."""
    graphs = []

    def both(x):
        return tf.add_n(towers(x))

    @tf.function
    def step():
        gradients = by_tape(cg.recompute_grad(both, memory="auto"), X)
        graphs.append(tf.compat.v1.get_default_graph())
        return [g for g in gradients if g is not None]

    step()
    again = [op for op in graphs[0].get_operations() if op.type == "PartitionedCall"]
    products = [op for op in graphs[0].get_operations() if op.type == "MatMul" and "gradient_tape" in op.name]
    num_recomputed = {"all": 5, "third": 1, "other": 3}[cuts]
    assert len(again) == num_recomputed
    for earlier, later in zip(again[1:], again, strict=False):  # The backward pass begins with the last segment.
        assert id(later) in behind(earlier)
    if cuts == "other":
        # The gradients of plain segments come between: their products, too, have to be there.
        assert any(id(op) in behind(again[-1]) for op in products)
        assert all(id(op) in behind(again[-1]) for op in products if W[3].shape == op.outputs[0].shape)


def test_gradients_of_functions_in_a_row_come_one_after_the_other():
    graphs = []

    @tf.function
    def step():
        blocks = [cg.recompute_grad(functools.partial(layers, weights=[w])) for w in W]

        def chain(x):
            for block in blocks:
                x = block(x)
            return x

        gradients = by_tape(chain, X)
        graphs.append(tf.compat.v1.get_default_graph())
        return [g for g in gradients if g is not None]

    step()
    again = [op for op in graphs[0].get_operations() if op.type == "PartitionedCall"]
    barriers = [op for op in graphs[0].get_operations() if op.type == "CustomGradientBarrier"]
    for earlier, later in zip(again[1:], again, strict=False):
        # It waits for a barrier that waits for both gradients of the later block.
        assert any(
            {id(t) for t in later.outputs} <= {id(t) for t in op.inputs} for op in barriers if id(op) in behind(earlier)
        )


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_random_ops_that_take_numbers_from_elsewhere(mode, cuts):
    """Their shape is a number of the graph, and random ops of plain segments are TensorFlow's own."""

    def function(x):
        for _ in range(4):
            x = x * tf.random.poisson([8], 20.0) * tf.random.gamma([16, 1], 3.0) / 60.0
        return x

    y, dx = MODES[mode](lambda: vjp(lambda: cg.recompute_grad(function, memory="auto")(X), X))()
    np.testing.assert_allclose(y, X * dx, rtol=1e-4)


def test_tensors_of_unknown_rank(cuts):
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def step(x):
        return by_tape(cg.recompute_grad(transposed, memory="auto"), x)[:2]

    assert_same(step(X), by_tape(transposed, X)[:2])
