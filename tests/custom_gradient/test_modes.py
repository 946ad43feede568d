"""Arguments, variables, composites, unused outputs, returned variables and `needed` in all modes.

No rule is the derivative of its function, so that nothing else can give its numbers. Every case runs in eager mode, in
another mode in turn, and after a reload.
"""

import dataclasses
import functools
import itertools
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.modes import ALL_MODES, assert_all_close, run_in_a_fresh_process, source_of, tape_vjp

X, Y, DY = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([1.0, 10.0])
CASES = {}


@dataclasses.dataclass
class Case:
    """A function, its arguments (an array, or a function that makes a variable), and its gradients for the upstream dy.

    `otherwise` has the modes with other gradients.
    """

    function: Any
    args: list
    gradients: list
    dy: Any
    value: Any = None
    otherwise: dict = dataclasses.field(default_factory=dict)

    def check(self, mode, vjp):
        """Compares with what `vjp` computes from the function, its arguments and dy in a mode."""
        expected = self.otherwise.get(mode, self.gradients)
        value, found = vjp(self.function, self.args, self.dy)
        if self.value is not None:
            assert_all_close(tf.nest.flatten(value), tf.nest.flatten(self.value), rtol=1e-6)
        for i, (actual, wanted) in enumerate(zip(found, expected, strict=True)):
            if wanted is None:
                has_zeros = mode in ("around_traced", "forward_mode_eager", "reloaded")
                assert actual is None or (has_zeros and not np.any(actual)), i
            else:
                np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-12, err_msg=f"argument {i}")
                assert callable(self.args[i]) or actual.dtype == self.args[i].dtype, i


def case(name, function, args, gradients, dy=DY, **more):
    assert name not in CASES
    CASES[name] = Case(function, args, gradients, dy, **more)


def variable(*values, **options):
    return lambda: tf.Variable(np.array(values), **options)


def with_rule(function, rule):
    decorated = cg.custom_jvp(function)
    decorated.defjvp(rule)
    return decorated


APIS = "custom_gradient", "custom_vjp", "custom_jvp"


def by(api, value, rule, tangent):
    """A function with a decorator. The rule takes the arguments and the upstream gradients."""
    if api == "custom_gradient":
        return cg.custom_gradient(lambda *args: (value(*args), functools.partial(rule, args)))
    return cg.custom_vjp(lambda *args: (value(*args), args), rule) if api == "custom_vjp" else with_rule(value, tangent)


# Arguments and results

weighted = cg.custom_gradient(
    lambda x, y, *, a, b: (
        a * x + b * y,
        lambda dy: (10.0 * a * dy, 100.0 * b * dy, 7.0 * tf.reduce_sum(dy), 9.0 * tf.reduce_sum(dy)),
    )
)
by_name = lambda x, y, a, b: weighted(b=b, y=y, a=a, x=x)  # noqa: E731
case("keywords", by_name, [X, Y, np.array(4.0), np.array(6.0)], [40 * DY, 600 * DY, 77.0, 99.0], value=4 * X + 6 * Y)


class Options(dict):
    """A dict with attributes, which a copy has, too."""


of_mapping = cg.custom_gradient(lambda d: (d["a"] * d["b"], lambda dy: (3.0 * dy, 5.0 * dy)))
for make in types.MappingProxyType, Options:
    case(make.__name__, lambda a, b, make=make: of_mapping(make({"a": a, "b": b})), [X, Y], [3 * DY, 5 * DY])


same_for_both = cg.custom_gradient(lambda x, y: (x * y, lambda dy: (both := 3.0 * dy, both)))
case("one Tensor as two gradients", same_for_both, [X, Y], [3 * DY, 3 * DY], value=X * Y)


@cg.custom_gradient
def with_options(x, k=2.0, training=False, name=None):
    return x * float(k), lambda dy: 10.0 * k * dy if training else float(k) * dy


