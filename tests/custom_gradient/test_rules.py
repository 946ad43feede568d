"""When and where a rule runs, what it can return, its side effects, and the op that has the traced rule for a file."""

import functools
import gc
import re
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.modes import MODES, RUNS, assert_orders, gradients, in_a_while_loop, tape_vjp, vjp
from ..support.processes import run_python
from ..support.tensors import address, pairs
from .test_modes import with_rule

X, DY = np.array([0.5, -1.0, 2.0]), np.array([1.0, 10.0, -3.0])


def test_grad_fn_is_called_in_the_graph_of_the_gradient():
    """It can depend on the state of the program at that time."""
    graphs, factor = [], 2.0

    def grad_fn(dy):
        graphs.append(tf.compat.v1.get_default_graph())
        return factor * dy

    with tf.Graph().as_default() as graph:
        x = tf.constant([1.0, 2.0])
        y = cg.custom_gradient(lambda x: (tf.identity(x), grad_fn))(x)
        assert graphs[0] is not graph  # The rule for the file.
        factor = 5.0
        (dx,) = tf.gradients(y, x, grad_ys=tf.constant([1.0, 10.0]))
        tf.gradients(y, x)
        assert graphs[1:] == [graph, graph]
        with tf.compat.v1.Session() as session:
            assert session.run(dx).tolist() == [5.0, 50.0]


COLLECTIVES = """
import tensorflow as tf
import tf_cg_ops as cg

devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
all_sum = lambda x: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)

def replica():
    number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32) + 1.0
    x = number * tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = cg.custom_gradient(lambda x: (all_sum(x), lambda dy: all_sum(dy)))(x)
    return y, tape.gradient(y, x, output_gradients=number * tf.constant([1.0, 10.0]))

both = tf.function(lambda: strategy.run(replica))()
print([[t.numpy().tolist() for t in strategy.experimental_local_results(result)] for result in both])
"""


def test_collectives_in_a_strategy(tmp_path):
    """In a process of its own, because logical devices are made before TensorFlow starts."""
    lines = run_python(COLLECTIVES, cwd=tmp_path).stdout.splitlines()
    assert lines[-1] == str([[[3.0, 6.0]] * 2, [[3.0, 30.0]] * 2])


def test_a_live_rule_is_gone_with_its_graph():
    kept = tf.Module()
    gone = weakref.ref(kept)

    def with_kept(kept):
        return cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: dy if kept else None))

    gradients("traced", with_kept(kept), [tf.constant(X)], tf.constant(DY))
    del kept
    gc.collect()
    assert gone() is None


def test_the_capture_of_the_graph_at_hand_is_its_own_again():
    """While grad_fn is called, the graph captures tensors from the forward graph; afterwards it is as before."""
    graphs, outside = [], tf.constant(DY)

    def grad_fn(x, dy):
        graphs.append(tf.compat.v1.get_default_graph())
        return dy * outside + 0.0 * x

    function = cg.custom_gradient(lambda x: (tf.identity(x), functools.partial(grad_fn, x)))

    def nested(x):
        return tf.cond(x[0] > 0, lambda: tf.cond(x[1] < 0, lambda: function(x), lambda: x), lambda: x)

    (dx,) = gradients("traced", nested, [tf.constant(X)], tf.constant(X))
    np.testing.assert_allclose(dx, X * DY)
    assert len(graphs) > 1
    for graph in graphs:
        assert graph.capture.__self__ is graph
        captures = [id(inside) for _, inside in graph.captures]
        assert len(set(captures)) == len(captures)


def test_a_rule_runs_once_for_the_file_and_once_for_each_gradient_that_is_asked_for():
    traced = []

    def grad_fn(dy):
        traced.append(tf.executing_eagerly())
        return 2.0 * dy

    function = cg.custom_gradient(lambda x: (x, grad_fn))
    run, x = tf.function(lambda x: function(x) + function(2.0 * x)), tf.constant(X)
    run(x)
    assert traced == [False, False]  # Once for each of the two calls in the graph.
    for _ in range(3):
        np.testing.assert_allclose(tape_vjp(run, [x], tf.constant(DY))[1][0], 6 * DY)
    assert traced == [False] * 4  # Once more when the graph of the gradient is built, not at each step.
    function(x)
    assert len(traced) == 4


