"""Small programs of plain TensorFlow, to which the wrappers of wrappers.py must change nothing.

Each gets a state and its arguments, which it makes of two float64 vectors of three elements. The first floating-point
Tensor that it returns is such a vector, too, so that programs can follow one another.
"""

import collections
import dataclasses
from collections.abc import Callable

import attrs
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

X, Y = np.array([0.5, -1.0, 2.0]), np.array([1.5, 0.3, -0.7])
Pair = collections.namedtuple("Pair", ["first", "second"])


@attrs.define
class Attrs:
    first: object
    second: object


class Extension(tf.experimental.BatchableExtensionType):
    values: tf.Tensor
    mask: tf.Tensor


class State:
    """What a program reads and writes beside its arguments. Each run has a new one.

    They are all equal, because nothing may be found again by the Python objects of another call.
    """

    def __eq__(self, other):
        return isinstance(other, State)

    def __hash__(self):
        return 1

    def __init__(self):
        self.w = tf.Variable([0.3, -0.8, 1.2], dtype=tf.float64)
        self.frozen = tf.Variable([0.9, 0.4, -1.1], dtype=tf.float64, trainable=False)
        self.total = tf.Variable(np.zeros(3))
        self.captured = tf.constant([0.7, 1.1, -0.4], tf.float64)
        self.generator = tf.random.Generator.from_seed(7, alg="philox")
        self.number, self.steps, self.table = 1.3, [0.4], {"a": {"b": tf.constant(0.2, tf.float64)}}
        self.buffer, self.is_training = np.array([0.8, 0.5, 0.1]), True

    def change(self):
        """What a user's code does between two calls."""
        self.w, self.captured = tf.Variable([-0.4, 0.6, 0.2], dtype=tf.float64), 2.0 * self.captured
        self.frozen.assign([0.2, -0.5, 0.9])
        self.number, self.is_training = 0.6, False
        self.steps.append(1.1)
        self.table["a"].update(b=tf.constant(-0.7, tf.float64))
        self.buffer.fill(0.3)

    @property
    def variables(self):
        return [self.w, self.frozen, self.total]


@dataclasses.dataclass
class Program:
    call: Callable
    args: Callable = lambda state, x, y: (x, y)
    traits: tuple = ()  # What the table of limits can name.


PROGRAMS = {}


def program(name, call, args=Program.args, traits=""):
    PROGRAMS[name] = Program(call, args, tuple(traits.split()))


# Arguments and results
program("several ops", lambda s, x, y: tf.nn.softmax(tf.tanh(x) * y) + tf.linalg.matvec(x[:, None] * y, tf.exp(-y)))
program(
    "several outputs",
    lambda s, x, y: [tf.sin(x) * y, tf.cos(y), tf.cast(x, tf.float32) * 2.0, tf.ones([2]), x[:0] * y[3:]],
)
program("a dict of outputs", lambda s, x, y: {"b": (tf.cos(x), [y * x]), "a": tf.sin(x) * y})
program(
    "integers beside floats",
    lambda s, x, i: (tf.gather(x, i) ** 2, tf.argmax(x), i + 1, x > 0.0),
    lambda s, x, y: (x, tf.constant([2, 0, 0])),
)
program("an argument that is not used", lambda s, x, y: tf.square(x))
program("one Tensor twice", lambda s, x, y: tf.sin(x) * y, lambda s, x, y: (x, x))
program("a dict", lambda s, d: d["b"][0] * tf.exp(d["a"]), lambda s, x, y: ({"b": [y], "a": x},))
program("a namedtuple", lambda s, p: Pair(p.second * p.first, tf.sin(p.first)), lambda s, x, y: (Pair(x, y),))
program(
    "an attrs class",
    lambda s, p: Attrs(tf.sin(p.first) * p.second, p.first),
    lambda s, x, y: (Attrs(x, y),),
    "attrs",
)
program(
    "None and Python values",
    lambda s, x, n, k, t: (x * k[0], n),
    lambda s, x, y: (x, None, (3.0, y), "text"),
    "none",
)
program("an array", lambda s, x, a: tf.where(x > a, x * a, tf.sin(x)), lambda s, x, y: (x, Y))
program(
    "a ragged tensor",
    lambda s, r, y: (r * 2.0).values * y,
    lambda s, x, y: (tf.RaggedTensor.from_row_lengths(x, [1, 0, 2], validate=False), y),
    "composite",
)
program(
    "an extension type",
    lambda s, e, y: tf.where(e.mask, e.values * y, y),
    lambda s, x, y: (Extension(x, tf.constant([True, False, True])), y),
    "composite",
)
program("complex numbers", lambda s, x, y: tf.math.real(tf.complex(x, y) * tf.exp(tf.complex(y, x))))