def calls_with_options(x):
    """A tf.function passes keywords and defaults by position."""
    itself = tf.function(with_options)
    return with_options(x, k=3.0) + itself(x) + itself(x, training=True, name="n")


case("gradients for Tensors alone", calls_with_options, [X], [(3 + 2 + 20) * DY])
rounded = cg.grad_pass_through(tf.round)  # Here a tf.function passes name=None by position.
case("grad_pass_through of Tensors alone", lambda x: rounded(x, name="n") + tf.function(rounded)(x), [X], [2 * DY])


# What makes a container of two Tensors, what takes them out again, and what changes the container.
CHANGES = {
    "an entry of a list": (lambda w, c: [w, c], lambda v: v, lambda v: v.__setitem__(1, 50.0)),
    "a longer list": (lambda w, c: [w, c], lambda v: v[:2], lambda v: v.append(50.0)),
    "another key": (lambda w, c: {"a": w, "b": c}, lambda v: (v["a"], v["b"]), lambda v: v.update(aa=X, y=3.0)),
    "an inner list": (lambda w, c: (w, [c]), lambda v: (v[0], v[1][0]), lambda v: v[1].insert(0, 50.0)),
}


def changed_after_the_call(name, api, w, c):
    make, items, change = CHANGES[name]

    def value(v):
        return items(v)[0] * items(v)[1]

    def with_grad_fn(v):
        w, c = items(v)
        return value(v), lambda dy: (make(7.0 * dy * c, 5.0 * dy * w),)

    def tangent(p, t):
        (w, c), (tw, tc) = items(p[0]), items(t[0])
        return None, 7.0 * tw * c + 5.0 * w * tc

    container = make(w, c)
    y = (cg.custom_gradient(with_grad_fn) if api == "custom_gradient" else with_rule(value, tangent))(container)
    change(container)
    return y


for name, api in zip(CHANGES, itertools.cycle(("custom_gradient", "custom_jvp"))):
    call = functools.partial(changed_after_the_call, name, api)
    case(f"{name} that changes after {api}", call, [X, Y], [7 * DY * Y, 5 * DY * X], value=X * Y)


def changed_arrays(w):
    array, half = Y.copy(), {"x": X / 2.0}
    function = cg.custom_jvp(lambda w, array, half: w * array * half["x"], nondiff_argnames=["half"])
    function.defjvp(lambda p, t, half: (None, (t[0] * p[1] + p[0] * t[1]) * half["x"]))
    y = function(w, array, half)
    array.fill(50.0)
    half["x"] = 9.0 * X
    return y


def changed_variable(w, v):
    v.assign(Y)
    y = with_rule(lambda w, v: w * v, lambda p, t: (None, t[0] * p[1] + p[0] * t[1]))(w, v)
    v.assign(50.0 * Y)
    return y


case("arrays that change after custom_jvp", changed_arrays, [X], [DY * Y * X / 2.0])
variables = [variable(*X), variable(*Y)]
case("a variable that changes after custom_jvp", changed_variable, variables, [DY * Y, DY * X], value=X * Y)

# Variables that a function reads, returns, or gets


def in_another_order(x, first, second, third):
    """The gradient of the i-th one of grad_fn's list is 10**(i + 1) dy."""
    grad_fn = lambda dy, variables: (7.0 * dy, [10.0 ** (i + 1) * dy for i, _ in enumerate(variables)])  # noqa: E731
    return cg.custom_gradient(lambda x: (x + third + first + second + first, grad_fn))(x)


args = [X, *(variable(0.0, 0.0, name=name) for name in ("same", "a", "same"))]
case("variables in the order of their creation", in_another_order, args, [7 * DY, 10 * DY, 100 * DY, 1000 * DY])


def gradient_that_reads(x, scale):
    function = cg.custom_gradient(lambda x: (x**2, lambda dy: 10.0 * dy * scale * x))
    return tape_vjp(function, [x], tf.constant(DY))[1][0]


case("second order by a Tensor that only grad_fn reads", gradient_that_reads, [X, Y], [10 * DY**2 * Y, 10 * DY**2 * X])


