"""Decorated methods, copies of these and other decorators: however they are called, `self` and `cls` need no gradient."""

import abc
import copy
import functools
import types

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import VJP_MODES
from ..support.tensors import pairs

pytestmark = pytest.mark.core

X, DY = np.array([1.0, 2.0]), np.array([1.0, 10.0])
MODES = {name: VJP_MODES[name] for name in ("eager", "traced", "jit")}


class LaterClassMethod:
    """The classmethod of Python 3.13, which no longer binds what it decorates."""

    def __init__(self, function):
        self.__func__ = function

    def __get__(self, instance, owner=None):
        return types.MethodType(self.__func__, type(instance) if owner is None else owner)


@cg.custom_gradient
def patched(self, x):
    return x, lambda dy: self.factor * dy


class Base:
    factor = 3.0

    @cg.custom_gradient
    def scaled(self, x):
        return x, lambda dy: self.factor * dy

    def forward(self, x, k=None):
        return x, None

    vjp = cg.custom_vjp(forward, lambda residuals, dy, needed: [3.0 * dy, None] if needed == (True, False) else None)

    @cg.custom_jvp
    def tangent(self, x):
        return tf.identity(x)

    @tangent.defjvp
    def tangent_rule(self, primals, tangents):
        return primals[0], self.factor * tangents[0]

    @classmethod
    @cg.custom_gradient
    def of_class(cls, x):
        return x, lambda dy: cls.factor * dy

    @LaterClassMethod
    @cg.custom_gradient
    def of_class_later(cls, x):  # noqa: N805
        return x, lambda dy: cls.factor * dy

    @staticmethod
    @cg.custom_gradient
    def static(x):
        return x, lambda dy: 3.0 * dy

    with_k = cg.custom_gradient(lambda self, x, k: (x, lambda dy: (self.factor * dy, None)))
    partial = functools.partialmethod(with_k, k=2)
    activation = cg.custom_gradient(lambda x: (x, lambda dy: 3.0 * dy))
    bound_before = cg.custom_gradient(functools.partial(lambda factor, x: (x, lambda dy: factor * dy), 3.0))

    @cg.custom_gradient
    def __call__(self, x):
        return x, lambda dy: self.factor * dy


class Derived(Base):
    def scaled(self, x):
        return super().scaled(x)


class Parameters(dict):
    """A dict whose items are Tensors that TensorFlow finds."""

    @cg.custom_gradient
    def scaled(self, x):
        return x * self["k"], lambda dy: 3.0 * dy


def logged(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


class Block:
    def __init__(self, factor):
        self.factor = factor
        self.attribute = self.ruled
        self.branches = {"b": [functools.partial(self.ruled)]}

    @cg.custom_gradient
    def ruled(self, x):
        return self.factor * x, lambda dy: self.factor * dy

    @cg.recompute_grad
    @logged
    @cg.custom_gradient
    def outer_recomputes(self, x):
        return tf.sin(x), lambda dy: self.factor * dy

    @cg.custom_jvp
    @logged
    @cg.recompute_grad
    def outer_tangent(self, x):
        return tf.sin(x)

    outer_tangent.defjvp(lambda self, primals, tangents: (tf.sin(primals[0]), self.factor * tangents[0]))

    @cg.custom_gradient
    @classmethod
    def above_classmethod(cls, x):
        return x, lambda dy: 3.0 * dy

    @cg.custom_gradient
    @staticmethod
    def above_staticmethod(x):
        return x, lambda dy: 3.0 * dy


def copied():
    block = Block(2.0)
    block = copy.deepcopy(block)
    block.factor = 3.0
    return block


def with_attributes():
    def f(x):
        return x, lambda dy: 3.0 * dy

    f._run = f.api = f.options = f.method = "mine"
    decorated = cg.custom_gradient(f)
    assert (decorated._run, decorated.api, decorated.options, decorated.method) == ("mine",) * 4
    return decorated


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
    "classmethod_of_python_3_13": Base.of_class_later,
    "staticmethod": Base.static,
    "partialmethod": BASE.partial,
    "callable": BASE,
    "method_type": types.MethodType(patched, BASE),
    "method_type_of_a_method": types.MethodType(Base.scaled, BASE),
    "an_entry_for_self": lambda x: WITH_SELF(BASE, x),
    "attribute_of_the_class": Base.activation,
    "partial_in_the_class": BASE.bound_before,
    "a_dict": lambda x: Parameters(k=tf.constant(2.0, tf.float64)).scaled(x),
    "deepcopy_attribute": copied().attribute,
    "deepcopy_partial": copied().branches["b"][0],
    "wraps_recompute": Block(3.0).outer_recomputes,
    "wraps_tangent": Block(3.0).outer_tangent,
    "above_classmethod": Block.above_classmethod,
    "above_staticmethod": Block.above_staticmethod,
    "attributes": with_attributes(),
}


# Python 3.13 warns for every partial there that later versions will bind it.
@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor:FutureWarning")
@pytest.mark.parametrize(("call", "mode"), pairs(CALLS, MODES))
def test_the_rule_and_the_instance_are_right_and_self_needs_no_gradient(call, mode):
    _, (dx,) = MODES[mode](CALLS[call], [X], DY)
    np.testing.assert_array_equal(dx, 3 * DY)


class WithWeight:
    def __init__(self):
        self.weight = tf.Variable(X)
        self.factor = 3.0

    @property
    @cg.custom_gradient
    def value(self):
        return self.weight * 2.0, lambda dy, variables: (None, [self.factor * dy for _ in variables])

    @functools.cached_property
    @cg.custom_gradient
    def cached(self):
        return self.weight * 2.0, lambda dy, variables: ([], [self.factor * dy for _ in variables])


@pytest.mark.parametrize("name", ["value", "cached"])
def test_properties(name):
    owner = WithWeight()

    with tf.GradientTape() as tape:
        y = getattr(owner, name)
    np.testing.assert_array_equal(tape.gradient(y, owner.weight, output_gradients=tf.constant(DY)), 3 * DY)


def test_bound_methods_are_equal_and_hash_like_methods_of_python():
    assert {BASE.scaled: 1}[BASE.scaled] == 1
    assert Base.of_class == Base.of_class
    for other in (Base().scaled, BASE.tangent, Base.scaled, "scaled"):
        assert BASE.scaled != other
    assert isinstance(BASE.tangent, types.MethodType)


def test_abstract_methods_stay_abstract_in_both_orders():
    class Abstract(abc.ABC):
        @cg.custom_gradient
        @abc.abstractmethod
        def above(self, x): ...

        @abc.abstractmethod
        @cg.custom_gradient
        def under(self, x): ...

    assert Abstract.__abstractmethods__ == {"above", "under"}
