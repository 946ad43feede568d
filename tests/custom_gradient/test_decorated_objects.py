"""Decorated functions as Python objects: attributes, arguments of functions, copies, pickles, and methods of classes."""

import abc
import collections
import copy
import functools
import inspect
import pickle
import re
import sys
import types

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import eager, traced, vjp
from ..support.processes import run_python
from ..support.tensors import pairs
from .test_modes import with_rule

X = tf.constant([1.0, 2.0])
DY = tf.constant([1.0, 10.0])


@cg.custom_gradient
def hundredfold(x):
    return tf.sin(x), lambda dy: 100.0 * dy


@cg.custom_gradient
def recursive(x):
    return tf.sin(x), lambda dy: dy * (2.0 + recursive(0.0 * x))


@cg.straight_through
def rounded(x):
    return tf.round(x)


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @cg.custom_gradient
    def apply(self, x):
        return tf.sin(x), lambda dy: self.factor * dy


class Plain(Scale):
    def apply(self, x):
        return tf.sin(x), lambda dy: self.factor * dy


def gradient(function, x=X):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x, output_gradients=DY).numpy().tolist()


def sine(x):
    return tf.sin(x)


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
    "a method": Scale(100.0).apply,
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
        call(tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy)), X)


@pytest.mark.parametrize("decorated", [hundredfold, rounded, Scale.apply], ids=["function", "ready_made", "method"])
def test_decorated_functions_are_copied_as_they_are_and_pickled_by_name(decorated):
    assert copy.copy(decorated) is copy.deepcopy([decorated])[0] is decorated
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(decorated, protocol)) is decorated


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
    "custom_jvp": lambda f: with_rule(lambda x: f(x), lambda p, t: (None, 5.0 * t[0])),
    "override_gradients": lambda f: cg.override_gradients(f, {"Sign": lambda op, dy: 2.0 * dy}),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_function_that_no_module_has_is_pickled_by_value(name):
    """And copied as it is."""
    decorated = MAKE[name](tf.sign)
    assert copy.copy(decorated) is copy.deepcopy(decorated) is decorated
    assert gradient(cloudpickle.loads(cloudpickle.dumps(decorated))) == gradient(decorated)


def test_attributes_are_those_of_the_function_but_not_tensorflows_own():
    """Only a function with `memory` has a plan of the library, so another one can have its own."""
    names = ("author", "plan", "_run", "api", "options", "method")

    def function(x):
        return tf.sin(x), lambda dy: 3.0 * dy

    vars(function).update(dict.fromkeys(names, "mine"))
    decorated = cg.custom_gradient(function)
    assert [getattr(decorated, name) for name in names] == ["mine"] * len(names)
    assert gradient(decorated) == [3.0, 30.0]
    assert not hasattr(cg.recompute_grad(sine), "plan")
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
    found = re.sub(" at 0x[0-9a-f]+", "", str(error.value))
    assert found.startswith(f"Can't pickle <function {shown}>: ")
    assert module in found.removeprefix(f"Can't pickle <function {shown}>: ")  # The rest differs between Pythons.