class OwnVariable(keras.Variable):
    """A subclass in a user's module."""


def autocast():
    layer = tf_keras.layers.Layer(dtype=tf_keras.mixed_precision.Policy("mixed_float16"))
    return layer.add_weight("v", [2], initializer=tf_keras.initializers.Constant(Y), dtype="float64")


VARIABLES = {
    "tf": variable(*Y),
    "keras": lambda: keras.Variable(Y, dtype="float64"),
    "subclass": lambda: OwnVariable(Y, dtype="float64"),
    "tf_keras": autocast,
    "frozen tf": variable(*Y, trainable=False),
    "frozen keras": lambda: keras.Variable(Y, dtype="float64", trainable=False),
}


def reading(api, x, v):
    """Its rules multiply by 7 for x, and by 5 for the variable, of which TensorFlow may not tell."""
    return by(
        api,
        lambda x: x * v,
        lambda args, dy, variables=(): (7.0 * dy, [5.0 * dy]) if variables else 7.0 * dy,
        lambda p, t, variables=(), variable_tangents=(): (None, 7.0 * t[0] + sum(5.0 * t for t in variable_tangents)),
    )(x)


def returning(api, x, v):
    return by(
        api,
        lambda x: [2.0 * x, v],
        lambda args, dx, dv, variables=None: (7.0 * dx, [5.0 * dv]),
        lambda p, t, variables=None, variable_tangents=None: (None, [7.0 * t[0], 5.0 * variable_tangents[0]]),
    )(x)


def passed_and_captured(x, passed, captured):
    grad_fn = lambda dy, variables: ((2.0 * dy, 3.0 * dy), [5.0 * dy])  # noqa: E731
    return cg.custom_gradient(lambda x, v: (x * v + captured, grad_fn))(x, passed)


for (kind, make), api in zip(VARIABLES.items(), APIS * 2, strict=True):
    # In a graph every variable that a tape watches counts, elsewhere the trainable ones, as with tf.custom_gradient.
    untold = {mode: [7 * DY, None] for mode in ("eager", "tf1", "reloaded", "forward_mode_eager") if "frozen" in kind}
    call = functools.partial(reading, api)
    case(f"{api} reads a {kind} variable", call, [X, make], [7 * DY, 5 * DY], otherwise=untold)
    both = [X, make, variable(0.0, 0.0)]
    case(f"a {kind} variable beside a captured one", passed_and_captured, both, [2 * DY, 3 * DY, 5 * DY])
for api in APIS:
    call, args = functools.partial(returning, api), [X, variable(*Y)]
    case(f"{api} has a rule for what it returns", call, args, [7 * DY, 500 * DY], [DY, 100 * DY])

of_two = cg.custom_gradient(lambda a, b: (a * b, lambda dy: (7.0 * dy, 500.0 * dy)))
case("one variable of Keras twice", lambda v: of_two(v, v.value), [VARIABLES["keras"]], [507 * DY])


def returned_twice(v):
    value = cg.custom_gradient(lambda x: ({"a": v, "b": [v, x]}, lambda da, db, dx: 7.0 * dx))(tf.constant(X))
    return [value["a"], value["b"][0]]


case("a variable that is returned twice", returned_twice, [variable(*Y)], [101 * DY], [DY, 100 * DY])

# Gradients of another dtype than float32, which are cast


def wide(gradient):
    return tf.cast(gradient, tf.float64)


def beside(rule):
    return lambda x, v: cg.custom_gradient(lambda x: (x, rule))(x) + 5.0 * v


def cast(api, x, v):
    return by(
        api,
        lambda x: x * v,
        lambda args, dy, variables: (wide(7.0 * dy), [wide(5.0 * dy)]),
        lambda p, t, variables, variable_tangents: (
            None,
            sum(wide(k * t) for k, t in zip((7, 5), (*t, *variable_tangents), strict=True) if t is not None),
        ),
    )(x)


