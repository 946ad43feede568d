"""A cell of the table (program, wrapper, mode): what it computes, and what that must equal."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from ..support import modes
from . import wrappers
from .programs import PROGRAMS, State, X, Y
from .wrappers import WRAPPERS, floats_of

EAGER = modes.Mode(modes.in_eager_mode)
# All modes of the tests, and three more: second derivatives in a tf.function and in eager mode, and a second call, before
# which the state changes.
MODES = {**modes.ALL_MODES, "second_order": modes.Mode(), "second_order_eager": EAGER, "changed_state": EAGER}
# What a program can have derivatives by.
SOURCES = ("x", "y", "captured", "w", "frozen", "total")


def weights_of(tensor):
    """A different number for each element."""
    numbers = tf.cos(1.3 * tf.cast(tf.range(tf.size(tensor)), tensor.dtype) + 0.4)
    return tf.reshape(numbers, tf.shape(tensor))


def weighted_sum(tensors):
    sums = [(i + 1.0) * tf.cast(tf.reduce_sum(t * weights_of(t)), tf.float64) for i, t in enumerate(tensors)]
    return tf.add_n(sums)


def gradients(function, sources, pull):
    """The outputs of a function, and the gradients of their weighted sum."""
    outputs = []

    def target(*sources):
        outputs[:] = function(*sources)
        return weighted_sum(floats_of(outputs))

    _, found = pull(target, sources, tf.constant(1.0, tf.float64))
    return outputs, [
        tf.zeros_like(s) if g is None else tf.convert_to_tensor(g) for g, s in zip(found, sources, strict=True)
    ]


def tangents(function, sources, unreached):
    """The outputs of a function, and their tangents in one direction. It is zero for the sources that have no gradient."""
    directions = [
        weights_of(source) * float(name not in unreached) for name, source in zip(SOURCES, sources, strict=False)
    ]
    with tf.autodiff.ForwardAccumulator(sources, directions) as accumulator:
        outputs = function(*sources)
    return outputs, [accumulator.jvp(t, unconnected_gradients="zero") for t in floats_of(outputs)]


def jacobians(function, x, y):
    """The outputs of a function, and the Jacobian of the first one by x."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        outputs = function(x, y)
    return outputs, [tape.jacobian(floats_of(outputs)[0], x, unconnected_gradients="zero")]


def gradients_after(change, function, sources):
    """As `gradients`, with a change between the forward and the backward pass."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = function(*sources)
        target = weighted_sum(floats_of(outputs))
    change()
    return outputs, tape.gradient(target, sources, unconnected_gradients="zero")


def differentiate(mode, function, sources, unreached):
    if MODES[mode].pull is modes.by_tangents:
        return tangents(function, sources, unreached)
    if MODES[mode].pull is modes.by_jacobians:
        return jacobians(function, *sources[:2])
    if not mode.startswith("second_order"):
        return gradients(function, sources, MODES[mode].pull)
    outputs = []

    def gradients_alone(*sources):
        outputs[:], found = gradients(function, sources, modes.reverse)
        return found

    return outputs, gradients(gradients_alone, sources, modes.reverse)[1]


@dataclasses.dataclass(frozen=True)
class Cell:
    """Programs, one after the other, each in a wrapper, and wrappers around the whole; in a mode."""

    steps: tuple  # Pairs of a program and a wrapper or None.
    around: tuple = ()
    mode: str = "eager"

    @property
    def names(self):
        """The names of all wrappers."""
        return [*(wrapper for _, wrapper in self.steps if wrapper), *self.around]

    @property
    def unreached(self):
        return {source for name in self.names for source in WRAPPERS[name].unreached}

    def function(self, state, wrap):
        """The function of x and y. `wrap` takes the name of a wrapper and a function."""
        functions = []
        for name, wrapper in self.steps:
            function = functools.partial(PROGRAMS[name].call, state)
            functions.append((PROGRAMS[name].args, wrap(wrapper, function) if wrapper else function))

        def whole(x, y):
            outputs = []
            for args, function in functions:
                outputs.append(function(*args(state, x, y)))
                x = floats_of(outputs[-1])[0]
            return outputs[0] if len(outputs) == 1 else outputs

        for wrapper in self.around:
            whole = wrap(wrapper, whole)
        return whole

    def run(self, wrap):
        """Outputs, derivatives by x, y, a Tensor from outside and all variables, and what the variables hold then."""
        state = []

        def make():
            state[:] = [State()]
            function = self.function(state[0], wrap)

            @tf.autograph.experimental.do_not_convert
            def flat(x, y):
                return [t for t in tf.nest.flatten(function(x, y), expand_composites=True) if tf.is_tensor(t)]

            if self.mode == "changed_state":
                gradients_after(state[0].change, flat, [tf.constant(X), tf.constant(Y)])
            elif "saved and loaded" in self.names:
                flat(tf.constant(X), tf.constant(Y))

            placed = MODES[self.mode].place(flat)

            @tf.autograph.experimental.do_not_convert
            def compute(x, y):
                sources = [x, y, tf.identity(state[0].captured), *state[0].variables]
                state[0].captured = sources[2]
                call = lambda *_: placed(x, y)  # noqa: E731
                if self.mode == "changed_state" and not any(WRAPPERS[name].runs_again for name in self.names):
                    return gradients_after(state[0].change, call, sources)
                return differentiate(self.mode, call, sources, self.unreached)

            return compute

        found = MODES[self.mode].run(make, [X, Y])
        after = [] if self.mode == "tf1" else [v.numpy() for v in state[0].variables]
        return found, after

    def check(self):
        """Raises AssertionError unless the wrapped function agrees with the plain one."""
        wrapped = self.run(lambda name, function: WRAPPERS[name].wrap(function))
        plain = self.run(lambda name, function: WRAPPERS[name].plain(function))
        self.compare(wrapped, plain)

    def compare(self, wrapped, plain):
        ((outputs, found), after), ((expected_outputs, expected), expected_after) = wrapped, plain
        close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-9)
        assert len(outputs) == len(expected_outputs)
        for i, (a, e) in enumerate(zip(outputs, expected_outputs, strict=True)):
            assert a.dtype == e.dtype
            close(a, e, err_msg=f"output {i}")
        factor = wrappers.FACTOR ** sum(WRAPPERS[name].has_rule for name in self.names)
        assert len(found) == len(expected)
        names = range(len(found)) if MODES[self.mode].pull is modes.by_tangents else SOURCES
        for name, a, e in zip(names, found, expected, strict=False):
            if name not in self.unreached:
                close(a, factor * e, err_msg=f"derivative by {name}")
        for name, a, e in zip(SOURCES[3:], after, expected_after, strict=False):
            close(a, e, err_msg=f"{name} afterwards")


def cell(program, wrapper, mode):
    return Cell(((program, wrapper),), (), mode)
