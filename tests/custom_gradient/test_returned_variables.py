"""Variables that a function only returns, that are not trainable, or that are passed twice."""

import concurrent.futures
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients
from ..support.tensors import pairs

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])
mode = pytest.mark.parametrize("mode", RUNS)


def with_rule(function, rule):
    decorated = cg.custom_jvp(function)
    decorated.defjvp(rule)
    return decorated


def with_returned(v, takes_variables):
    """Decorated functions of x that return 2 x and v. Their rules multiply by 7 for x, and by 5 for v if they have one."""
    value = lambda x: [2.0 * x, v]  # noqa: E731
    if takes_variables:
        return {
            "custom_gradient": cg.custom_gradient(
                lambda x: (value(x), lambda dx, dv, variables=None: (7.0 * dx, [5.0 * dv for _ in variables]))
            ),
            "custom_vjp": cg.custom_vjp(
                lambda x: (value(x), None), lambda r, dx, dv, variables=None: (7.0 * dx, [5.0 * dv for _ in variables])
            ),
            "custom_jvp": with_rule(
                value,
                lambda p, t, variables=None, variable_tangents=None: (
                    value(*p),
                    [7.0 * t[0], 5.0 * variable_tangents[0]],
                ),
            ),
        }
    return {
        "custom_gradient": cg.custom_gradient(lambda x: (value(x), lambda dx, dv: 7.0 * dx)),
        "custom_vjp": cg.custom_vjp(lambda x: (value(x), None), lambda r, dx, dv: 7.0 * dx),
        "custom_jvp": with_rule(value, lambda p, t: (value(*p), [7.0 * t[0], None])),
    }


DECORATORS = ["custom_gradient", "custom_vjp", "custom_jvp"]


@pytest.mark.parametrize("trainable", [True, False], ids=["trainable", "watched"])
@pytest.mark.parametrize("takes_variables", [True, False], ids=["counted", "passed"])
@pytest.mark.parametrize(("name", "mode"), pairs(DECORATORS, RUNS))
def test_a_variable_that_is_only_returned_has_a_gradient(name, takes_variables, trainable, mode):
    """It comes from the rule if that takes variables; otherwise it is the upstream gradient, as in plain code."""
    v = tf.Variable([3.0, 4.0], trainable=trainable)
    function = with_returned(v, takes_variables)[name]

    found = gradients(mode, lambda x, v: function(x), [X, v], [DY, 100.0 * DY])
    np.testing.assert_allclose(found, [7.0 * DY, (500.0 if takes_variables else 100.0) * DY])


@mode
def test_a_variable_that_is_returned_twice_passes_both_gradients(mode):
    v = tf.Variable([3.0, 4.0])
    function = cg.custom_gradient(lambda x: ({"a": v, "b": [v, x]}, lambda da, db, dx: 7.0 * dx))

    def twice(v):
        value = function(X)
        return [value["a"], value["b"][0]]

    (dv,) = gradients(mode, twice, [v], [DY, 100.0 * DY])
    np.testing.assert_allclose(dv, 101.0 * DY)


@pytest.mark.parametrize("takes_variables", [True, False], ids=["counted", "passed"])
@mode
def test_tangents_of_a_returned_variable(takes_variables, mode):
    v = tf.Variable([3.0, 4.0])
    function = with_returned(v, takes_variables)["custom_jvp"]

    def run():
        with tf.autodiff.ForwardAccumulator([X, v], [DY, 100.0 * DY]) as accumulator:
            values = function(X)
        return [accumulator.jvp(value) for value in values]

    np.testing.assert_allclose(RUNS[mode](run)(), [7.0 * DY, (500.0 if takes_variables else 100.0) * DY])


