"""Side effects in a rule run once for each gradient, in their order, and never without a gradient."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, vjp
from ..support.tensors import pairs

X = tf.constant([0.5, -1.0])
DY = tf.constant([2.0, -3.0])


WRAPPERS = {
    "eager": (lambda f: f, 1),
    "function": (tf.function, 1),
    "nested functions": (lambda f: tf.function(tf.function(f)), 1),
    "conditional": (lambda f: tf.function(lambda x: tf.cond(x[0] > 0.0, lambda: f(x), lambda: x)), 1),
    "branch not taken": (lambda f: tf.function(lambda x: tf.cond(x[0] < 0.0, lambda: f(x), lambda: 2.0 * x)), 0),
    "loop": (
        lambda f: tf.function(lambda x: tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, f(x)), [0, x])[1]),
        3,
    ),
    "XLA": (RUNS["jit"], 1),
}


class Log(tf.Module):
    """Variables that a rule assigns, and functions with such a rule."""

    def __init__(self):
        self.count, self.sequence = (tf.Variable(0, use_resource=True) for _ in range(2))

    def effects(self, dy):
        self.count.assign_add(1)
        self.sequence.assign(10 * self.sequence + 1)
        self.sequence.assign(10 * self.sequence + 2)
        return 2.0 * dy

    def custom_gradient(self, x):
        return cg.custom_gradient(lambda x: (tf.identity(x), self.effects))(x)

    def custom_vjp(self, x):
        return cg.custom_vjp(lambda x: (tf.identity(x), ()), lambda _, dy: self.effects(dy))(x)

    def override_gradients(self, x):
        return cg.override_gradients(lambda x: tf.identity(tf.nn.relu(x)), {"Relu": lambda op, dy: self.effects(dy)})(x)

    def custom_jvp(self, x):
        function = cg.custom_jvp(lambda x: tf.identity(x))
        function.defjvp(lambda primals, tangents: (primals[0], self.effects(tangents[0])))
        return function(x)


RULES = ["custom_gradient", "custom_vjp", "override_gradients", "custom_jvp"]


def gradient(function, x=X, dy=DY):
    return vjp(lambda: function(x), x, dy)[1]


@pytest.mark.parametrize(("wrapper", "rule"), pairs(WRAPPERS, RULES, quick=2))
def test_assignments_run_once_for_each_gradient_for_a_tape_around(rule, wrapper):
    log = Log()
    wrap, times = WRAPPERS[wrapper]
    function = wrap(getattr(log, rule))
    function(X)
    assert log.count.numpy() == 0
    for _ in range(2):
        log.count.assign(0)
        log.sequence.assign(0)
        np.testing.assert_allclose(gradient(function), DY * 2.0 ** max(times, wrapper == "branch not taken"))
        assert log.count.numpy() == times
        assert log.sequence.numpy() == int("12" * times or 0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("compiled", [False, True])
def test_assignments_run_once_for_each_gradient_for_a_tape_inside(rule, compiled):
    log = Log()
    traced = tf.function(functools.partial(gradient, getattr(log, rule)), jit_compile=compiled)
    np.testing.assert_allclose(traced(X, DY), 2.0 * DY)
    assert (log.count.numpy(), log.sequence.numpy()) == (1, 12)


@pytest.mark.parametrize("rule", ["custom_gradient", "override_gradients"])
def test_assignments_run_after_a_reload(rule, tmp_path):
    log = Log()
    for name in ("function", "loop"):
        setattr(log, name, tf.function(WRAPPERS[name][0](getattr(log, rule)), input_signature=[tf.TensorSpec([2])]))
    tf.saved_model.save(log, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    for name, times in (("function", 1), ("loop", 3)):
        loaded.count.assign(0)
        getattr(loaded, name)(X)
        assert loaded.count.numpy() == 0
        np.testing.assert_allclose(gradient(getattr(loaded, name)), DY * 2.0**times)
        assert loaded.count.numpy() == times
    assert loaded.sequence.numpy() == int("12" * 4)


@pytest.mark.parametrize("wrapper", ["eager", "loop"])
def test_assertions_fail_the_gradient_and_prints_show(wrapper, capfd):
    @cg.custom_gradient
    def function(x):
        def grad_fn(dy):
            tf.debugging.assert_greater(dy, -4.0, "dy is too small")
            tf.print("first", dy)
            tf.print("second")
            return dy

        return tf.identity(x), grad_fn

    wrap, times = WRAPPERS[wrapper]
    wrapped = wrap(function)
    wrapped(X)
    assert "first" not in capfd.readouterr().err
    np.testing.assert_allclose(gradient(wrapped), DY)
    assert capfd.readouterr().err.count("first [2 -3]\nsecond\n") == times
    with pytest.raises(tf.errors.InvalidArgumentError, match="dy is too small"):
        gradient(wrapped, dy=2.0 * DY)


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
    found = gradient(tf.function(lambda x: tf.gather(log.custom_gradient(x), [1, 1])), dy=DY)
    assert isinstance(found, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(found), [0.0, -2.0])
    assert log.count.numpy() == 1


def test_in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, log = tf.constant([0.5, -1.0]), Log()
        y = log.custom_gradient(x)
        dx = tf.gradients(y, x)[0]
        session.run(tf.compat.v1.global_variables_initializer())
        for fetched, counts in ((y, (0, 0)), (dx, (1, 12))):
            session.run(fetched)
            assert tuple(session.run([log.count, log.sequence])) == counts


def test_a_rule_without_effects_adds_nothing_to_its_gradient():
    function = tf.function(cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: 2.0 * dy)))
    traced = tf.function(functools.partial(gradient, function)).get_concrete_function(X, DY)
    assert not any(op.control_inputs for op in traced.graph.get_operations() if op.type == "Mul")


def test_an_unused_call_has_no_effect_and_control_flow_behind_a_gradient_keeps_it():
    log, count = Log(), tf.Variable(0)

    @tf.function
    def function(x):
        log.custom_gradient(x)
        dx = gradient(log.custom_gradient, x)
        tf.cond(dx[0] > 0.0, lambda: count.assign_add(1), lambda: count)
        return dx

    function(X)
    assert (log.count.numpy(), count.numpy()) == (1, 1)