CAST = {
    **{api: functools.partial(cast, api) for api in APIS},
    "override_gradients": lambda x, v: cg.override_gradients(
        tf.multiply, {"Mul": lambda op, dy: (wide(7.0 * dy), wide(5.0 * dy))}
    )(x, tf.convert_to_tensor(v)),
    "grad_pass_through": lambda x, v: tf.cast(7.0 * cg.grad_pass_through(wide)(x), tf.float32) + 5.0 * v,
    "bfloat16": beside(lambda dy: tf.cast(7.0 * dy, tf.bfloat16)),
    "an array": beside(lambda dy: np.array([7.0, 70.0])),
    "slices": lambda x, v: beside(lambda dy: tf.IndexedSlices(wide(7.0 * dy), tf.constant([0, 1])))(x[:], v),
}
for name, function in CAST.items():
    args = [X.astype(np.float32), variable(*Y.astype(np.float32), dtype=tf.float32)]
    constant = {"forward_mode_eager": [0 * DY, 5 * DY]} if name == "an array" else {}
    case(
        f"a gradient that is cast: {name}", function, args, [7 * DY, 5 * DY], DY.astype(np.float32), otherwise=constant
    )

# Composite tensors and extension types


def like(sparse, values):
    return tf.SparseTensor(sparse.indices, values, sparse.dense_shape)


of_sparse = cg.custom_gradient(
    lambda sparse, x: (
        tf.sparse.to_dense(sparse)[:2] * x,
        lambda dy: (like(sparse, 40.0 * tf.gather(dy, [0, 1])), None),
    )
)
case("a sparse tensor", lambda x: of_sparse(tf.SparseTensor([[0], [1]], x, [3]), Y), [X], [40 * DY], value=X * Y)


of_slices = cg.custom_gradient(
    lambda s: (
        tf.IndexedSlices(2.0 * s.values, s.indices),
        lambda dy: tf.IndexedSlices(6.0 * dy.values, s.indices),
    )
)
case("slices", lambda x: of_slices(tf.IndexedSlices(x, tf.constant([4, 1]))).values, [X], [6 * DY], value=2 * X)


class Masked(tf.experimental.ExtensionType):
    values: tf.Tensor
    weights: tf.Tensor
    mask: tf.Tensor


class Batchable(tf.experimental.BatchableExtensionType):
    values: tf.Tensor
    weights: tf.Tensor
    mask: tf.Tensor


def to_tensor(m):
    return m.values * m.weights


def times(m, first, second):
    return type(m)(first * m.values, second * m.weights, m.mask)


TO_EXTENSIONS = {
    api: by(
        api,
        lambda m: times(m, 2.0, 3.0),
        lambda args, dm: times(dm, 7.0, 5.0),
        lambda p, t: (None, times(t[0], 7.0, 5.0)),
    )
    for api in APIS
}
TO_EXTENSIONS["grad_pass_through"] = lambda m: times(cg.grad_pass_through(lambda m: m)(m), 7.0, 5.0)
# With materialize_grads=False a whole result can have None as its upstream gradient, but a part of it cannot.
unused_part = cg.custom_vjp(lambda m: (m, ()), lambda _, dm: times(dm, 7.0, 5.0), materialize_grads=False)
none_for_all = cg.custom_gradient(lambda m, x: (to_tensor(m) * x, lambda dy: (None, 7.0 * dy)))


def extension(kind, x, y):
    return kind(x, y, tf.constant([True, False]))


def parts_of_result(function, kind, x, y):
    result = function(extension(kind, x, y))
    assert type(result) is kind
    return [result.values, result.weights]


for (api, function), kind in zip(TO_EXTENSIONS.items(), (Masked, Batchable, Masked, Batchable), strict=True):
    call = functools.partial(parts_of_result, function, kind)
    case(f"{api} to a {kind.__name__}", call, [X, Y], [7 * DY, 500 * DY], [DY, 100 * DY])
