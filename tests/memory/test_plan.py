"""recompute_grad with a memory: a plan for a whole model, and the gradients of the plain function."""

import functools
import itertools
import math
import pickle
import re

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.memory import recompute_grad
from tf_cg_ops._src.memory.cuts import Choices
from tf_cg_ops._src.memory.graph_costs import GraphCosts
from tf_cg_ops._src.memory.plan import Plan, SegmentOps

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close, vjp

_rng = np.random.default_rng(0)
WEIGHTS = [tf.Variable(_rng.normal(size=[8, 8]) / 3, dtype=tf.float32) for _ in range(6)]
CAPTURED = tf.constant(_rng.normal(size=[8]), tf.float32)
X, DY = (tf.constant(_rng.normal(size=[64, 8]), tf.float32) for _ in range(2))


def chain(x):
    for w in WEIGHTS:
        x = tf.tanh(x @ w)
    return x


def dense(x):
    """Each layer sees the results of all layers before it."""
    features = [x]
    for w in WEIGHTS:
        features.append(tf.nn.relu(tf.add_n(features) @ w + CAPTURED))
    return tf.add_n(features)


def looped(x, times, function):
    body = lambda i, x: (i + 1, function(x))  # noqa: E731
    return tf.while_loop(lambda i, x: i < times, body, (0, x), maximum_iterations=times)[1]


def with_control_flow(x):
    x = looped(tf.tanh(x @ WEIGHTS[0]), 3, lambda x: tf.sin(x @ WEIGHTS[1]))
    x = tf.cond(tf.reduce_sum(x) > 1e9, lambda: x, lambda: tf.exp(-(x**2)))
    return tf.tanh(tf.function(lambda x: tf.tanh(x @ WEIGHTS[2]))(x) @ WEIGHTS[3])


def with_a_list(x):
    """A list of Tensors, which a cut cannot keep."""
    x = tf.tanh(tf.tanh(x @ WEIGHTS[0]) @ WEIGHTS[1])
    array = tf.TensorArray(tf.float32, 2, element_shape=[64, 8]).write(0, tf.tanh(x @ WEIGHTS[2]))
    x = tf.reduce_sum(array.write(1, tf.sin(x)).stack(), 0)
    return tf.tanh(tf.tanh(x @ WEIGHTS[3]) @ WEIGHTS[4])


def normalized(x):
    """Batch normalization, and dropout with a seed."""
    for number, w in enumerate(WEIGHTS):
        x, *_ = tf.compat.v1.nn.fused_batch_norm((x @ w)[:, None, None, :], tf.ones([8]), tf.zeros([8]))
        x = tf.nn.experimental.stateless_dropout(tf.nn.relu(x[:, 0, 0]), 0.3, seed=[1, number])
    return x


def with_maxima(x):
    """The maximum of a monotonic function, of which nothing else reads the result."""
    a, b = tf.tanh(x @ WEIGHTS[0]), x @ WEIGHTS[1]
    c = tf.sin(a)
    return c * tf.reduce_max(tf.tanh(b), 1, keepdims=True) + b * tf.stop_gradient(tf.reduce_max(tf.sigmoid(c)))


FUNCTIONS = [chain, dense, with_control_flow, with_a_list, normalized]


def gradients(function, x=X):
    with tf.GradientTape() as tape:
        tape.watch([x, CAPTURED])
        y = function(x)
    sources = [x, CAPTURED, *WEIGHTS]
    return [y, *tape.gradient(y, sources, output_gradients=DY, unconnected_gradients="zero")]


