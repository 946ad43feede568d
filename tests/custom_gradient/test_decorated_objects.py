"""Decorated functions as Python objects: attributes, passing them as arguments, copies, pickles, other processes."""

import copy
import functools
import inspect
import pickle
import re
import typing

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

X = tf.constant([1.0, 2.0])
DY = tf.constant([1.0, 10.0])


@cg.custom_gradient
def hundredfold(x):
    return tf.sin(x), lambda dy: 100.0 * dy


@cg.straight_through
def rounded(x):
    return tf.round(x)


class Module(tf.Module):
    factor = 100.0

    @cg.custom_gradient
    def scaled(self, x):
        return tf.sin(x), lambda dy: self.factor * dy


def gradient(function, x=X):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x, output_gradients=DY).numpy().tolist()


def sine(x):
    return tf.sin(x)


def with_rule(function, rule):
    decorated = cg.custom_jvp(function)
    decorated.defjvp(rule)
    return decorated


DECORATORS = {
    "custom_gradient": cg.custom_gradient,
    "custom_vjp": lambda f: cg.custom_vjp(f, lambda residuals, dy: dy),
    "custom_jvp": cg.custom_jvp,
    "recompute_grad": cg.recompute_grad,
    "grad_pass_through": cg.grad_pass_through,
    "straight_through": cg.straight_through,
    "implicit_root": lambda f: cg.implicit_root(lambda y, x: y - x, f),
}


@pytest.mark.parametrize("name", DECORATORS)
def test_every_decorator_tells_the_function_that_it_wraps(name):
    decorated = DECORATORS[name](sine)
    assert decorated.__wrapped__ is decorated.__original_wrapped__ is inspect.unwrap(decorated) is sine
    assert inspect.signature(decorated) == inspect.signature(sine)
    assert decorated.__name__ == "sine"
    assert repr(decorated).startswith(f"<{name} of sine at 0x")


def through_a_condition(x):
    if tf.reduce_sum(x) > 0:  # AutoGraph translates this function.
        return hundredfold(x)
    return x


USES = {
    "itself": hundredfold,
    "in a translated condition": through_a_condition,
    "a method": Module().scaled,
    "a partial": functools.partial(hundredfold),
    "wrapped again": functools.wraps(hundredfold)(lambda x: through_a_condition(x)),
}


@pytest.mark.parametrize("name", USES)
def test_autograph_translates_around_the_decorator_and_does_not_look_through_it(name):
    assert gradient(tf.function(USES[name])) == [100.0, 1000.0]
    if name == "wrapped again":
        assert gradient(tf.function(USES[name]), -X) == [1.0, 10.0]


def test_arguments_of_a_function_keep_their_gradients():
    """TensorFlow looks for the value in __wrapped__."""
    call = tf.function(lambda function, x: function(x))
    assert gradient(functools.partial(call, hundredfold)) == [100.0, 1000.0]
    assert gradient(functools.partial(call, rounded)) == [1.0, 10.0]
    number_of_traces = call.experimental_get_tracing_count()
    call(hundredfold, X)
    assert call.experimental_get_tracing_count() == number_of_traces


@pytest.mark.parametrize("decorated", [hundredfold, rounded, Module.scaled], ids=["function", "ready_made", "method"])
def test_decorated_functions_are_copied_as_they_are_and_pickled_by_name(decorated):
    assert copy.copy(decorated) is copy.deepcopy([decorated])[0] is decorated
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(decorated, protocol)) is decorated


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @cg.custom_gradient
    def apply(self, x):
        return tf.sin(x), lambda dy: self.factor * dy


class Plain(Scale):
    def apply(self, x):
        return tf.sin(x), lambda dy: self.factor * dy


def test_a_bound_method_is_pickled_with_its_instance():
    """Even if it was decorated after it was bound, so that the instance has the method without the gradient."""
    for method in (Scale(7.0).apply, cg.custom_gradient(Plain(7.0).apply)):
        assert gradient(pickle.loads(pickle.dumps(method))) == [7.0, 70.0]