case("an unused part", lambda x, y: unused_part(extension(Masked, x, y)).values, [X, Y], [7 * DY, 0 * DY])
case("None for all parts", lambda x, y: none_for_all(extension(Masked, x, y), x), [X, Y], [7 * DY, None])

# Unused outputs. A file has a rule for all outputs; forward mode transposes it.

sliced_or_unused = cg.custom_vjp(
    lambda x: ((x, 2 * x), x),
    lambda x, dy, unused: (tf.convert_to_tensor(dy) if unused is None else unused) * x**2,
    materialize_grads=False,
)
case(
    "slices are not None",
    lambda x: tf.gather(sliced_or_unused(x)[0], [1, 0]),
    [X],
    [DY[::-1] * X**2],
    otherwise={"reloaded": [0 * X], "forward_mode_eager": [0 * X]},
)


def gradient_beside_an_unused_output(x):
    return tape_vjp(lambda x: sliced_or_unused(x)[0], [x], tf.constant(DY))[1][0]


case("second order beside an unused output", gradient_beside_an_unused_output, [X], [2 * DY**2 * X])

# `needed`: a gradient is multiplied by 100 if the other one is needed, too; one that is not needed is None.


def backward_of_product(residuals, dy, needed):
    x, y = residuals
    dx, dy = dy * tf.cos(x) * y * (100.0 if needed[1] else 1.0), dy * tf.sin(x) * (100.0 if needed[0] else 1.0)
    return dx if needed[0] else None, dy if needed[1] else None


product = cg.custom_vjp(lambda x, y: (tf.sin(x) * y, (x, y)), backward_of_product)
BY_X, BY_Y = DY * np.cos(X) * Y, DY * np.sin(X)
# A graph is traced for all: tapes around it can watch either, and so can tapes around a loaded model.
for name, call, arg, gradient in [
    ("first", lambda x: product(x, tf.constant(Y)), X, BY_X),
    ("second", lambda y: product(tf.constant(X), y), Y, BY_Y),
]:
    for_all = {mode: [100 * gradient] for mode in ("around_traced", "reloaded", "tf1")}
    case(f"the {name} is needed", call, [arg], [gradient], otherwise=for_all)
case("both are needed", product, [X, Y], [100 * BY_X, 100 * BY_Y], otherwise={"forward_mode_eager": [BY_X, BY_Y]})

named_needed = cg.custom_vjp(lambda x, needed: (x, x), lambda x, dy, needed: dy * needed, nondiff_argnames=["needed"])
case("an argument of the name `needed`", lambda x: named_needed(x, 7.0), [X], [7 * DY])


def needed_of_all_kinds(b, weight):
    """A structure, other arguments, and a variable that is passed to one function and read by another."""

    def forward(pair, mode, v, scale):
        return pair["a"] * pair["b"] * v, (pair, tf.convert_to_tensor(v))

    def backward(residuals, dy, scale, *, needed):
        pair, v = residuals
        rows = [dy * pair["b"] * v, scale * dy * pair["a"] * v, None, dy * pair["a"] * pair["b"]]
        return [row if is_needed else None for row, is_needed in zip(rows, needed, strict=True)]

    passed = cg.custom_vjp(forward, backward, nondiff_argnames=["scale"])
    read = cg.custom_vjp(
        lambda x: (x * weight, x),
        lambda x, dy, needed, variables: (dy * 3.0 if needed[0] else None, [dy * (2.0 if needed == (True,) else 0.0)]),
    )
    return passed({"a": tf.constant(X), "b": b}, "mode", weight, scale=3.0) + read(b)


case(
    "needed of all kinds",
    needed_of_all_kinds,
    [Y, variable(*Y)],
    [DY * (3 * X * Y + 3), DY * (X * Y + 2)],
    otherwise={"forward_mode_eager": [DY * (3 * X * Y + 3), DY * X * Y]},
)