def test_the_names_of_rules_in_a_graph_are_plain_identifiers():
    function = cg.custom_gradient(lambda x: (2.0 * x, lambda dy: dy))
    function.__name__ = "größe <of> x.y"
    tf_function = tf.function(function, input_signature=[tf.TensorSpec([2])])
    names = [f.signature.name for f in tf_function.get_concrete_function().graph.as_graph_def().library.function]
    assert [name for name in names if re.fullmatch(r"\w*rule_of\w*", name, re.ASCII)] == names
    assert names


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_results_share_the_buffer_of_y(mode):
    def run(x):
        y = tf.exp(x)
        return y, cg.custom_gradient(lambda x: (y, lambda dy: dy))(x)

    y, result = RUNS[mode](run)(tf.constant(X))
    assert address(result) == address(y)


CONSTANT = tf.constant([5.0, 7.0], tf.float64)
LARGE = tf.range(200, dtype=tf.float64)  # TensorFlow captures small constants by their values.


def exponential(x):
    e = tf.exp(x)
    return 2.0 * x, lambda dy: e


def reversed_slices(x):
    slices = tf.IndexedSlices(2.0 * x, tf.constant([1, 0]), tf.shape(x))
    return 2.0 * x, lambda dy: slices


# Each with the first derivative, and the second one, of sum(dx * dy), for x and dy.
RULES = {
    "upstream_itself": (lambda x: (2.0 * x, lambda dy: dy), lambda x, dy: (dy, 0 * x)),
    "a_part_of_a_large_constant": (lambda x: (2.0 * x, lambda dy: LARGE[5:8:2]), lambda x, dy: (CONSTANT, 0 * x)),
    "the_argument": (lambda x: (2.0 * x, lambda dy: x), lambda x, dy: (x, dy)),
    "a_constant": (lambda x: (2.0 * x, lambda dy: CONSTANT), lambda x, dy: (CONSTANT, 0 * x)),
    "exponential": (exponential, lambda x, dy: (np.exp(x), dy * np.exp(x))),
    "reversed_slices": (reversed_slices, lambda x, dy: (2.0 * x[::-1], 2.0 * dy[::-1])),
}
PLACES = {
    **{mode: (mode, lambda f: f) for mode in ("eager", "traced", "unknown_shape", "jit")},
    "in_a_loop": ("traced", in_a_while_loop),
}


# Not with tapes around a tf.function, and in a loop one order, because there TensorFlow also computes the gradient for an
# upstream of zeros; and not in a graph of TensorFlow 1, which cannot hold EagerTensors.
@pytest.mark.parametrize(("rule", "place"), pairs(RULES, PLACES, quick=2))
def test_rules_may_return_tensors_that_they_did_not_compute(rule, place):
    x, dy = np.array([2.0, 3.0]), np.array([1.0, 10.0])
    (function, by_hand), (mode, wrap) = RULES[rule], PLACES[place]
    count = 2 if place == "in_a_loop" else 3
    found = MODES[mode](wrap(cg.custom_gradient(function)), x, dy)
    assert_orders(found[:count], [2.0 * x, *by_hand(x, dy)][:count])


def gradient_of_an_op(**attributes):
    """The gradient of the op itself, whose rule is `product` unless the attributes say something else."""
    product = tf.function(lambda dy, c: dy * c).get_concrete_function(tf.TensorSpec([2]), tf.TensorSpec([2]))
    positions = {"differentiated_results": [0], "differentiated_inputs": [0], "sliced_inputs": []}

    @tf.function
    def run(x):
        product.add_to_graph(tf.compat.v1.get_default_graph())
        named = {"rule": product.name, **positions, **attributes}
        return vjp(lambda: library.custom_gradient_rule([x], [x], [tf.constant([5.0, 7.0])], **named)[0], x)[1]

    return run(tf.ones([2]))


def test_a_rule_of_an_op_that_was_made_directly():
    np.testing.assert_array_equal(gradient_of_an_op(), [5.0, 7.0])


