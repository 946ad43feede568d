"""Every public decorator against the plain function, while Python state changes between any two statements.

A program calls a function twice in eager mode, and computes the gradient of each call. Values and gradients must equal
the ones that the plain function has in the same program. `TF_CG_OPS_PROGRAMS=1000` tries more programs, and reduces those that fail.
"""

import os
import types

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

import tf_cg_ops as cg

from ..support.modes import assert_all_close

X = tf.constant([0.5, -1.0, 2.0], tf.float64)
UPSTREAM = [tf.constant([1.0, 10.0, -3.0], tf.float64), tf.constant([-2.0, 0.5, 7.0], tf.float64)]


def tensor_of(*numbers):
    return tf.constant(numbers, tf.float64)


def variable_of(number):
    return tf.Variable(number, dtype=tf.float64)


class State:
    """What a program reads: some of it as arguments, the rest from outside."""

    def __init__(self):
        self.count = 0
        self.number, self.tensor, self.variable, self.other = 0.3, tensor_of(0.2, 0.9), variable_of(0.7), variable_of(2)
        self.items, self.table = [tensor_of(0.1), 0.6], {"b": tensor_of(1.1, 0.4)}
        self.buffer = np.array([0.8, 0.5, 0.1])
        # What it reads from outside.
        self.captured, self.inner, self.steps = tensor_of(1.4), types.SimpleNamespace(tau=1.5), [1.0]
        self.outer_table, self.outer_buffer = {"a": {"b": tensor_of(0.2)}}, np.array([0.3])
        self.weight, self.outer_weight = variable_of(0.4), variable_of(0.9)
        self.layer = keras.layers.Dense(1, "tanh", dtype="float64", kernel_initializer="ones")
        self.layer.build([None, 1])

    def next_number(self):
        self.count += 1
        return 0.1 + 0.37 * self.count

    def function(self, x, *args):
        outside = number_of([self.captured, self.outer_table, self.outer_buffer, self.weight, self.outer_weight])
        outside = outside * self.inner.tau + tf.reduce_sum(self.layer(tensor_of(0.6)[None])) + 0.1 * sum(self.steps)
        return tf.sin(x) * (number_of(args) + outside)

    def sources(self):
        """What can have a gradient, by kind."""
        arguments = [tensor for tensor in (self.tensor, *self.items, *self.table.values()) if tf.is_tensor(tensor)]
        variables = [self.variable, self.other, self.weight, self.outer_weight, self.layer.kernel.value]
        return {"arguments": arguments, "variables": variables, "captures": [self.captured, self.outer_table["a"]["b"]]}


# What happens between two statements.
CHANGES = {
    "a number": lambda s: setattr(s, "number", s.next_number()),
    "a Tensor": lambda s: setattr(s, "tensor", tensor_of(s.next_number(), 0.2)),
    "an entry of a list": lambda s: s.items.__setitem__(0, tensor_of(s.next_number())),
    "a list grows": lambda s: s.items.append(tensor_of(s.next_number(), 3.0)),
    "a dict grows": lambda s: s.table.update({f"a{s.count}": tensor_of(s.next_number())}),
    "a dict loses its entries": lambda s: s.table.clear(),
    "a buffer is filled": lambda s: s.buffer.fill(s.next_number()),
    "a variable is assigned": lambda s: s.variable.assign(s.next_number()),
    "a variable is replaced": lambda s: setattr(s, "other", variable_of(s.next_number())),
    "an attribute outside": lambda s: setattr(s.inner, "tau", s.next_number()),
    "a Tensor outside": lambda s: setattr(s, "captured", tensor_of(s.next_number())),
    "a list outside": lambda s: s.steps.append(s.next_number()),
    "an entry of a dict outside": lambda s: s.outer_table["a"].update(b=tensor_of(s.next_number())),
    "a buffer outside": lambda s: s.outer_buffer.fill(s.next_number()),
    "a variable outside is assigned": lambda s: s.weight.assign(s.next_number()),
    "a variable outside is replaced": lambda s: setattr(s, "outer_weight", variable_of(s.next_number())),
    "the weight of a layer": lambda s: s.layer.kernel.assign([[s.next_number()]]),
}


def number_of(leaves):
    return sum(
        (i + 1.0) * tf.reduce_sum(tf.cos(tf.cast(leaf, tf.float64))) for i, leaf in enumerate(tf.nest.flatten(leaves))
    )


def twice(f):
    return lambda x, *args: f(f(x, *args), *args)


def of_arguments_alone(f):
    return lambda x, *args: tf.sin(x) * number_of(args)


def with_derivative(f, args):
    """The value, and a function that returns the gradients of all leaves and of variables."""
    leaves = [leaf if isinstance(leaf, (float, np.ndarray)) else tf.identity(leaf) for leaf in tf.nest.flatten(args)]
    with tf.GradientTape() as tape:
        tape.watch([leaf for leaf in leaves if tf.is_tensor(leaf)])
        y = f(*tf.nest.pack_sequence_as(args, leaves))

    def gradient(dy, variables):
        found = tape.gradient(y, [[tf.constant(0.0), leaf][tf.is_tensor(leaf)] for leaf in leaves] + variables, dy)
        return found[: len(leaves)], found[len(leaves) :]

    return y, gradient