def assert_same_bits(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("function", "mode"),
    [
        *((function, "traced") for function in FUNCTIONS),
        (with_control_flow, "jit"),
        (normalized, "jit"),
        (dense, "eager"),
    ],
)
def test_values_and_gradients_are_the_plain_ones(function, mode):
    expected = MODES[mode](functools.partial(gradients, function))()
    for memory in ["auto"] if mode == "jit" else ["auto", 0.85]:
        planned = cg.recompute_grad(function, memory=memory)
        assert any(segment.is_recomputed for segment in planned.plan(X).segments)
        found = MODES[mode](functools.partial(gradients, planned))()
        # XLA and eager mode fuse other ops, and gradients of many uses are summed in another order.
        if mode == "traced" and function is not dense:
            assert_same_bits(found, expected)
        assert_all_close(found, expected, rtol=2e-4, atol=1e-5)


def test_gradients_do_not_depend_on_where_the_graph_is_cut(monkeypatch):
    places = []

    def cut(api, name, memory, flat, sources, is_kept):
        places.append(len(flat.operations))
        parts = flat.operations[: len(places)], flat.operations[len(places) :]
        return Plan(0, 0, 0.0, (), (), ()), [SegmentOps(part, True) for part in parts]

    monkeypatch.setattr(recompute_grad, "make_plan", cut)
    expected = tf.function(gradients)(with_maxima)
    while not places or len(places) < places[0] - 1:
        found = tf.function(gradients)(cg.recompute_grad(with_maxima, memory="auto"))
        assert_all_close(found, expected, rtol=2e-4, atol=1e-5)


def test_state_is_written_once_and_random_numbers_are_drawn_once():
    counter, generator = tf.Variable(0.0), tf.random.Generator.from_seed(1)

    def linear(x):
        counter.assign_add(1.0)
        for _ in range(4):
            x = x * counter * tf.nn.dropout(tf.ones_like(x), 0.3) * generator.uniform(tf.shape(x))
        counter.assign_add(10.0)
        return x

    planned = cg.recompute_grad(linear, memory="auto")
    assert any(segment.is_recomputed for segment in planned.plan(X).segments)
    y, dx = tf.function(lambda: vjp(lambda: planned(X), X))()
    np.testing.assert_allclose(y, X * dx, rtol=1e-5)  # The function is linear, for its random numbers.
    assert np.mean(y == 0) > 0.5
    assert float(counter) == 11.0


def test_functions_with_little_to_plan():
    for function in (lambda x: x, lambda x: None, lambda x: tf.zeros([2]), lambda x: tf.stop_gradient(x) * 2.0):
        planned = cg.recompute_grad(function, memory="auto")
        assert planned.plan(X).extra_compute == 0
        with tf.GradientTape() as tape:
            tape.watch(X)
            np.testing.assert_array_equal(planned(X), function(X))


def test_a_plan_says_what_is_kept():
    plan = cg.recompute_grad(chain, memory=0.8).plan(X)
    size = 64 * 8 * 4
    # The six results, each read by a gradient, then the gradients of the last product and of what it multiplies.
    assert 7 * size <= plan.plain_bytes <= 8 * size + 256
    assert plan.peak_bytes <= 0.8 * plan.plain_bytes
    assert 0 < plan.extra_compute < 1
    assert sum(segment.kept_bytes for segment in plan.segments) <= plan.peak_bytes
    lines = str(plan).splitlines()
    assert len(lines) == 2 + len(plan.segments)
    assert lines[0].startswith("peak ")
    assert max(plan.course) == pytest.approx(plan.peak_bytes, abs=1)
    assert max(plan.plain_course) == pytest.approx(plan.plain_bytes, abs=1)


def test_a_custom_gradient_keeps_what_its_rule_reads():
    """That of tf.nn.silu reads its argument, and not what the value was computed from."""

    def chain_of(activation):
        def function(x):
            for w in WEIGHTS:
                x = activation(x @ w)
            return x

        return cg.recompute_grad(function, memory="auto").plan(tf.TensorSpec([4096, 8])).plain_bytes

    size = 4096 * 8 * 4
    # Of each layer, the product and the result; plain code also has the sigmoid.
    assert 12 * size <= chain_of(tf.nn.silu) <= 14 * size + 2048
    assert 18 * size <= chain_of(lambda x: x * tf.sigmoid(x))


