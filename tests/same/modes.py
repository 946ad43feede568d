"""The modes: the ways in which TensorFlow runs a function and differentiates it. There is no other list of them.

A mode runs code somewhere (`run`), puts the function under test into something (`place`), and differentiates it
(`pull`). `Mode.vjp` and `Mode.orders` are what most tests need; harness.py compares with them.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf


def to_numpy(structure):
    return tf.nest.map_structure(lambda t: None if t is None else np.asarray(tf.convert_to_tensor(t)), structure)


def constants(arrays):
    return tf.nest.map_structure(tf.constant, arrays)


# How to differentiate: each takes a function, its sources and the upstream gradient, and returns the value and gradients.


def reverse(function, sources, dy=None):
    """With a tape, or with tf.gradients in a graph of TensorFlow 1. None for a source that does not matter."""
    if not tf.executing_eagerly() and not tf.inside_function():
        value = function(*sources)
        return value, tf.gradients(value, sources, grad_ys=dy)
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = function(*sources)
    return value, tape.gradient(value, sources, output_gradients=dy)


def by_jacobians(function, sources, dy):
    """Computes whole Jacobians with tape.jacobian, then their products with the upstream gradient."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        value = function(*sources)
    jacobians = [tape.jacobian(value, source, unconnected_gradients="zero") for source in sources]
    return value, [tf.tensordot(dy, jacobian, dy.shape.rank) for jacobian in jacobians]


def by_tangents(function, sources, dy):
    """Forward mode: the tangents in each direction of each source, times dy. Zeros where a tape gives None."""

    def along(source, direction):
        with tf.autodiff.ForwardAccumulator(source, direction) as accumulator:
            value = function(*sources)
        tangents = accumulator.jvp(value, unconnected_gradients="zero")
        products = tf.nest.map_structure(lambda t, dy: tf.reduce_sum(tf.convert_to_tensor(t) * dy), tangents, dy)
        return sum(tf.nest.flatten(products))

    def gradient(source):
        directions = np.eye(int(np.prod(source.shape))).reshape([-1, *source.shape])
        return tf.reshape([along(source, tf.constant(each, source.dtype)) for each in directions], source.shape)

    return function(*sources), [gradient(source) for source in sources]


# Where to run: each takes what makes a function of Tensors, and its arguments as arrays in any structure.


def in_eager_mode(make, arrays):
    return to_numpy(make()(*constants(arrays)))


def with_functions_run_eagerly(make, arrays):
    tf.config.run_functions_eagerly(True)
    try:
        return in_eager_mode(make, arrays)
    finally:
        tf.config.run_functions_eagerly(False)


def traced_with(shape_of, **options):
    """In a tf.function for Tensors whose shapes are known as far as `shape_of` tells."""

    def run(make, arrays):
        specs = tf.nest.map_structure(lambda a: tf.TensorSpec(shape_of(np.shape(a)), np.asarray(a).dtype), arrays)
        return to_numpy(tf.function(make(), specs, autograph=False, **options)(*constants(arrays)))

    return run


def in_a_session(make, arrays):
    """In a TensorFlow 1 graph with placeholders of unknown shape."""
    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        compute = make()
        placeholders = tf.nest.map_structure(lambda a: tf1.placeholder(np.asarray(a).dtype), arrays)
        results = compute(*placeholders)
        fetches = [tf.convert_to_tensor(t) for t in tf.nest.flatten(results) if t is not None]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            feeds = dict(zip(tf.nest.flatten(placeholders), tf.nest.flatten(arrays), strict=True))
            fetched = iter(session.run(fetches, feeds))
    return tf.nest.map_structure(lambda t: None if t is None else next(fetched), results)


def in_a_dataset(make, arrays):
    dataset = tf.data.Dataset.from_tensors(tuple(constants(arrays)))
    return to_numpy(next(iter(dataset.map(make()))))


def for_each_example(make, arrays):
    """In tf.vectorized_map, tapes included. The second member of the batch counts; the first has other numbers."""

    compute = make()

    def run(*tensors):
        batch = tf.nest.map_structure(_batch, list(tensors))
        return tf.vectorized_map(lambda each: compute(*each), batch, fallback_to_while_loop=False)

    return tf.nest.map_structure(lambda t: t[1], traced_with(tuple)(lambda: run, arrays))


def _batch(tensor):
    return tf.stack([2.0 * tensor if tensor.dtype.is_floating else tensor, tensor])


# What to put a function into: each takes a function of Tensors and returns one.


def zeros_of(function, args):
    """Zeros like the value of the function, which is traced once more for that."""
    outputs = tf.function(function, autograph=False).get_concrete_function(*args).structured_outputs
    return tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), outputs)


def in_a_while_loop(function):
    def run(*args):
        body = lambda i, args, _: (i + 1, args, function(*args))  # noqa: E731
        start = (0, args, zeros_of(function, args))
        return tf.while_loop(lambda i, *_: i < 1, body, start, maximum_iterations=1)[2]

    return run


def in_a_branch(function):
    def run(*args):
        zeros = zeros_of(function, args)
        return tf.cond(tf.size(args[0]) > 0, lambda: function(*args), lambda: zeros)

    return run