def by_custom_vjp(f):
    return cg.custom_vjp(
        lambda *args: with_derivative(f, args), lambda gradient, dy, variables: gradient(dy, variables)
    )


def by_custom_jvp(f):
    decorated = cg.custom_jvp(of_arguments_alone(f))

    @decorated.defjvp
    def rule(primals, tangents):
        (x, *args), (dx, *dargs) = primals, tangents
        dnumber = 0.0
        for i, (leaf, tangent) in enumerate(zip(tf.nest.flatten(args), tf.nest.flatten(dargs), strict=True)):
            dnumber -= (i + 1.0) * tf.reduce_sum(tf.sin(tf.cast(leaf, tf.float64)) * tangent)
        return tf.sin(x) * number_of(args), tf.cos(x) * dx * number_of(args) + tf.sin(x) * dnumber

    return decorated


def by_straight_through(f):
    return lambda x, *args: cg.straight_through(lambda x: f(x, *args), surrogate=lambda x: f(x, *args))(x)


def by_scan(f):
    return lambda x, *args: cg.scan(lambda carry, _: (f(carry, *args), None), x, length=2)[0]


def by_while_loop(f):
    return lambda x, *args: cg.while_loop(
        lambda i, y: i < 2, lambda i, y: (i + 1, f(y, *args)), (0, x), maximum_iterations=2
    )[1]


# For each decorator: what applies it, the plain function, and of what there are gradients besides `x`.
ARGUMENTS, ALL = ("arguments", "variables"), ("arguments", "variables", "captures")
DECORATORS = {
    "custom_gradient": (lambda f: cg.custom_gradient(lambda *args: with_derivative(f, args)), lambda f: f, ARGUMENTS),
    "custom_vjp": (by_custom_vjp, lambda f: f, ARGUMENTS),
    "custom_jvp": (by_custom_jvp, of_arguments_alone, ARGUMENTS),
    "straight_through": (by_straight_through, lambda f: f, ()),
    "implicit_root": (lambda f: cg.implicit_root(lambda y, *args: 2.0 * (y - f(*args)), f), lambda f: f, ALL),
    "recompute_grad": (cg.recompute_grad, lambda f: f, ALL),
    "override_gradients": (lambda f: cg.override_gradients(f, {"Sin": cg.rules.built_in}), lambda f: f, ALL),
    "scan": (by_scan, twice, ALL),
    "while_loop": (by_while_loop, twice, ALL),
}


def run(decorate, plans, changes, gradients_last, kinds):
    """The values and gradients of a program."""
    state, results, calls = State(), [], []
    f, changes = decorate(state.function), iter(changes)

    def change():
        for name in next(changes):
            CHANGES[name](state)

    def take_gradient(dy, tape, y, sources):
        found = tape.gradient(y, sources, output_gradients=dy, unconnected_gradients="zero")
        results.extend([y, *map(tf.convert_to_tensor, found)])
        change()

    for dy in UPSTREAM:
        sources = [X, *(source for kind in kinds for source in state.sources()[kind])]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = f(X, *tf.nest.map_structure(lambda name: getattr(state, name), plans))
        change()
        calls.append((dy, tape, y, sources))
        if not gradients_last:
            take_gradient(*calls.pop())
    for call in calls:
        take_gradient(*call)
    return results


LEAVES = ["number", "tensor", "variable", "other", "items", "table", "buffer"]
PLANS = strategies.recursive(
    strategies.sampled_from(LEAVES),
    lambda plans: strategies.one_of(
        strategies.lists(plans, max_size=3),
        strategies.tuples(plans, plans),
        strategies.dictionaries(strategies.sampled_from("abc"), plans, max_size=2),
    ),
    max_leaves=4,
)
SEARCHED = "TF_CG_OPS_PROGRAMS" in os.environ


@pytest.mark.parametrize("name", DECORATORS)
@hypothesis.settings(
    max_examples=int(os.environ.get("TF_CG_OPS_PROGRAMS", 5)),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if SEARCHED else [])],
    deadline=None,
    database=None,
    derandomize=not SEARCHED,
)
@hypothesis.given(
    plans=strategies.lists(PLANS, min_size=1, max_size=3),
    changes=strategies.lists(strategies.sets(strategies.sampled_from(list(CHANGES))), min_size=4, max_size=4),
    gradients_last=strategies.booleans(),
)
@hypothesis.example(plans=LEAVES, changes=[CHANGES] * 4, gradients_last=False)
@hypothesis.example(plans=[LEAVES, "tensor"], changes=[CHANGES] * 4, gradients_last=True)
def test_changes_of_state_have_the_effect_that_they_have_on_the_plain_function(name, plans, changes, gradients_last):
    decorate, undecorated, kinds = DECORATORS[name]
    plan = plans, [sorted(each) for each in changes], gradients_last, kinds
    assert_all_close(run(decorate, *plan), run(undecorated, *plan), rtol=1e-9, atol=1e-12)
