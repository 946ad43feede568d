"""Decorated functions behave as functions: copies of bound methods, attributes, abstract methods, other decorators."""

import abc
import copy
import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import eager, jit, traced
from ..support.tensors import pairs

X, DY = np.array([1.0, 2.0]), np.array([1.0, 10.0])
MODES = {"eager": eager, "traced": traced, "jit": jit}


def logged(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


class Block:
    def __init__(self, factor):
        self.factor = factor
        self.attribute = self.ruled
        self.branches = {"a": self.recomputed, "b": [functools.partial(self.ruled)]}

    @cg.custom_gradient
    def ruled(self, x):
        return self.factor * x, lambda dy: self.factor * dy

    @cg.recompute_grad
    def recomputed(self, x):
        return self.factor * x

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


CALLS = {
    "deepcopy_attribute": copied().attribute,
    "deepcopy_dict": copied().branches["a"],
    "deepcopy_partial": copied().branches["b"][0],
    "wraps_recompute": Block(3.0).outer_recomputes,
    "wraps_tangent": Block(3.0).outer_tangent,
    "above_classmethod": Block.above_classmethod,
    "above_staticmethod": Block.above_staticmethod,
    "attributes": with_attributes(),
}


@pytest.mark.parametrize(("call", "mode"), pairs(CALLS, MODES))
def test_the_rule_and_the_instance_are_the_right_ones(call, mode):
    _, (dx,) = MODES[mode](CALLS[call], [X], DY)
    np.testing.assert_array_equal(dx, 3 * DY)


def test_abstract_methods_stay_abstract_in_both_orders():
    class Abstract(abc.ABC):
        @cg.custom_gradient
        @abc.abstractmethod
        def above(self, x): ...

        @abc.abstractmethod
        @cg.custom_gradient
        def under(self, x): ...

    assert Abstract.__abstractmethods__ == {"above", "under"}


def test_the_original_function_and_the_name_are_there():
    def f(x):
        return x, lambda dy: dy

    decorated = cg.custom_gradient(f)
    assert decorated.__original_wrapped__ is f
    assert repr(decorated).startswith(f"<custom_gradient of {f.__qualname__} at 0x")