def test_functions_of_a_program_run_in_another_process(tmp_path):
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)  # As if this was a program, which others cannot import.
    try:
        functions = [recursive, *(MAKE[name](tf.sin) for name in ("custom_vjp", "custom_jvp")), Scale(6.0).apply]
        (tmp_path / "functions").write_bytes(cloudpickle.dumps((gradient, functions)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    load = "import sys, pickle; f, g = pickle.load(open(sys.argv[1], 'rb')); print([f(each) for each in g])"
    lines = run_python(load, tmp_path / "functions", cwd=tmp_path).stdout.splitlines()
    assert lines == [str([[2.0, 20.0], [1.0, 20.0], [5.0, 50.0], [6.0, 60.0]])]


SIGNATURES = {
    cg.custom_vjp: "forward backward nondiff_argnames? materialize_grads? saved_orders?",
    cg.recompute_grad: "f? keep? memory?",
    cg.embed_gradient: "fx gx x axis? fx_gx_manually_stopped? name?",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda f: f.__name__)
def test_the_signature_that_tools_show_has_the_parameters_and_no_more(function):
    parameters = inspect.signature(function).parameters.items()
    assert " ".join(name + "?" * (p.default is not p.empty) for name, p in parameters) == SIGNATURES[function]


def test_a_class_of_results_is_a_function():
    """Unlike the class of a layer, whose instance is the function."""
    Pair = collections.namedtuple("Pair", ["first", "second"])
    y, dx = vjp(lambda: cg.recompute_grad(Pair)(X, second=X), X, Pair(DY, 2.0 * DY))
    assert isinstance(y, Pair)
    assert dx.numpy().tolist() == [3.0, 30.0]


# Methods, with this decorator and others: however they are called, `self` and `cls` need no gradient


def logged(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def ruled(self, x):
    return x, lambda dy: self.factor * dy


def tripled(x):
    return x, lambda dy: 3.0 * dy


class Base:
    factor = 3.0

    def __init__(self):
        self.attribute = self.scaled
        self.branches = {"b": [functools.partial(self.scaled)]}

    scaled = __call__ = cg.custom_gradient(ruled)
    vjp = cg.custom_vjp(
        lambda self, x, k=None: (x, None),
        lambda residuals, dy, needed: [3.0 * dy, None] if needed == (True, False) else None,
    )
    tangent = cg.custom_jvp(lambda self, x: tf.identity(x))
    tangent.defjvp(lambda self, primals, tangents: (None, self.factor * tangents[0]))
    of_class = classmethod(cg.custom_gradient(ruled))
    static = staticmethod(cg.custom_gradient(tripled))
    above_classmethod = cg.custom_gradient(classmethod(ruled))
    above_staticmethod = cg.custom_gradient(staticmethod(tripled))
    with_k = cg.custom_gradient(lambda self, x, k: (x, lambda dy: (self.factor * dy, None)))
    partial = functools.partialmethod(with_k, k=2)
    bound_before = cg.custom_gradient(functools.partial(lambda factor, x: (x, lambda dy: factor * dy), 3.0))
    outer_recomputes = cg.recompute_grad(logged(cg.custom_gradient(ruled)))
    outer_tangent = cg.custom_jvp(logged(cg.recompute_grad(lambda self, x: tf.sin(x))))
    outer_tangent.defjvp(lambda self, primals, tangents: (None, self.factor * tangents[0]))


class Derived(Base):
    def scaled(self, x):
        return super().scaled(x)


class Parameters(dict):
    """A dict whose items are Tensors that TensorFlow finds."""

    scaled = cg.custom_gradient(lambda self, x: (x * self["k"], lambda dy: 3.0 * dy))


def copied():
    original = Base()
    original.factor = 2.0
    copied = copy.deepcopy(original)
    copied.factor = 3.0
    return copied


BASE = Base()
WITH_SELF = cg.custom_gradient(lambda self, x: (x, lambda dy: (None, 3.0 * dy)))
CALLS = {
    "bound": BASE.scaled,
    "through_the_class": lambda x: Base.scaled(BASE, x),
    "super": Derived().scaled,
    "vjp": lambda x: BASE.vjp(x, 2.0),
    "jvp": BASE.tangent,
    "jvp_through_the_class": lambda x: Base.tangent(BASE, x),
    "classmethod": Base.of_class,
    "staticmethod": Base.static,
    "partialmethod": BASE.partial,
    "callable": BASE,
    "method_type": types.MethodType(cg.custom_gradient(ruled), BASE),  # So does the classmethod of Python 3.13.
    "method_type_of_a_method": types.MethodType(Base.scaled, BASE),
    "an_entry_for_self": lambda x: WITH_SELF(BASE, x),
    "attribute_of_the_class": Base.bound_before,
    # Since Python 3.14, a partial in a class is a method.
    **({} if sys.version_info >= (3, 14) else {"partial_in_the_class": BASE.bound_before}),
    "a_dict": lambda x: Parameters(k=tf.constant(2.0)).scaled(x),
    "deepcopy_attribute": copied().attribute,
    "deepcopy_partial": copied().branches["b"][0],
    "wraps_recompute": BASE.outer_recomputes,
    "wraps_tangent": BASE.outer_tangent,
    "above_classmethod": Base.above_classmethod,
    "above_staticmethod": Base.above_staticmethod,
    "partial_as_backward": cg.custom_vjp(lambda x: (x, x), functools.partial(lambda scale, _, dy: scale * dy, 3.0)),
}


# Python 3.13 warns for every partial there that later versions will bind it.
@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor:FutureWarning")
@pytest.mark.core
@pytest.mark.parametrize(("call", "run"), pairs(CALLS, [eager, traced]))
def test_the_rule_and_the_instance_are_right_and_self_needs_no_gradient(call, run):
    _, (dx,) = run(CALLS[call], [X], DY)
    np.testing.assert_array_equal(dx, 3 * DY)


class WithWeight:
    def __init__(self):
        self.weight, self.factor = tf.Variable(X), 3.0

    @property
    @cg.custom_gradient
    def value(self):
        return self.weight * 2.0, lambda dy, variables: (None, [self.factor * dy])

    cached = functools.cached_property(value.fget)


@pytest.mark.parametrize("name", ["value", "cached"])
def test_properties(name):
    owner = WithWeight()
    np.testing.assert_array_equal(vjp(lambda: getattr(owner, name), owner.weight, DY)[1], 3 * DY)


def test_bound_methods_are_equal_and_hash_like_methods_of_python():
    assert {BASE.scaled: 1}[BASE.scaled] == 1
    assert Base.of_class == Base.of_class
    for other in (Base().scaled, BASE.tangent, Base.scaled, "scaled"):
        assert BASE.scaled != other
    assert isinstance(BASE.tangent, types.MethodType)


def test_abstract_methods_stay_abstract_in_both_orders():
    above, under = cg.custom_gradient(abc.abstractmethod(logged(ruled))), abc.abstractmethod(cg.custom_gradient(ruled))
    abstract = abc.ABCMeta("Abstract", (), {"above": above, "under": under})
    assert abstract.__abstractmethods__ == {"above", "under"}