constants = cg.custom_vjp(
    lambda kind, x, y, mode="a", *, scale: (scale * x * y, {"x": x, "y": y}),
    lambda residuals, dy, kind, mode, scale: (
        10.0 * scale * residuals["y"] * dy,
        {("first", "a"): 100.0, ("first", "b"): 1000.0}[kind, mode] * residuals["x"] * dy,
    ),
    nondiff_argnames=("kind", "mode", "scale"),
)
for given, factor in ({}, 100), ({"mode": "b"}, 1000):  # The default is passed on, too.
    call = functools.partial(constants, "first", scale=2.0, **given)
    case(f"nondiff_argnames, {given}", call, [X, Y], [20 * Y * DY, factor * X * DY], value=2 * X * Y)

case(
    "grad_pass_through of an assignment",
    lambda x, v: tf.identity(cg.grad_pass_through(v.assign)(x)),
    [X, variable(0.0, 0.0)],
    [DY, None],
    value=X,
)

# custom_jvp


@functools.partial(cg.custom_jvp, nondiff_argnames=["scale"])
def structured(inputs, *rest, scale=2.0, power):
    return {"sum": scale * inputs["a"] + rest[0], "which": tf.argmax(rest[0]), "all": [inputs["b"][0] ** power]}


@structured.defjvp
def structured_jvp(primals, tangents, scale):
    inputs, _, power = primals
    by_inputs, by_first, by_power = tangents
    assert (by_inputs["b"][1], by_power, scale, power) == (None, None, 3.0, 2)
    sum_ = 5 * scale * by_inputs["a"] + 7 * by_first
    return None, {"sum": sum_, "which": None, "all": [inputs["a"] * by_inputs["b"][0]]}


def call_structured(a, b, c):
    value = structured({"a": a, "b": [b, tf.constant(4)]}, c, scale=3.0, power=2)
    assert value["which"].dtype == tf.int64
    return [value["sum"], value["all"][0]]


case("a tangent rule of structures", call_structured, [X, Y, X], [15 * DY, 2 * DY * X, 7 * DY], [DY, 2 * DY])

none_of_two = with_rule(lambda x: (tf.sin(x), tf.cos(x)), lambda p, t: (None, (None, 3.0 * t[0])))
case("no tangent of one output", lambda x: list(none_of_two(x)), [X], [300 * DY], [DY, 100 * DY])


MODES = ("traced", "jit", "around_traced", "forward_mode_eager", "unknown_shape", "tf1")


def pairs():
    for i, (name, case) in enumerate(CASES.items()):
        yield pytest.param(name, "eager", marks=pytest.mark.core)
        # The modes with an outcome of their own, and one more in turn.
        for mode in dict.fromkeys([MODES[i % 6], *case.otherwise]):
            if mode not in ("eager", "reloaded"):
                yield name, mode


@pytest.mark.parametrize(("name", "mode"), list(pairs()))
def test_values_and_gradients(name, mode):
    CASES[name].check(mode, ALL_MODES[mode].vjp)


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """The values and gradients of all cases, from one model in one fresh process."""
    model, tasks = tf.Module(), {}

    def add(name, case):
        variables = {i: arg() for i, arg in enumerate(case.args) if callable(arg)}
        specs = [tf.TensorSpec(np.shape(arg), np.asarray(arg).dtype) for arg in case.args if not callable(arg)]

        def function(*tensors):
            tensors = iter(tensors)
            return case.function(*[variables[i] if i in variables else next(tensors) for i in range(len(case.args))])

        setattr(model, name, tf.function(function, specs, autograph=False))
        for i, variable in variables.items():
            setattr(model, f"{name}_{i}", source_of(variable))
        tasks[name] = [f"{name}_{i}" if i in variables else arg for i, arg in enumerate(case.args)], case.dy

    for number, case in enumerate(CASES.values()):
        add(f"f{number}", case)
    found = run_in_a_fresh_process(model, tasks, tmp_path_factory.mktemp("reloaded"))
    return {name: found[f"f{number}"] for number, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_after_a_reload(name, reloaded):
    CASES[name].check("reloaded", lambda *_: reloaded[name][:2])