POSITIONS = "{} must hold positions from [0], each once, got {}"
MALFORMED = [
    ("rule", "nothing", "the graph lacks the function 'nothing', the gradient rule of this op"),
    ("differentiated_results", [], "must have 1 argument and 1 result, got 2 and 1"),
    ("differentiated_results", [1], POSITIONS),
    ("differentiated_results", [-1], POSITIONS),
    ("differentiated_inputs", [1], POSITIONS),
    ("differentiated_inputs", [0, 0], POSITIONS),
    ("sliced_inputs", [0], "must have 2 arguments and 3 results, got 2 and 1"),
    ("sliced_inputs", [1], POSITIONS),
]


@pytest.mark.parametrize(("attribute", "value", "message"), MALFORMED, ids=str)
def test_a_rule_of_an_op_that_is_malformed(attribute, value, message):
    with pytest.raises(ValueError, match=re.escape(message.format(attribute, value))):
        gradient_of_an_op(**{attribute: value})


def test_the_op_of_eager_mode_has_no_gradient():
    x, named = tf.ones([2]), {"rule": "product", "differentiated_results": [0], "differentiated_inputs": [0]}
    with pytest.raises(ValueError, match="CustomGradientRule: in eager mode this op has no gradient"):
        vjp(lambda: library.custom_gradient_rule([x], [x], [], **named)[0], x)


# Side effects run once for each gradient, in their order, and never without a gradient

POINT, UPSTREAM = tf.constant([0.5, -1.0]), tf.constant([2.0, -3.0])
itself = RUNS["eager"]


def three_times(f):
    return tf.function(lambda x: tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, f(x)), [0, x])[1])


# What is around the function, what is around the tape, and how often the rule runs.
WRAPPERS = {
    "eager": (itself, itself, 1),
    "function": (tf.function, itself, 1),
    "nested functions": (lambda f: tf.function(tf.function(f)), itself, 1),
    "conditional": (lambda f: tf.function(lambda x: tf.cond(x[0] > 0.0, lambda: f(x), lambda: x)), itself, 1),
    "branch not taken": (lambda f: tf.function(lambda x: tf.cond(x[0] < 0.0, lambda: f(x), lambda: x)), itself, 0),
    "loop": (three_times, itself, 3),
    "XLA": (RUNS["jit"], itself, 1),
    "tape inside": (itself, tf.function, 1),
    "tape inside, XLA": (itself, RUNS["jit"], 1),
}
DECORATORS = {
    "custom_gradient": lambda effects: cg.custom_gradient(lambda x: (tf.identity(x), effects)),
    "custom_vjp": lambda effects: cg.custom_vjp(lambda x: (tf.identity(x), ()), lambda _, dy: effects(dy)),
    "override_gradients": lambda effects: cg.override_gradients(
        lambda x: tf.identity(tf.nn.relu(x)), {"Relu": lambda op, dy: effects(dy)}
    ),
    "custom_jvp": lambda effects: with_rule(lambda x: tf.identity(x), lambda p, t: (None, effects(t[0]))),
}


class Log(tf.Module):
    """Variables that a rule assigns, and a function with such a rule."""

    def __init__(self, rule="custom_gradient"):
        self.count, self.sequence = (tf.Variable(0, use_resource=True) for _ in range(2))
        self.function = DECORATORS[rule](self.effects)

    def effects(self, dy):
        self.count.assign_add(1)
        self.sequence.assign(10 * self.sequence + 1)
        self.sequence.assign(10 * self.sequence + 2)
        return 2.0 * dy


def gradient(function, x=POINT, dy=UPSTREAM):
    return vjp(lambda: function(x), x, dy)[1]


@pytest.mark.parametrize(("wrapper", "rule"), pairs(WRAPPERS, DECORATORS, quick=2))
def test_assignments_run_once_for_each_gradient(wrapper, rule):
    log, (wrap, around_the_tape, times) = Log(rule), WRAPPERS[wrapper]
    function = wrap(log.function)
    differentiate = around_the_tape(functools.partial(gradient, function))
    function(POINT)
    assert log.count.numpy() == 0
    for _ in range(2):
        log.count.assign(0)
        log.sequence.assign(0)
        np.testing.assert_allclose(differentiate(POINT, UPSTREAM), UPSTREAM * 2.0**times)
        assert log.count.numpy() == times
        assert log.sequence.numpy() == int("12" * times or 0)


