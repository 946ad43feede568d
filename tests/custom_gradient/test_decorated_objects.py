"""Decorated functions as Python objects: their attributes, as arguments of others, copied and pickled."""

import functools
import inspect
import pickle

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

pytestmark = pytest.mark.core

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


FACTORIES = {
    "custom_gradient": lambda f: cg.custom_gradient(f),
    "custom_vjp": lambda f: cg.custom_vjp(f, lambda residuals, dy: dy),
    "custom_jvp": lambda f: cg.custom_jvp(f),
    "recompute_grad": cg.recompute_grad,
    "grad_pass_through": cg.grad_pass_through,
    "straight_through": cg.straight_through,
    "implicit_root": lambda f: cg.implicit_root(lambda y, x: y - x, f),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_every_decorator_tells_the_function_that_it_wraps(name):
    decorated = FACTORIES[name](sine)
    assert decorated.__wrapped__ is sine
    assert inspect.unwrap(decorated) is sine
    assert inspect.signature(decorated) == inspect.signature(sine)
    assert decorated.__name__ == "sine"


def through_a_condition(x):
    if tf.reduce_sum(x) > 0:  # AutoGraph translates this function.
        return hundredfold(x)
    return x


MODULE = Module()
USES = {
    "itself": tf.function(hundredfold),
    "in a function": tf.function(lambda x: hundredfold(x)),
    "in a translated condition": tf.function(through_a_condition),
    "a method": tf.function(MODULE.scaled),
    "a partial": tf.function(functools.partial(hundredfold)),
    "wrapped again": tf.function(functools.wraps(hundredfold)(lambda *args: hundredfold(*args))),
    "mapped": tf.function(lambda x: tf.map_fn(hundredfold, x)),
}


@pytest.mark.parametrize("name", USES)
def test_autograph_does_not_look_through_the_decorator(name):
    assert gradient(USES[name]) == [100.0, 1000.0]


def test_wrappers_of_a_decorated_function_are_translated():
    @functools.wraps(hundredfold)
    def only_positive(x):
        if tf.reduce_sum(x) > 0:
            return hundredfold(x)
        return x

    assert gradient(tf.function(only_positive)) == [100.0, 1000.0]
    assert gradient(tf.function(only_positive), -X) == [1.0, 10.0]


def test_arguments_of_a_function_keep_their_gradients():
    """TensorFlow looks for the value in __wrapped__, and its own decorated functions lose their gradients there."""
    call = tf.function(lambda function, x: function(x))
    assert gradient(functools.partial(call, hundredfold)) == [100.0, 1000.0]
    assert gradient(functools.partial(call, rounded)) == [1.0, 10.0]
    number_of_traces = call.experimental_get_tracing_count()
    call(hundredfold, X)
    assert call.experimental_get_tracing_count() == number_of_traces
    with pytest.raises(TypeError):
        tf.function(lambda function, x: tf.sin(function(x)))(
            tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy)), X
        )


@pytest.mark.parametrize("decorated", [hundredfold, rounded, Module.scaled], ids=["function", "ready_made", "method"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_decorated_functions_are_pickled_by_name(decorated, protocol):
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


def test_a_method_that_was_decorated_after_it_was_bound_is_pickled_with_its_gradient():
    """The instance has a method of that name, without the gradient."""
    decorated = cg.custom_gradient(Plain(7.0).apply)
    assert gradient(pickle.loads(pickle.dumps(decorated))) == [7.0, 70.0]


def test_a_function_without_a_name_is_pickled_where_its_function_can_be():
    local = cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: 3.0 * dy))
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(local)
    assert gradient(cloudpickle.loads(cloudpickle.dumps(local))) == [3.0, 30.0]


def test_a_partial_and_a_model_in_a_functional_model(library):
    x = library.Input((2,))
    model = library.Model(x, cg.recompute_grad(functools.partial(tf.pow, y=3.0))(x))
    np.testing.assert_allclose(model(X[None]), X[None] ** 3)
    layer = library.layers.Dense(2)
    inner = library.Sequential([layer])
    inner.build((None, 2))
    with pytest.raises(ValueError, match="recompute_grad: 'Sequential' reads trainable variables"):
        cg.recompute_grad(inner)(x)