def test_a_plan_needs_shapes_alone():
    def function(pair, *, scale):
        return chain(pair["a"]) * scale + CAPTURED, pair["number"]

    planned = cg.recompute_grad(function, memory="auto")
    spec, scale = tf.TensorSpec([64, 8], tf.float32), tf.constant(2.0)
    expected = planned.plan({"a": X, "number": 3}, scale=scale)
    assert planned.plan({"a": spec, "number": 3}, scale=scale) == expected
    assert planned.plan({"a": spec, "number": 3}, scale=tf.TensorSpec([])) == expected


ANY_BATCH = tf.TensorSpec([None, 8])


@pytest.mark.parametrize("memory", ["auto", 0.6])
def test_cuts_for_an_unknown_batch_are_the_ones_for_a_large_one(memory):
    def deep(x):
        return normalized(chain(normalized(x)))

    planned = cg.recompute_grad(deep, memory=memory)
    plan, of_large = planned.plan(ANY_BATCH), planned.plan(tf.TensorSpec([2**20, 8]))
    # The traces differ in ops that compute shapes.
    assert plan.plain_bytes == pytest.approx(of_large.plain_bytes, rel=0.02)
    assert plan.peak_bytes == pytest.approx(of_large.peak_bytes, rel=0.05)
    assert plan.extra_compute == pytest.approx(of_large.extra_compute, abs=0.1)
    assert plan.unknown_shapes == (ANY_BATCH.shape,)
    assert not of_large.unknown_shapes
    assert "(None, 8)" in str(plan)
    # The same cuts at other sizes, where the gradients of the weights count.
    at, least = plan.at(X), cg.recompute_grad(deep, memory="auto").plan(X)
    assert [s.name for s in at.segments] == [s.name for s in plan.segments]
    assert at.plain_bytes == pytest.approx(least.plain_bytes, rel=1e-6)
    assert least.peak_bytes <= at.peak_bytes <= at.plain_bytes
    assert of_large.at(X) == of_large
    for arguments, got in (((), "no Tensors"), ((X, X), "(64, 8), (64, 8)"), ((X[:, :7],), "(64, 7)")):
        message = f"plan.at: the arguments must fit 'deep', with shapes (None, 8), got {got}."
        with pytest.raises(ValueError, match=re.escape(message)):
            plan.at(*arguments)


def test_sizes_that_a_large_batch_does_not_fit_count_the_same_everywhere():
    planned = cg.recompute_grad(lambda x: chain(x + X), memory="auto")
    assert any(segment.is_recomputed for segment in planned.plan(ANY_BATCH).segments)


@pytest.mark.parametrize(
    "call",
    [tf.function(chain), tf.function(chain).get_concrete_function(X), lambda x: tf.function(chain)(x)],
    ids=["function", "concrete function", "inside"],
)
def test_called_functions_are_cut(call):
    planned = cg.recompute_grad(call, memory="auto")
    found, expected = planned.plan(X), cg.recompute_grad(chain, memory="auto").plan(X)
    assert (found.peak_bytes, found.plain_bytes) == (expected.peak_bytes, expected.plain_bytes)


def test_a_compiled_function_stays_one_op():
    compiled = tf.function(chain, jit_compile=True)
    types = []

    @tf.function
    def step(x):
        y = cg.recompute_grad(lambda x: chain(compiled(tf.tanh(x))), memory="auto")(x)
        types.extend(
            op.type for op in tf.compat.v1.get_default_graph().get_operations() if control_flow.is_compiled(op)
        )
        return y

    with tf.GradientTape() as tape:
        tape.watch(X)
        np.testing.assert_allclose(step(X), chain(chain(tf.tanh(X))), rtol=1e-5, atol=1e-6)
    assert len(types) == 1


def wide(x):
    return tf.tanh(x @ WIDE)


