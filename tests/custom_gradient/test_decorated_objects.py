"""Decorated functions as Python objects: attributes, passing them as arguments, copies, pickles, other processes."""

import copy
import functools
import inspect
import pathlib
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


def test_a_partial_and_a_model_in_a_functional_model(library):
    x = library.Input((2,))
    power = cg.recompute_grad(functools.partial(tf.pow, y=3.0))
    assert power.__name__ == "partial"
    model = library.Model(x, power(x))
    np.testing.assert_allclose(model(X[None]), X[None] ** 3)
    layer = library.layers.Dense(2)
    inner = library.Sequential([layer])
    inner.build((None, 2))
    with pytest.raises(ValueError, match="recompute_grad: 'Sequential' must not read trainable variables"):
        cg.recompute_grad(inner)(x)


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


@pytest.mark.parametrize(
    ("decorated", "name", "module"),
    [
        (cg.straight_through(tf.sign), "sign (straight_through)", "tensorflow.python.ops.math_ops"),
        (cg.custom_gradient(lambda x: (x, lambda dy: dy)), "<lambda> (custom_gradient)", __name__),
        (cg.recompute_grad(cg.custom_gradient(sine)), "sine (recompute_grad)", __name__),
    ],
)
def test_a_function_that_no_module_has_cannot_be_pickled_by_name(decorated, name, module):
    shown = f"{name}, which has no name in its module: decorate a function at the top level, or use cloudpickle,"
    with pytest.raises(pickle.PicklingError) as error:
        pickle.dumps(decorated)
    assert re.sub(" at 0x[0-9a-f]+", "", str(error.value)) == (
        f"Can't pickle <function {shown}>: attribute lookup {shown} on {module} failed"
    )


def test_functions_of_a_program_run_in_another_process(tmp_path):
    program = pathlib.Path(__file__).with_name("pickled_program.py").read_text()
    run_python(program, tmp_path / "functions", cwd=tmp_path)
    load = "import sys, pickle; f, g = pickle.load(open(sys.argv[1], 'rb')); print([f(each) for each in g])"
    lines = run_python(load, tmp_path / "functions", cwd=tmp_path).stdout.splitlines()
    assert lines == [str([[factor, 10.0 * factor] for factor in (2.0, 3.0, 5.0, 6.0)])]


def test_a_partial_is_a_backward():
    def scaled(scale, residuals, dy):
        return scale * dy

    tripled = cg.custom_vjp(lambda x: (x, x), functools.partial(scaled, 3.0))
    assert gradient(tripled) == [3.0, 30.0]


@pytest.mark.parametrize("function", [cg.custom_vjp, cg.recompute_grad, cg.embed_gradient], ids=lambda f: f.__name__)
def test_the_signature_that_tools_show_has_the_parameters_and_no_more(function):
    parameters = {
        cg.custom_vjp: "forward backward | nondiff_argnames materialize_grads saved_orders",
        cg.recompute_grad: "| f keep memory",
        cg.embed_gradient: "fx gx x | axis fx_gx_manually_stopped name",
    }[function]
    required, others = (part.split() for part in parameters.split("|"))
    signature = inspect.signature(function).parameters
    assert list(signature) == required + others
    assert [name for name, p in signature.items() if p.default is p.empty] == required


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
