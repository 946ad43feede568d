"""What can be put around a function without changing what it computes, or with gradients that are a known factor larger.

A rule multiplies the gradients by FACTOR, so that nothing but the rule can give its numbers.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

FACTOR = 3.0


def is_float(leaf):
    return tf.is_tensor(leaf) and leaf.dtype.is_floating


def floats_of(structure):
    """All floating-point Tensors and variables in it, also in composite tensors."""
    return [leaf for leaf in tf.nest.flatten(structure, expand_composites=True) if is_float(leaf)]


def with_floats(structure, floats):
    """The structure with other floating-point Tensors, and None for all other leaves outside of composite tensors."""
    floats = iter(floats)

    def replaced(leaf):
        if isinstance(leaf, tf.__internal__.CompositeTensor) and not isinstance(leaf, tf.Variable):
            parts = tf.nest.flatten(leaf, expand_composites=True)
            return tf.nest.pack_sequence_as(
                leaf, [next(floats) if is_float(part) else part for part in parts], expand_composites=True
            )
        return next(floats) if is_float(leaf) else None

    return tf.nest.map_structure(replaced, structure)


def with_copies(args):
    """The same arguments, in which no Tensor is there twice, and all floating-point Tensors among them."""
    leaves = [tf.identity(leaf) for leaf in floats_of(args)]
    copies = iter(leaves)
    flat = [next(copies) if is_float(leaf) else leaf for leaf in tf.nest.flatten(args, expand_composites=True)]
    return tf.nest.pack_sequence_as(args, flat, expand_composites=True), leaves


def pull_back(f, args, dys, variables):
    """The gradients of all arguments and variables, by a tape."""
    args, leaves = with_copies(args)
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        y = f(*args)
    found = tape.gradient(floats_of(y), [*leaves, *variables], floats_of(list(dys)), unconnected_gradients="zero")
    found = [FACTOR * tf.convert_to_tensor(gradient) for gradient in found]
    return with_floats(args, found[: len(leaves)]), found[len(leaves) :]


def answer(gradients, variables):
    return gradients if not variables else (gradients, variables)


def custom_gradient(f):
    """The tape is around the forward pass."""

    def function(*args):
        args, leaves = with_copies(args)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(leaves)
            y = f(*args)

        def grad_fn(*dys, variables=()):
            sources = [*leaves, *variables]
            found = tape.gradient(floats_of(y), sources, floats_of(list(dys)), unconnected_gradients="zero")
            found = [FACTOR * tf.convert_to_tensor(gradient) for gradient in found]
            return answer(with_floats(args, found[: len(leaves)]), found[len(leaves) :])

        return y, grad_fn

    return cg.custom_gradient(function)


def custom_vjp(f):
    """The tape is in the rule, which runs the function again."""
    return cg.custom_vjp(
        lambda *args: (f(*args), args),
        lambda args, *dys, variables=(): answer(*pull_back(f, args, dys, variables)),
    )


def custom_jvp(f):
    decorated = cg.custom_jvp(f)

    @decorated.defjvp
    def rule(primals, tangents, variables=(), variable_tangents=()):
        primals, _ = with_copies(primals)
        flat = (tf.nest.flatten(each, expand_composites=True) for each in (primals, tangents))
        pairs = [*zip(*flat, strict=True), *zip(variables, variable_tangents, strict=True)]
        pairs = [(primal, tangent) for primal, tangent in pairs if is_float(primal) and tangent is not None]
        with tf.autodiff.ForwardAccumulator([p for p, _ in pairs], [t for _, t in pairs]) as accumulator:
            y = f(*primals)
        found = [FACTOR * accumulator.jvp(t, unconnected_gradients="zero") for t in floats_of(y)]
        return None, with_floats(y, found)

    return decorated


def numpy_function(f):
    """Python code with its adjoint."""

    def call(*args):
        specs = tf.function(f, autograph=False).get_concrete_function(*args).structured_outputs
        specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), specs)

        def forward(*args):
            return to_arrays(f(*to_tensors(args))), args

        def backward(args, *dys):
            return to_arrays(floats_of(pull_back(f, to_tensors(args), to_tensors(dys), ())[0]))

        return cg.numpy_function(forward, specs, vjp=backward)(*args)

    return call


def to_arrays(structure):
    return tf.nest.map_structure(lambda t: t.numpy() if tf.is_tensor(t) else t, structure)


def to_tensors(structure):
    return tf.nest.map_structure(lambda t: tf.constant(t) if isinstance(t, np.ndarray) else t, structure)


def capture(f):
    """Every argument is a place, too."""

    def named(*args):
        leaves = [tf.identity(leaf, name="argument") for leaf in floats_of(args)]
        copies = iter(leaves)
        flat = [next(copies) if is_float(leaf) else leaf for leaf in tf.nest.flatten(args, expand_composites=True)]
        return f(*tf.nest.pack_sequence_as(args, flat, expand_composites=True))

    captured = cg.capture(named, {"arguments": lambda op: op.name.split("_")[0] == "argument"})
    return lambda *args: captured(*args)[0]


def first_of(y):
    return floats_of(y)[0]


def of_carry(f):
    """Steps of a loop: the first output takes the place of the first floating-point Tensor among the arguments."""

    def make(args):
        leaves = tf.nest.flatten(args, expand_composites=True)
        position = next(i for i, leaf in enumerate(leaves) if is_float(leaf))

        def step(carry):
            changed = [*leaves[:position], carry, *leaves[position + 1 :]]
            found = floats_of(f(*tf.nest.pack_sequence_as(args, changed, expand_composites=True)))
            found[0].set_shape([3])  # The same shape in each step, also where none is known.
            return found

        carry = tf.identity(leaves[position])
        carry.set_shape([3])
        return carry, step

    return make


def twice(f):
    """What `scan` computes."""

    def call(*args):
        carry, step = of_carry(f)(args)
        first = step(carry)
        second = step(first[0])
        return second[0], [tf.stack(pair) for pair in zip(first, second, strict=True)]

    return call


def scan(f, **options):
    def call(*args):
        carry, step = of_carry(f)(args)

        def body(carry, _):
            y = step(carry)
            return y[0], y

        return cg.scan(body, carry, length=2, **options)

    return call


def while_loop(f):
    def call(*args):
        carry, step = of_carry(f)(args)
        body = lambda i, carry: (i + 1, step(carry)[0])  # noqa: E731
        return cg.while_loop(lambda i, _: i < 2, body, (0, carry), maximum_iterations=3)[1]

    return call


def on_outputs(change):
    def wrap(f):
        return lambda *args: tf.nest.map_structure(lambda t: change(t) if is_float(t) else t, f(*args))

    return wrap


class OfFunction(keras.layers.Layer):
    def __init__(self, function):
        super().__init__(dtype="float64")
        self.function = function

    def call(self, *args):
        return self.function(*args)


def recompute_layer(f):
    return cg.layers.Recompute(OfFunction(f), dtype="float64")


def saved(f):
    """A function that is saved and loaded in its first call, which must be in eager mode."""
    loaded = []

    def call(*args):
        if not loaded:
            with tf.init_scope(), tempfile.TemporaryDirectory() as folder:
                module = tf.Module()
                module.f = tf.function(f, autograph=False)
                traced = module.f.get_concrete_function(*tf.nest.map_structure(_spec, args))
                module.variables_of_f = traced.variables
                tf.saved_model.save(module, folder)
                loaded.append(tf.saved_model.load(folder))
        return loaded[0].f(*args)

    return call


def _spec(leaf):
    """The type of an argument, in which the shapes of Tensors are not known."""
    if not tf.is_tensor(leaf):
        return leaf
    spec = tf.type_spec_from_value(leaf)
    return tf.TensorSpec([None] * leaf.shape.rank, leaf.dtype) if isinstance(spec, tf.TensorSpec) else spec


@dataclasses.dataclass(frozen=True)
class Wrapper:
    wrap: Callable
    plain: Callable = lambda f: f  # What it must agree with.
    has_rule: bool = False  # Which multiplies by FACTOR.
    runs_again: bool = False  # Whether the rule runs the function when a gradient is computed.
    unreached: tuple = ()  # The sources without a gradient, of SOURCES in harness.py.
    senseless: tuple = ()  # The traits of programs for which it makes no sense.


STATE = ("captured", "w", "frozen", "total")
# A function that only reads a frozen variable gives it no gradient, and a Tensor from outside none at all.
UNREACHED = ("captured", "frozen")
# Forward mode of TensorFlow fails in conditionals and loops, has no second derivative of calls in eager mode, and
# ignores the gradient of a tf.custom_gradient.
BEYOND_TENSORFLOWS_TANGENTS = ("control", "call", "foreign")
WRAPPERS = {
    "recompute_grad": Wrapper(cg.recompute_grad),
    "recompute_grad, keep": Wrapper(lambda f: cg.recompute_grad(f, keep=lambda op: op.type in ("Sin", "Mul", "Tanh"))),
    "recompute_grad, memory": Wrapper(lambda f: cg.recompute_grad(f, memory="auto")),
    "Recompute": Wrapper(recompute_layer, senseless=("attrs", "none", "composite")),
    "scan": Wrapper(scan, twice),
    "while_loop": Wrapper(while_loop, lambda f: lambda *args: twice(f)(*args)[0]),
    "custom_gradient": Wrapper(custom_gradient, has_rule=True, unreached=UNREACHED),
    "custom_vjp": Wrapper(custom_vjp, has_rule=True, runs_again=True, unreached=UNREACHED, senseless=("writes",)),
    "custom_jvp": Wrapper(
        custom_jvp,
        has_rule=True,
        runs_again=True,
        unreached=UNREACHED,
        senseless=("writes", *BEYOND_TENSORFLOWS_TANGENTS),
    ),
    "override_gradients": Wrapper(lambda f: cg.override_gradients(f, {cg.rules.elementwise: cg.rules.built_in})),
    "masked": Wrapper(lambda f: cg.override_gradients(f, {cg.rules.elementwise: cg.rules.masked})),
    "capture": Wrapper(capture),
    "grad_pass_through": Wrapper(on_outputs(cg.grad_pass_through(tf.identity))),
    "watch_gradient": Wrapper(on_outputs(functools.partial(cg.watch_gradient, name="h", check_numerics=True))),
    "numpy_function": Wrapper(
        numpy_function,
        has_rule=True,
        runs_again=True,
        unreached=STATE,
        senseless=("writes", "none", "outside", "composite"),
    ),
    "saved and loaded": Wrapper(saved, unreached=STATE, senseless=("writes", "attrs", "composite")),
}