WIDE = tf.Variable(tf.ones([8, 65536]))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (wide, "the gradients of the variables take 2.0 MiB in any case"),
        (lambda x: looped(x, 99, tf.tanh), "loops, branches and compiled functions are not cut"),
        (tf.nn.softmax, "most of it is needed at once around"),
    ],
    ids=["weights", "loop", "one op"],
)
def test_recomputation_that_saves_next_to_nothing_says_why(function, why):
    x = X[:1] if function is wide else tf.zeros([65536, 8])
    planned = cg.recompute_grad(function, memory="auto")
    assert why in planned.plan(x).note
    assert why in str(planned.plan(x))
    with tf.GradientTape(), pytest.warns(UserWarning, match="recomputation saves less than a tenth"):
        planned(x)
    with tf.GradientTape():
        cg.recompute_grad(tf.nn.softmax, memory="auto")(X)  # Too small for a warning.


def test_the_least_peak_can_be_typed_in():
    """As bytes, and as the share that the error shows."""
    least = cg.recompute_grad(chain, memory="auto").plan(X)
    for memory in (least.peak_bytes, np.int64(least.peak_bytes), np.float64(least.peak_bytes / least.plain_bytes)):
        assert cg.recompute_grad(chain, memory=memory).plan(X) == least
    with pytest.raises(ValueError, match="must be at least") as caught:
        cg.recompute_grad(chain, memory=0.01).plan(X)
    share = float(re.search(r"(0\.\d{3}) of the", str(caught.value))[1])
    assert cg.recompute_grad(chain, memory=share).plan(X).peak_bytes <= math.ceil(share * least.plain_bytes)


def test_a_budget_takes_the_less_time_the_larger_it_is():
    shares = [0.3, 0.4, 0.6, 0.8, 1.0]
    plans = [cg.recompute_grad(lambda x: normalized(normalized(x)), memory=share).plan(X) for share in shares]
    for less, more in itertools.pairwise(plans):
        assert less.peak_bytes <= more.peak_bytes
        assert less.extra_compute >= more.extra_compute
    assert all(plan.peak_bytes <= share * plan.plain_bytes for plan, share in zip(plans, shares, strict=True))
    assert plans[0].extra_compute > plans[-1].extra_compute == 0


@pytest.mark.parametrize("function", [chain, dense, normalized])
def test_the_plan_is_the_best_of_all_cuts(function):
    graph = tf.function(function).get_concrete_function(X).graph
    costs = GraphCosts(graph, graph.inputs, graph.inputs, lambda op: False)
    choices = Choices(costs)
    # All cuts at a few of the places.
    at = sorted({0, *np.linspace(0, len(choices._places) - 1, 8).astype(int).tolist()})
    choices._places = choices._places[at]
    for name in ("kept", "saved", "peak", "cost", "_held"):
        setattr(choices, name, getattr(choices, name)[np.ix_(at, at)])
    found = {}
    for mask in itertools.product([0, 1], repeat=len(at) - 2):
        path = [0, *(i + 1 for i, cut in enumerate(mask) if cut), len(at) - 1]
        for again in itertools.product([True, False], repeat=len(path) - 1):
            kept = peak = cost = 0.0
            for (i, j), is_again in zip(itertools.pairwise(path), again, strict=True):
                peak = max(peak, kept + choices.peak[i, j])
                kept += (choices.kept if is_again else choices.saved)[i, j]
                cost += choices.cost[i, j] if is_again else 0
            found[peak] = min(cost, found.get(peak, np.inf))
    assert choices.least_peak == pytest.approx(min(found), rel=1e-6)
    for budget in np.linspace(min(found), choices.plain_peak, 5) * (1 + 1e-9):
        best = choices.best(budget)
        assert best.peak <= budget
        assert best.extra_cost == pytest.approx(min(cost for peak, cost in found.items() if peak <= budget), rel=1e-6)