@pytest.mark.parametrize("rule", ["custom_gradient", "override_gradients"])
def test_assignments_run_after_a_reload(rule, tmp_path):
    model = Log(rule)
    function, model.function = model.function, None
    for name, wrap in (("once", tf.function), ("loop", three_times)):
        setattr(model, name, tf.function(wrap(function), input_signature=[tf.TensorSpec([2])]))
    tf.saved_model.save(model, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    for name, times in (("once", 1), ("loop", 3)):
        loaded.count.assign(0)
        getattr(loaded, name)(POINT)
        assert loaded.count.numpy() == 0
        np.testing.assert_allclose(gradient(getattr(loaded, name)), UPSTREAM * 2.0**times)
        assert loaded.count.numpy() == times
    assert loaded.sequence.numpy() == int("12" * 4)


@pytest.mark.parametrize("wrapper", ["eager", "loop"])
def test_assertions_fail_the_gradient_and_prints_show(wrapper, capfd):
    def effects(dy):
        tf.debugging.assert_greater(dy, -4.0, "dy is too small")
        tf.print("first", dy)
        tf.print("second")
        return dy

    wrap, _, times = WRAPPERS[wrapper]
    wrapped = wrap(DECORATORS["custom_gradient"](effects))
    wrapped(POINT)
    assert "first" not in capfd.readouterr().err
    np.testing.assert_allclose(gradient(wrapped), UPSTREAM)
    assert capfd.readouterr().err.count("first [2 -3]\nsecond\n") == times
    with pytest.raises(tf.errors.InvalidArgumentError, match="dy is too small"):
        gradient(wrapped, dy=2.0 * UPSTREAM)


@pytest.mark.parametrize("reloaded", [False, True])
def test_effects_of_a_rule_wait_for_effects_of_the_rule_above(reloaded, tmp_path):
    module = tf.Module()
    module.order = tf.Variable(0)

    def numbered(number):
        def effects(dy):
            module.order.assign(10 * module.order + number)
            return dy

        return cg.custom_gradient(lambda x: (tf.identity(x), effects))

    module.call = tf.function(lambda x: numbered(1)(numbered(2)(numbered(3)(x))), [tf.TensorSpec([2])])
    if reloaded:
        tf.saved_model.save(module, tmp_path)
        module = tf.saved_model.load(tmp_path)
    for _ in range(20):
        module.order.assign(0)
        gradient(module.call)
        assert module.order.numpy() == 123  # The gradient of the outermost call comes first.


def test_slices_wait_for_effects():
    log = Log()
    found = gradient(tf.function(lambda x: tf.gather(log.function(x), [1, 1])), dy=UPSTREAM)
    assert isinstance(found, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(found), [0.0, -2.0])
    assert log.count.numpy() == 1


def test_in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, log = tf.constant([0.5, -1.0]), Log()
        y = log.function(x)
        dx = tf.gradients(y, x)[0]
        session.run(tf.compat.v1.global_variables_initializer())
        for fetched, counts in ((y, (0, 0)), (dx, (1, 12))):
            session.run(fetched)
            assert tuple(session.run([log.count, log.sequence])) == counts


def test_a_rule_without_effects_adds_nothing_to_its_gradient():
    function = tf.function(cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: 2.0 * dy)))
    traced = tf.function(functools.partial(gradient, function)).get_concrete_function(POINT, UPSTREAM)
    assert not any(op.control_inputs for op in traced.graph.get_operations() if op.type == "Mul")


def test_an_unused_call_has_no_effect_and_control_flow_behind_a_gradient_keeps_it():
    log, count = Log(), tf.Variable(0)

    @tf.function
    def function(x):
        log.function(x)
        dx = gradient(log.function, x)
        tf.cond(dx[0] > 0.0, lambda: count.assign_add(1), lambda: count)
        return dx

    function(POINT)
    assert (log.count.numpy(), count.numpy()) == (1, 1)