# What it reads
program("a Tensor from outside", lambda s, x, y: x * s.captured + y, traits="outside")
program("a variable that is read twice", lambda s, x, y: tf.gather(s.w, [1, 1, 0]) * y + x * s.w)
program("a frozen variable", lambda s, x, y: x * s.frozen * y)
program("a variable as two arguments", lambda s, x, v, w: x * v * tf.exp(w), lambda s, x, y: (x, s.w, s.w))


def of_python_objects(s, x, y):
    scale = s.number * sum(s.steps) * s.table["a"]["b"]
    return scale * tf.sin(x) * s.buffer + y if s.is_training else scale * x**2 * s.buffer


program("Python objects", of_python_objects)
program("an object as an argument", lambda s, x, o: tf.sin(x) * o.w * o.number, lambda s, x, y: (x, s), "attrs")

# Effects
program("a variable that it writes", lambda s, x, y: x * s.total.assign_add(tf.stop_gradient(y)) * y, traits="writes")


def reads_after_writing(s, x, y):
    before = x * s.total
    s.total.assign(tf.stop_gradient(0.5 * s.total + x))
    return before + y * s.total


program(
    "a variable between two writes",
    lambda s, x, y: reads_after_writing(s, reads_after_writing(s, x, y), y),
    traits="writes",
)
program("a generator", lambda s, x, y: x * s.generator.normal([3], dtype=tf.float64) + y, traits="writes")
program("numbers of a seed", lambda s, x, y: x * tf.random.stateless_uniform([3], [1, 2], dtype=tf.float64) * y)

# Control flow and calls
program("a conditional", lambda s, x, y: tf.cond(x[0] > 0, lambda: tf.sin(x) * s.w, lambda: x), traits="control")
program(
    "a case",
    lambda s, x, y: tf.switch_case(tf.cast(tf.argmax(x), tf.int32), [lambda: x, lambda: y, lambda: x * y]),
    traits="control",
)


def loop(s, x, y):
    body = lambda i, z: (i + 1, tf.sin(z) * s.w)  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, body, (0, x), maximum_iterations=2)[1]


program("a loop", loop, traits="control")
program("a scan", lambda s, x, y: tf.scan(lambda a, b: tf.tanh(a) * b, x, initializer=y[0]) + x, traits="control")
called = tf.function(lambda x, y: tf.tanh(x) + y * x)
compiled = tf.function(lambda x, y: tf.tanh(x) + y * x, jit_compile=True)
program("a called function", lambda s, x, y: called(x, y) * s.w, traits="call")
program("a compiled function", lambda s, x, y: compiled(x, y) * y, traits="call compiled")


# Gradients of their own
@tf.custom_gradient
def of_tensorflow(x):
    return tf.cos(x), lambda dy: 5.0 * dy * x


@cg.custom_gradient
def of_this_library(x):
    return tf.cos(x), lambda dy: 3.0 * dy * x


@cg.custom_jvp
def with_tangent(x):
    return x**3


with_tangent.defjvp(lambda primals, tangents: (None, 10.0 * primals[0] * tangents[0]))
program("silu", lambda s, x, y: tf.nn.silu(x) * y, traits="foreign")
program("a gradient of tf.custom_gradient", lambda s, x, y: of_tensorflow(x) * y, traits="foreign")
program("a gradient of custom_gradient", lambda s, x, y: of_this_library(x) * y)
program("a tangent of custom_jvp", lambda s, x, y: with_tangent(x) * y)
program("a stopped gradient", lambda s, x, y: tf.stop_gradient(x) * y + tf.gather(x, [2, 0, 0]))
