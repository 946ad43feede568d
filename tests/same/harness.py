"""A cell of the table (program, wrapper, mode): what it computes, and what that must equal."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from . import modes
from .programs import PROGRAMS, State, X, Y
from .wrappers import WRAPPERS, floats_of

# The modes of the table: those of all tests, and a gradient that is differentiated once more.
MODES = {**modes.MODES, "second_order": modes.Mode(), "second_order_eager": modes.Mode(modes.in_eager_mode)}


SOURCES = ("x", "y", "captured", "w", "frozen", "total")


def weights_of(tensor):
    """Other numbers for each element."""
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
    return outputs, [tf.zeros_like(s) if g is None else tf.convert_to_tensor(g) for g, s in zip(found, sources, strict=True)]


def tangents(function, sources):
    """The outputs of a function, and their tangents when all sources change at once."""
    with tf.autodiff.ForwardAccumulator(sources, [weights_of(source) for source in sources]) as accumulator:
        outputs = function(*sources)
    return outputs, [accumulator.jvp(t, unconnected_gradients="zero") for t in floats_of(outputs)]


def differentiate(mode, function, sources):
    if MODES[mode].pull is modes.by_tangents:
        return tangents(function, sources)
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

    def function(self, state, wrap):
        """The function of x and y. `wrap` takes the name of a wrapper and a function."""

        def whole(x, y):
            outputs = []
            for name, wrapper in self.steps:
                program = PROGRAMS[name]
                function = functools.partial(program.call, state)
                outputs.append((wrap(wrapper, function) if wrapper else function)(*program.args(state, x, y)))
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
            if "saved and loaded" in self.names:
                function(*map(tf.constant, (X, Y)))

            def flat(x, y):
                return [t for t in tf.nest.flatten(function(x, y), expand_composites=True) if tf.is_tensor(t)]

            placed = MODES[self.mode].place(flat)

            def compute(x, y):
                sources = [x, y, tf.identity(state[0].captured), *state[0].variables]
                state[0].captured = sources[2]
                return differentiate(self.mode, lambda *sources: placed(x, y), sources)

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
        factor = np.prod([wrapper.factor for wrapper in map(WRAPPERS.get, self.names)])
        unreached = {source for wrapper in map(WRAPPERS.get, self.names) for source in wrapper.unreached}
        names = range(len(expected)) if MODES[self.mode].pull is modes.by_tangents else SOURCES
        for name, a, e in zip(names, found, expected, strict=True):
            if name not in unreached:
                close(a, factor * e, err_msg=f"derivative by {name}")
        for name, a, e in zip(SOURCES[3:], after, expected_after, strict=False):
            close(a, e, err_msg=f"{name} afterwards")


def cell(program, wrapper, mode):
    return Cell(((program, None),), (wrapper,), mode)