def test_named_values_are_kept_in_any_case():
    def named(x):
        for number, w in enumerate(WEIGHTS):
            x = tf.tanh(cg.checkpoint_name(x @ w, "first" if number < 3 else "other"))
        return x

    free, constrained = (
        cg.recompute_grad(named, memory="auto", **options).plan(X) for options in ({}, {"keep": ["first"]})
    )
    assert constrained.peak_bytes > free.peak_bytes
    assert_same_bits(gradients(cg.recompute_grad(named, memory="auto", keep=["first"])), gradients(named))


def test_a_batch_of_unknown_size():
    step = tf.function(functools.partial(gradients, cg.recompute_grad(normalized, memory=0.8)), [ANY_BATCH])
    assert_same_bits(step(X), tf.function(gradients)(normalized))


def test_methods_and_pickles():
    class Model:
        @functools.partial(cg.recompute_grad, memory="auto")
        def __call__(self, x):
            return chain(x)

        @cg.recompute_grad(memory="auto")
        def method(self, x, times=1):
            assert type(self) is Model
            return chain(x) * times

    model = Model()
    for function in (model, model.method, functools.partial(Model.method, model)):
        assert_same_bits(gradients(function), gradients(chain))
    expected = cg.recompute_grad(chain, memory="auto").plan(X)
    for plan in (model.__call__.plan, model.method.plan, functools.partial(Model.method.plan, model)):
        assert abs(plan(X).peak_bytes - expected.peak_bytes) < 100
    assert model.method.plan(X, times=2).peak_bytes >= expected.peak_bytes
    assert model.method == model.method != Model().method
    assert len({model.method, model.method, Model.method}) == 2
    assert cloudpickle.loads(cloudpickle.dumps(model.method)).plan(X) == model.method.plan(X)
    assert pickle.loads(pickle.dumps(at_top_level)) is at_top_level
    partial = pickle.loads(pickle.dumps(cg.recompute_grad(functools.partial(chain), memory=0.9)))
    assert partial.plan(X).peak_bytes <= 0.9 * partial.plan(X).plain_bytes


@cg.recompute_grad(memory="auto")
def at_top_level(x):
    return chain(x)


def test_a_plot():
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    plan = cg.recompute_grad(chain, memory="auto").plan(X)
    assert plan.plot(axes) is axes
    peaks = [max(line.get_ydata()) * 2**20 for line in axes.lines[:2]]
    assert peaks == [max(plan.plain_course), max(plan.course)]


def conv(x, kernel):
    return tf.nn.conv2d(x, kernel, 1, "VALID")


# A contraction, the shapes of its operands, the products that it adds up, and the bytes in which its gradient works.
CONTRACTIONS = {
    "a convolution": (conv, [2, 5, 5, 3], [3, 3, 3, 4], 2 * 9 * 4 * 27, 2 * 9 * 27 * 4),
    "in groups": (conv, [2, 5, 5, 6], [3, 3, 3, 4], 2 * 9 * 4 * 27, 2 * 108 * 6 / 3 * 4),
    "a matrix product": (tf.matmul, [4, 5], [5, 3], 4 * 5 * 3, 0),
    "a batch of them": (tf.matmul, [2, 4, 5], [2, 5, 3], 2 * 4 * 5 * 3, 0),
    "an einsum": (lambda x, w: tf.einsum("ij,jk->ik", x, w), [4, 5], [5, 3], 4 * 5 * 3, 0),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_the_cost_of_a_contraction(name):
    function, x, w, products, work = CONTRACTIONS[name]
    graph = tf.function(function).get_concrete_function(tf.TensorSpec(x), tf.TensorSpec(w)).graph
    costs = GraphCosts(graph, graph.inputs, graph.inputs, lambda op: False)
    y = graph.outputs[0].shape.num_elements()
    moved = 4 * (np.prod(x) + np.prod(w) + y)
    assert (costs.cost[0], costs.in_flight[0]) == (moved + products / 4, 4 * y + work)