def test_a_partial_in_a_functional_model(library):
    x = library.Input((2,))
    power = cg.recompute_grad(functools.partial(tf.pow, y=3.0))
    assert power.__name__ == "partial"
    np.testing.assert_allclose(library.Model(x, power(x))(X[None]), X[None] ** 3)


MAKE = {
    "straight_through": cg.straight_through,
    "surrogate": lambda f: cg.straight_through(f, "hard_tanh"),
    "grad_pass_through": cg.grad_pass_through,
    "recompute_grad": cg.recompute_grad,
    "custom_gradient": lambda f: cg.custom_gradient(lambda x: (f(x), lambda dy: 3.0 * dy)),
    "custom_vjp": lambda f: cg.custom_vjp(lambda x: (f(x), x), lambda x, dy: dy * x),
    "custom_jvp": lambda f: with_rule(lambda x: f(x), lambda p, t: (f(*p), 5.0 * t[0])),
    "override_gradients": lambda f: cg.override_gradients(f, {"Sign": lambda op, dy: 2.0 * dy}),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_function_that_no_module_has_is_pickled_by_value(name):
    """And copied as it is."""
    decorated = MAKE[name](tf.sign)
    assert copy.copy(decorated) is copy.deepcopy(decorated) is decorated
    assert gradient(cloudpickle.loads(cloudpickle.dumps(decorated))) == gradient(decorated)


def test_attributes_of_the_function_but_not_tensorflows_own_are_those_of_the_decorated_function():
    def f(x):
        return x

    f.author = "me"
    assert cg.recompute_grad(f).author == "me"
    assert [name for name in vars(cg.straight_through(tf.sign)) if name.startswith("_tf_")] == []


def test_a_function_that_no_module_has_cannot_be_pickled_by_name():
    shown = (
        "<function sign (straight_through), which has no name in its module: decorate a function at the top level, or"
    )
    with pytest.raises(pickle.PicklingError) as error:
        pickle.dumps(cg.straight_through(tf.sign))
    assert re.sub(" at 0x[0-9a-f]+", "", str(error.value)).startswith(f"Can't pickle {shown} use cloudpickle")


PROGRAM = """
import pathlib, sys, cloudpickle, tensorflow as tf, tf_cg_ops as cg

@cg.custom_gradient
def function(x):  # Its rule calls the function itself.
    return tf.sin(x), lambda dy: dy * (FACTOR + function(0.0 * x))

def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x).numpy().tolist()

FACTOR = 3.0
pathlib.Path(sys.argv[1]).write_bytes(cloudpickle.dumps(gradient))
"""


def test_a_function_of_a_program_runs_in_another_process(tmp_path):
    run_python(PROGRAM, tmp_path / "function", cwd=tmp_path)
    load = (
        "import sys, pickle; f = pickle.load(open(sys.argv[1], 'rb')); import tensorflow as tf; print(f(tf.ones([2])))"
    )
    assert run_python(load, tmp_path / "function", cwd=tmp_path).stdout.splitlines() == ["[3.0, 3.0]"]


def test_a_plan_of_the_users_own():
    """Only a function with `memory` has a plan of the library, so another one can have its own."""

    def function(x):
        return tf.sin(x)

    assert not hasattr(cg.recompute_grad(function), "plan")
    function.plan = "mine"
    decorated = cg.recompute_grad(function)
    assert decorated.plan == "mine"
    decorated.plan = "another"
    assert decorated.plan == "another"


def test_a_class_of_results_is_a_function():
    """Unlike the class of a layer, whose instance is the function."""

    class Pair(typing.NamedTuple):
        first: tf.Tensor
        second: tf.Tensor

    with tf.GradientTape() as tape:
        tape.watch(X)
        y = cg.recompute_grad(Pair)(X, second=X)
    assert isinstance(y, Pair)
    assert tape.gradient(y, X, output_gradients=Pair(DY, 2.0 * DY)).numpy().tolist() == [3.0, 30.0]