@pytest.mark.parametrize("takes_variables", [True, False], ids=["counted", "passed"])
def test_gradients_of_returned_variables_in_a_loaded_model(takes_variables, tmp_path):
    model = tf.Module()
    model.v = tf.Variable([3.0, 4.0])
    function = with_returned(model.v, takes_variables)["custom_gradient"]
    model.f = tf.function(function, input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(model, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    found = gradients("eager", lambda x, v: loaded.f(x), [X, loaded.v], [DY, 100.0 * DY])
    np.testing.assert_allclose(found, [7.0 * DY, (500.0 if takes_variables else 100.0) * DY])


# Variables that are not trainable


def reading(v):
    return {
        "custom_gradient": cg.custom_gradient(lambda x: (x * v, lambda dy, variables: (7.0 * dy, [5.0 * dy]))),
        "custom_vjp": cg.custom_vjp(lambda x: (x * v, None), lambda r, dy, variables: (7.0 * dy, [5.0 * dy])),
        "custom_jvp": with_rule(
            lambda x: x * v, lambda p, t, variables, variable_tangents: (p[0], 7.0 * t[0] + 5.0 * variable_tangents[0])
        ),
    }


WATCHED = {
    "tf": lambda: tf.Variable([3.0, 4.0], trainable=False),
    "keras": lambda: keras.Variable([3.0, 4.0], trainable=False),
}


def tf_variable(v):
    return v.value if isinstance(v, keras.Variable) else v


GRAPHS = ["traced", "jit"]


@pytest.mark.parametrize(("name", "mode"), pairs(DECORATORS, GRAPHS))
@pytest.mark.parametrize(("make", "inner"), [("tf", False), ("tf", True), ("keras", False)])
def test_in_a_graph_a_watched_variable_counts_among_the_variables(name, make, inner, mode):
    v, other = WATCHED[make](), tf.Variable([0.0, 0.0], trainable=False)
    function = reading(v)[name]
    function = tf.function(function) if inner else function

    dx, dv, none = gradients(mode, lambda x, v, other: function(x), [X, tf_variable(v), other], DY)
    np.testing.assert_allclose([dx, dv], [7.0 * DY, 5.0 * DY])
    assert none is None
    assert not v.trainable


class Holder:
    def __init__(self):
        self.v = tf.Variable([3.0, 4.0], trainable=False)
        self.several = {"first": tf.Variable([3.0, 4.0], trainable=False)}

    @cg.custom_gradient
    def method(self, x):
        return x * self.v * self.several["first"], lambda dy, variables: (7.0 * dy, [5.0 * dy, 3.0 * dy])


@pytest.mark.parametrize("mode", GRAPHS)
def test_watched_variables_of_a_method_in_the_order_of_their_creation(mode):
    holder = Holder()
    found = gradients(mode, lambda *variables: holder.method(X), [holder.v, holder.several["first"]], DY)
    np.testing.assert_allclose(found, [5.0 * DY, 3.0 * DY])


@pytest.mark.parametrize("mode", GRAPHS)
def test_a_watched_variable_is_an_error_for_a_grad_fn_that_takes_none(mode):
    v = tf.Variable([3.0, 4.0], trainable=False, name="frozen")
    function = cg.custom_gradient(lambda x: (x * v, lambda dy: dy))

    with pytest.raises(TypeError, match=r"reads variables that are not among its arguments \('frozen:0'\)"):
        gradients(mode, lambda v: function(X), [v], DY)
    np.testing.assert_allclose(function(X), [3.0, 8.0])


def test_a_function_that_was_traced_before_a_variable_was_watched():
    """A trace does not know the tapes of later calls. Traced under the tape, it has the gradient."""
    v = tf.Variable([3.0, 4.0], trainable=False)
    product = cg.custom_gradient(lambda x: (x * v, lambda dy, variables=(): (dy, [5.0 * dy]) if variables else dy))
    traced_now, traced_before = tf.function(product), tf.function(product)
    traced_before(X)
    (dv,) = gradients("eager", lambda v: traced_now(X), [v], DY)
    np.testing.assert_allclose(dv, 5.0 * DY)
    assert gradients("eager", lambda v: traced_before(X), [v], DY) == [None]


@pytest.mark.parametrize("name", DECORATORS)
@pytest.mark.parametrize("make", WATCHED)
def test_eager_mode_only_counts_trainable_variables(name, make):
    """As with tf.custom_gradient: TensorFlow's C++ reads the variables of an op, and reports the trainable ones."""
    v, x = WATCHED[make](), X

    def value_only(x):
        return x * v

    function = {
        "custom_gradient": cg.custom_gradient(lambda x: (value_only(x), lambda dy: 7.0 * dy)),
        "custom_vjp": cg.custom_vjp(lambda x: (value_only(x), None), lambda r, dy: 7.0 * dy),
        "custom_jvp": with_rule(value_only, lambda p, t: (p[0], 7.0 * t[0])),
    }[name]
    theirs = tf.custom_gradient(lambda x: (value_only(x), lambda dy: 7.0 * dy))
    for decorated in (function, theirs):
        dx, dv = gradients("eager", lambda x, v, decorated=decorated: decorated(x), [x, tf_variable(v)], DY)
        np.testing.assert_allclose(dx, 7.0 * DY)
        assert dv is None


@pytest.mark.parametrize(("name", "mode"), pairs(DECORATORS, RUNS))
@pytest.mark.parametrize("make", WATCHED)
def test_a_variable_that_is_not_trainable_has_a_gradient_as_an_argument(name, make, mode):
    v = WATCHED[make]()
    found = gradients(mode, lambda x, inner: of_two()[name](x, v), [X, tf_variable(v)], DY)
    np.testing.assert_allclose(found, [7.0 * DY, 500.0 * DY])


def test_a_variable_does_not_count_as_trainable_while_a_function_reads_it():
    """Neither in the function, nor in other threads."""
    v, seen = tf.Variable(2.0, trainable=False), []
    go_on, is_inside = threading.Event(), threading.Event()

    @cg.custom_gradient
    def function(x):
        is_inside.set()
        go_on.wait(60)
        with tf.GradientTape() as inner:
            y = x * v
        seen.append((v.trainable, inner.watched_variables()))
        return y, lambda dy: dy

    def run():
        with tf.GradientTape() as tape:
            tape.watch(v)
            function(X)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        done = pool.submit(run)
        assert is_inside.wait(60)
        assert not v.trainable
        with tf.GradientTape() as tape:
            y = v * 3.0
        assert tape.gradient(y, v) is None
        go_on.set()
        done.result()
    assert seen == [(False, ())]


# One variable in several places


class OwnVariable(keras.Variable):
    """A subclass in a user's module."""


VARIABLES = {
    "tf": lambda: tf.Variable([3.0, 4.0]),
    "keras": lambda: keras.Variable([3.0, 4.0]),
    "subclass": lambda: OwnVariable([3.0, 4.0]),
    "tf_keras": lambda: tf_keras.layers.Layer(dtype="mixed_float16").add_weight(
        "v", [2], initializer=tf_keras.initializers.Constant([3.0, 4.0])
    ),
}


def of_two():
    return {
        "custom_gradient": cg.custom_gradient(lambda a, b: (a * b, lambda dy: (7.0 * dy, 500.0 * dy))),
        "custom_vjp": cg.custom_vjp(lambda a, b: (a * b, None), lambda r, dy: (7.0 * dy, 500.0 * dy)),
        "custom_jvp": with_rule(lambda a, b: a * b, lambda p, t: (p[0], 7.0 * t[0] + 500.0 * t[1])),
        "structure": lambda a, b: cg.custom_gradient(
            lambda d: (d["a"] * d["b"][0], lambda dy: {"b": [500.0 * dy], "a": 7.0 * dy})
        )({"b": [b], "a": a}),
        "grad_pass_through": lambda a, b: sum(
            k * y for k, y in zip((7.0, 500.0), cg.grad_pass_through(lambda a, b: [a, b])(a, b), strict=True)
        ),
        "embed_gradient": lambda a, b: cg.embed_gradient(
            tf.multiply(a, b), [tf.constant([7.0, 7.0]), tf.constant([500.0, 500.0])], [a, b]
        ),
    }


@pytest.mark.parametrize(("name", "mode"), pairs(of_two(), RUNS))
@pytest.mark.parametrize(("make", "view"), [("tf", False), ("keras", True), ("subclass", False), ("tf_keras", True)])
def test_one_variable_in_two_places_has_both_gradients(name, make, view, mode):
    v = VARIABLES[make]()
    found = gradients(mode, lambda inner: of_two()[name](v, inner if view else v), [tf_variable(v)], DY)
    np.testing.assert_allclose(found, [507.0 * DY])


@pytest.mark.parametrize(("make", "name"), pairs(VARIABLES, DECORATORS))
@mode
def test_every_kind_of_variable_is_found_where_it_is_read(name, make, mode):
    v = VARIABLES[make]()
    found = gradients(mode, lambda x, _: reading(v)[name](x), [X, tf_variable(v)], DY)
    np.testing.assert_allclose(found, [7.0 * DY, 5.0 * DY])