def in_a_case(function):
    def run(*args):
        zeros = zeros_of(function, args)
        return tf.switch_case(
            tf.size(args[0]) // tf.size(args[0]), [lambda: zeros, lambda: function(*args), lambda: zeros]
        )

    return run


def in_a_scan(function):
    def run(*args):
        elements, zeros = tf.nest.map_structure(lambda t: t[None], args), zeros_of(function, args)
        results = tf.scan(lambda _, each: function(*each), elements, initializer=zeros)
        return tf.nest.map_structure(lambda t: t[0], results)

    return run


def in_map_fn(function):
    def run(*args):
        specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), zeros_of(function, args))
        elements = tf.nest.map_structure(lambda t: t[None], args)
        results = tf.map_fn(lambda each: function(*each), elements, fn_output_signature=specs)
        return tf.nest.map_structure(lambda t: t[0], results)

    return run


def in_autograph(function):
    @tf.function(autograph=True)
    def run(*args):
        y = zeros_of(function, args)
        for i in tf.range(2):
            y = function(*args) if i == tf.constant(1) else y
        return y

    return run


def in_vectorized_map(function):
    """The tapes are outside. The second member of the batch counts; the first has other numbers."""

    def run(*args):
        batch = tf.nest.map_structure(_batch, list(args))
        results = tf.vectorized_map(lambda each: function(*each), batch, fallback_to_while_loop=False)
        return tf.nest.map_structure(lambda t: t[1], results)

    return run


def in_nested_functions(function):
    return tf.function(tf.function(function))


def made(args):
    """The arguments, of which a function makes a variable, and a function from Tensors for the arrays to all arguments."""
    variables = [arg() if callable(arg) else None for arg in args]

    def with_tensors(tensors):
        tensors = iter(tensors)
        return [next(tensors) if variable is None else variable for variable in variables]

    return variables, with_tensors


def source_of(arg):
    """What TensorFlow differentiates with respect to: a Tensor, or the variable of Keras's variable or of a layer."""
    arg = getattr(arg, "kernel", arg)
    value = getattr(arg, "value", None)
    return value if isinstance(value, tf.Variable) else arg


@dataclasses.dataclass(frozen=True)
class Mode:
    run: Callable = traced_with(tuple)
    place: Callable = lambda function: function
    pull: Callable = reverse

    def vjp(self, function, args, dy=None):
        """The value of `function(*args)` and its gradients for the upstream `dy`, as arrays.

        An argument that is a function makes a variable. None stands for the gradient of an argument that does not matter.
        """

        def make():
            _, with_tensors = made(args)
            placed = self.place(lambda *tensors: function(*with_tensors(tensors)))

            def compute(tensors, dy):
                args = with_tensors(tensors)
                call = lambda *_: placed(*tensors)  # noqa: E731
                return self.pull(call, [source_of(arg) for arg in args], dy)

            return compute

        return self.run(make, [[arg for arg in args if not callable(arg)], dy])

    def orders(self, function, x, dy):
        """The value, dx for the upstream dy, and the gradient of sum(dx * dy) by x (zeros if it does not depend on x)."""

        def compute(x, dy):
            placed, inner = self.place(function), []

            def slope(x):
                inner[:] = reverse(placed, [x], dy)
                return inner[1][0]

            _, (second,) = self.pull(slope, [x], dy)
            value, (dx,) = inner if self.pull is reverse else self.pull(placed, [x], dy)
            return value, dx, tf.zeros_like(x) if second is None else second

        return self.run(lambda: compute, [x, dy])


def _unknown(shape):
    return [None] * len(shape)


MODES = {
    "eager": Mode(in_eager_mode),
    "function": Mode(),
    "around": Mode(in_eager_mode, tf.function),
    "unknown": Mode(traced_with(_unknown)),
    "unknown_rank": Mode(traced_with(lambda shape: None)),
    "xla": Mode(traced_with(tuple, jit_compile=True)),
    "xla_unknown": Mode(traced_with(_unknown, jit_compile=True)),
    "tf1": Mode(in_a_session),
    "nested_functions": Mode(place=in_nested_functions),
    "autograph": Mode(place=in_autograph),
    "while_loop": Mode(place=in_a_while_loop),
    "while_loop_xla": Mode(traced_with(tuple, jit_compile=True), in_a_while_loop),
    "cond": Mode(place=in_a_branch),
    "switch_case": Mode(place=in_a_case),
    "scan": Mode(place=in_a_scan),
    "map_fn": Mode(place=in_map_fn),
    "dataset": Mode(in_a_dataset),
    "vectorized": Mode(place=in_vectorized_map),
    "per_example": Mode(for_each_example),
    "jacobian": Mode(pull=by_jacobians),
    "forward": Mode(pull=by_tangents),
    "forward_eager": Mode(with_functions_run_eagerly, pull=by_tangents),
}
# Without anything around the function.
PLAIN = ("eager", "function", "around", "unknown", "xla", "tf1")
RUNS = {"eager": lambda f: f, "function": tf.function, "xla": functools.partial(tf.function, jit_compile=True)}
