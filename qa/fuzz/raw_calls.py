"""A random call of one of the ops, determined by one number."""

import dataclasses
import random

import numpy as np
import tensorflow as tf

from . import node_defs
from .raw_inputs import MAKERS, NUMBERS, Handle, array_of

# The calls in a thousand that are made in each mode; the slow modes trace or compile for each call.
SHARES = {
    "eager": 800,  # In eager mode.
    "reused": 70,  # Traced once, with unknown shapes, for all calls of the same attributes.
    "infer": 73,  # In a graph of TensorFlow 1, with shapes partly known, that does not run.
    "session": 15,  # The same, and it runs; inputs may be variables, by reference and without a value too.
    "node_def": 12,  # A NodeDef, most of them malformed, imported into a graph that runs.
    "function_def": 12,  # The same in the body of a function, which nobody checks before it is called.
    "function": 8,  # Traced, with shapes partly known.
    "xla": 6,  # The same with jit_compile=True.
    "pfor": 4,  # By tf.vectorized_map.
}
OPS = {
    "CustomGradientEmbed": 35,
    "CustomGradientEmbedGrad": 40,
    "CustomGradientCheckShape": 9,
    "CustomGradientBarrier": 8,
    "CustomGradientRule": 8,
}

WITH_GRADIENT = ("eager", "reused", "session", "function", "xla")

VARIABLES = (None, "ref", "resource", "ref", "resource", "ref without a value", "resource without a value")


@dataclasses.dataclass
class Call:
    number: int
    op: str
    mode: str
    inputs: list  # Arrays and Handles, one after the other.
    counts: list  # How many of them go to each argument of the op.
    attributes: dict
    wants_gradient: bool = False
    known: tuple = ()  # For each input, while tracing: "shape", "rank" or "nothing".
    constants: tuple = ()  # For each input, whether it is a constant of the graph.
    variables: tuple = ()  # For each input, None or a kind of variable.
    keeps_ops: bool = False  # Whether the graph pass that drops ops without gradients leaves them alone.
    mutation: tuple = ()  # The mutation of the NodeDef.
    batch: int = 0  # For pfor: how often the op is called,
    stacked: tuple = ()  # and which inputs differ.

    def describe(self):
        inputs = ", ".join(f"{dtype_of(t).name}{list(t.shape)}" for t in self.inputs)
        attributes = ", ".join(f"{key}={value!r}" for key, value in self.attributes.items())
        names = ("wants_gradient", "keeps_ops", "mutation", "batch", "stacked")
        extras = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name)]
        if any(self.variables):
            extras.append(f"variables={self.variables}")
        return " ".join([self.mode, self.op, f"{self.counts} ({inputs}) {{{attributes}}}", *extras])

    def grouped(self, values):
        """Values, one for each input, as the op's arguments."""
        values = iter(values)
        return [[next(values) for _ in range(count)] for count in self.counts]

    def members(self):
        """The inputs of each call of a batch; of the only one without a batch."""
        if not self.batch:
            return [self.inputs]
        pairs = list(zip(self.inputs, self.stacked, strict=True))
        return [[array[i] if stacked else array for array, stacked in pairs] for i in range(self.batch)]


def dtype_of(value):
    return tf.as_dtype(value.dtype)


def is_differentiable(value):
    dtype = dtype_of(value)
    return (dtype.is_floating or dtype.is_complex) and dtype != tf.dtypes.experimental.float8_e5m2


def make_call(number):
    chance, rng = random.Random(number), np.random.default_rng(number)
    mode = chance.choices(list(SHARES), SHARES.values())[0]
    op = chance.choices(list(OPS), OPS.values())[0]
    call = Call(number, op, mode, *MAKERS[op](chance, rng, mode))
    count = len(call.inputs)
    call.wants_gradient = mode in WITH_GRADIENT and chance.random() < 0.25
    if any(dtype_of(t) not in NUMBERS for t in call.inputs):
        call.wants_gradient = False  # TensorFlow's tapes have no zeros of all dtypes.
    if mode == "reused":
        call.wants_gradient = op == "CustomGradientEmbed"  # Traces of the others are many enough.
    call.known = tuple(chance.choice(("shape", "shape", "rank", "nothing")) for _ in range(count))
    call.constants = tuple(chance.random() < 0.3 for _ in range(count))
    call.keeps_ops = chance.random() < 0.5
    call.variables = (None,) * count
    if mode == "session" and chance.random() < 0.4:
        call.variables = tuple(chance.choice(VARIABLES) for _ in range(count))
    if mode in ("node_def", "function_def"):
        call.mutation = node_defs.draw_mutation(chance, call)
    if mode == "pfor":
        call.batch = chance.choice((1, 2, 3))
        call.stacked = tuple(chance.random() < 0.6 for _ in range(count))
        if not any(call.stacked):
            call.stacked = (True, *call.stacked[1:])
        pairs = zip(call.inputs, call.stacked, strict=True)
        call.inputs = [_stack(array, call.batch, rng) if stacked else array for array, stacked in pairs]
    return call


def _stack(array, batch, rng):
    if array.dtype.kind in "iub":  # Shapes are the same for all members.
        return np.stack([array] * batch)
    return array_of(rng, (batch, *array.shape), dtype_of(array))


def has_handles(call):
    return any(isinstance(t, Handle) for t in call.inputs)
