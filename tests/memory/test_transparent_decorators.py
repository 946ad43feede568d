"""recompute_grad, and override_gradients with a rule that changes nothing, against the plain function.

For random arguments, values and gradients agree. In eager mode each call traces, and keeps no argument alive. `TF_CG_OPS_PROGRAMS=1000` tries more arguments, and reduces those that fail.
"""

import collections
import dataclasses
import gc
import os
import weakref

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

import tf_cg_ops as cg

from ..support.modes import assert_all_close

X, DY = tf.constant([0.5, -1.0, 2.0], tf.float64), tf.constant([1.0, 10.0, -3.0], tf.float64)
Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Plain:
    """Equal for the same numbers, and without a hash."""

    size: int
    w: tf.Variable = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Equal for the same numbers, and with a hash."""

    size: int
    w: tf.Variable = dataclasses.field(compare=False)


@dataclasses.dataclass(eq=False)
class ByIdentity:
    size: int
    w: tf.Variable


class AlwaysEqual:
    def __init__(self, size, w):
        self.size, self.w = size, w

    def __eq__(self, other):
        return isinstance(other, AlwaysEqual)

    def __hash__(self):
        return 1


class Module(tf.Module):
    def __init__(self, size, w):
        super().__init__()
        self.size, self.inner = size, tf.Module()
        self.inner.w = w

    @property
    def w(self):
        return self.inner.w


class Layer(keras.layers.Layer):
    def __init__(self, size, w):
        super().__init__(dtype="float64")
        self.size, self.w = size, w

    def call(self, x):
        return x * self.w


OBJECTS = {kind.__name__: kind for kind in (Plain, Frozen, ByIdentity, AlwaysEqual, Module, Layer)}
CONSTANTS = [2, 3, 2.5, -0.0, 0.0, 1.0, 1, True, False, 0, "two", b"two", None]


class Pool:
    """Makes the arguments of a plan: new Tensors and arrays each time, but the same variables and objects."""

    def __init__(self, closed_over):
        self.closed_over = closed_over
        self.variables = [tf.Variable(value, dtype=tf.float64) for value in (0.7, -1.3, 0.4)]
        self.objects = {}
        self.renew(0)

    def renew(self, seed):
        """Other Tensors and arrays of the same shapes."""
        rng = np.random.default_rng(seed)
        self.tensors = [tf.constant(rng.normal(), tf.float64), tf.constant(rng.normal(size=[2]), tf.float64)]
        self.arrays = [rng.normal(size=[2]), rng.normal(size=[2, 1]).astype(np.float32), rng.integers(5, size=[3])]

    def make(self, plan):
        kind, what = plan
        if kind == "list":
            return [self.make(one) for one in what]
        if kind == "tuple":
            return tuple(self.make(one) for one in what)
        if kind == "pair":
            return Pair(*map(self.make, what))
        if kind == "dict":
            return {name: self.make(one) for name, one in what.items()}
        if kind in ("variable", "tensor", "array"):
            return getattr(self, f"{kind}s")[what]
        if kind == "constant":
            return CONSTANTS[what]
        if plan not in self.objects:
            self.objects[plan] = OBJECTS[kind](3, self.variables[what])
        return self.objects[plan]

    def sources(self):
        """Everything that can have a gradient."""
        return [*self.tensors, *self.variables, *self.closed_over]

    def references(self):
        """Weak references to what must not be kept alive."""
        return [*map(weakref.ref, [*self.tensors, *self.arrays, *self.objects.values()])]


def kinds(name, number):
    return strategies.tuples(strategies.just(name), strategies.integers(0, number - 1))


LEAVES = strategies.one_of(
    kinds("variable", 3),
    kinds("tensor", 2),
    kinds("array", 3),
    kinds("constant", len(CONSTANTS)),
    *(kinds(name, 2) for name in OBJECTS),
)
PLANS = strategies.recursive(
    LEAVES,
    lambda plans: strategies.one_of(
        strategies.tuples(strategies.sampled_from(["list", "tuple"]), strategies.lists(plans, max_size=3)),
        strategies.tuples(strategies.just("pair"), strategies.tuples(plans, plans)),
        strategies.tuples(
            strategies.just("dict"), strategies.dictionaries(strategies.sampled_from("abc"), plans, max_size=2)
        ),
    ),
    max_leaves=4,
)
ARGUMENTS = strategies.lists(PLANS, min_size=1, max_size=3)


# The same leaf twice, and equal objects.
ALWAYS = [
    [("variable", 0), ("list", [("variable", 0)])],
    [("tensor", 1), ("dict", {"a": ("tensor", 1)})],
    [("variable", 0), ("Frozen", 0)],
    [("list", [("AlwaysEqual", 0), ("AlwaysEqual", 1), ("AlwaysEqual", 0)])],
]


def leaves_of(argument):
    if isinstance(argument, dict):
        argument = [argument[name] for name in sorted(argument)]
    if isinstance(argument, (list, tuple)):
        return [leaf for one in argument for leaf in leaves_of(one)]
    return [argument]


def number_of(leaf):
    """A number that tells leaves apart."""
    if isinstance(leaf, Layer):
        return tf.reduce_sum(leaf(tf.constant([2.0], tf.float64)))
    if isinstance(leaf, tuple(OBJECTS.values())):
        return tf.sin(leaf.w) * leaf.size
    if tf.is_tensor(leaf) or isinstance(leaf, (np.ndarray, tf.Variable)):
        return tf.reduce_sum(tf.cos(tf.cast(tf.convert_to_tensor(leaf), tf.float64)))
    if isinstance(leaf, (bool, type(None))):
        return {True: 17.0, False: 19.0, None: 23.0}[leaf]
    if isinstance(leaf, int):
        return 29.0 + leaf
    return np.copysign(leaf + 31.0, leaf) if isinstance(leaf, float) else 37.0 + len(leaf) + isinstance(leaf, bytes)


def make_function(closed_over):
    """A function of any arguments, and a list with an entry for each of its traces."""
    traces = []

    def function(x, *args, last=None):
        if not tf.executing_eagerly():
            traces.append(None)
        total = tf.reduce_sum(closed_over[0]) * closed_over[1]
        for i, leaf in enumerate(leaves_of([args, last])):
            total += (i + 1.0) * number_of(leaf)
        return tf.sin(x) * total

    return function, traces


def overridden(function):
    return cg.override_gradients(function, {"Sin": cg.rules.built_in})


def value_and_gradients(function, args, kwargs, sources):
    with tf.GradientTape() as tape:
        tape.watch([X, *(source for source in sources if not isinstance(source, tf.Variable))])
        y = function(X, *args, **kwargs)
    gradients = tape.gradient(y, [X, *sources], output_gradients=DY, unconnected_gradients="zero")
    return [y, *map(tf.convert_to_tensor, gradients)]


def run(function, args, kwargs, sources, traced):
    if not traced:
        return value_and_gradients(function, args, kwargs, sources)
    step = tf.function(lambda: value_and_gradients(function, args, kwargs, sources), autograph=False)
    return step.get_concrete_function()()


def assert_agreement(wrapped, function, traces, pool, plans, as_keyword, traced):
    """Checks one call; returns how often it traced."""
    args = [pool.make(plan) for plan in plans]
    kwargs = {"last": args.pop()} if as_keyword else {}
    expected = run(function, args, kwargs, pool.sources(), traced)
    before = len(traces)
    found = run(wrapped, args, kwargs, pool.sources(), traced)
    assert_all_close(found, expected, rtol=1e-9, atol=1e-12)
    return len(traces) - before


WRAPPERS = {"recompute_grad": cg.recompute_grad, "override_gradients": overridden}


@pytest.fixture(scope="module", autouse=True)
def quick_garbage_collection():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def random_arguments(number):
    """Runs a test for this many plans of arguments, or as many as the environment says."""
    settings = hypothesis.settings(
        max_examples=int(os.environ.get("TF_CG_OPS_PROGRAMS", number)),
        phases=[
            hypothesis.Phase.explicit,
            hypothesis.Phase.generate,
            *([hypothesis.Phase.shrink] if "TF_CG_OPS_PROGRAMS" in os.environ else []),
        ],
        deadline=None,
        database=None,
        derandomize="TF_CG_OPS_PROGRAMS" not in os.environ,
    )
    given = hypothesis.given(plans=ARGUMENTS, as_keyword=strategies.booleans())

    def decorate(test):
        for plans in ALWAYS:
            test = hypothesis.example(plans=plans, as_keyword=False)(test)
        return settings(given(test))

    return decorate


def traces_of_calls(name, traced, plans, as_keyword, seeds, new_seed):
    """How often each call traced; first for each of the seeds, then with other objects that are equal."""
    closed_over = [tf.constant([0.3, 0.9], tf.float64), tf.Variable(1.1, dtype=tf.float64)]
    function, traces = make_function(closed_over)
    wrapped, references, numbers = WRAPPERS[name](function), [], []
    pool, others = Pool(closed_over), Pool(closed_over)
    for each, seed in [*((pool, seed) for seed in seeds), (others, new_seed)]:
        each.renew(seed)
        numbers.append(assert_agreement(wrapped, function, traces, each, plans, as_keyword, traced))
        references += each.references()
    del pool, others, each
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
    return numbers


@pytest.mark.parametrize("name", WRAPPERS)
@random_arguments(10)
def test_eager_calls_agree_with_the_plain_function_and_leave_nothing_behind(name, plans, as_keyword):
    assert traces_of_calls(name, False, plans, as_keyword, seeds=[0, 0, 1], new_seed=2) == [1, 1, 1, 1]


@pytest.mark.parametrize("name", WRAPPERS)
@random_arguments(2)
def test_traced_calls_agree_with_the_plain_function_and_leave_nothing_behind(name, plans, as_keyword):
    assert traces_of_calls(name, True, plans, as_keyword, seeds=[0], new_seed=1) == [1, 1]
