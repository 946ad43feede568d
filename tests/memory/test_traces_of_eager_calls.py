"""Eager calls share traces where that does not change the result, and leave nothing alive."""

import dataclasses
import functools
import gc
import math
import operator
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.memory.loop_step import LoopStep

from ..support.modes import assert_all_close
from ..support.tensors import pairs

X = tf.constant([0.5, -1.0, 2.0], tf.float64)
DY = tf.constant([1.0, 10.0, -3.0], tf.float64)


def overridden(f):
    """With a rule that matches an op of `f` and changes nothing."""
    return cg.override_gradients(f, {"Sin": cg.rules.built_in})


# The functions here compute a sine.
WRAPPERS = {"recompute_grad": cg.recompute_grad, "override_gradients": overridden}
both = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def variable(value):
    return tf.Variable(value, dtype=tf.float64)


def vjp(function, *args, sources=(X,), dy=DY):
    """The value, and the gradients with respect to the sources."""
    with tf.GradientTape() as tape:
        tape.watch([source for source in sources if not isinstance(source, tf.Variable)])
        y = function(*args)
    return [y, *tape.gradient(y, sources, output_gradients=dy)]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    assert_all_close(found, expected, rtol=1e-12, atol=1e-12)


def by_hand(w):
    """The value of w sin(x), and its gradients with respect to x and to the number w."""
    x, dy = X.numpy(), DY.numpy()
    return [w * np.sin(x), dy * w * np.cos(x), np.sum(dy * np.sin(x))]


class Traces:
    """How often a function was traced, and its graphs."""

    def __init__(self):
        self.graphs = []

    def note(self):
        if not tf.executing_eagerly():
            self.graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))

    def __len__(self):
        return len(self.graphs)


@dataclasses.dataclass(frozen=True)
class Layer:
    """Layers of the same size are equal."""

    units: int
    w: tf.Variable = dataclasses.field(compare=False)

    @cg.recompute_grad
    def recomputed(self, x):
        return self.w * tf.sin(x)

    def __call__(self, x):
        return self.w * tf.sin(x)

    def step(self, carry, x):
        return carry * self.w, None

    def goes_on(self, t, y):
        return t < tf.cast(self.w, tf.int32)

    def body(self, t, y):
        return t + 1, y * self.w


def test_equal_layers_with_a_recomputed_method_have_their_own_variables():
    layers = [Layer(3, variable(2.0)), Layer(3, variable(5.0))]
    assert layers[0] == layers[1]
    for layer in [*layers, *layers]:
        assert_equal(vjp(layer.recomputed, X, sources=[X, layer.w]), by_hand(layer.w.numpy()))


@both
@pytest.mark.parametrize("bound", [False, True], ids=["objects", "methods"])
def test_equal_callables_have_their_own_variables(wrap, bound):
    layers = [Layer(3, variable(2.0)), Layer(3, variable(5.0))]
    wrapped = [wrap(layer.__call__ if bound else layer) for layer in layers]
    for layer, function in [*zip(layers, wrapped, strict=True)] * 2:
        assert_equal(vjp(function, X, sources=[X, layer.w]), by_hand(layer.w.numpy()))


def test_methods_of_equal_objects_in_scan():
    for layer in [Layer(3, variable(2.0)), Layer(3, variable(5.0))] * 2:
        found = vjp(lambda x, layer=layer: cg.scan(layer.step, x, length=3)[0], X, sources=[X, layer.w])
        w = layer.w.numpy()
        assert_equal(found, [X * w**3, DY * w**3, np.sum(DY * X * 3 * w**2)])


@pytest.mark.parametrize("as_a_method", ["cond", "body"])
def test_methods_of_equal_objects_in_while_loop(as_a_method):
    for layer in [Layer(3, variable(2.0)), Layer(3, variable(5.0))] * 2:
        w = int(layer.w)

        def loop(x, layer=layer, w=w):
            cond = layer.goes_on if as_a_method == "cond" else lambda t, y: t < w
            body = layer.body if as_a_method == "body" else lambda t, y: (t + 1, y * layer.w)
            return cg.while_loop(cond, body, (0, x), maximum_iterations=10)[1]

        expected = [X * w**w, DY * w**w, np.sum(DY * X * w * w ** (w - 1))]
        assert_equal(vjp(loop, X, sources=[X, layer.w]), expected)


# Equal for Python, and yet not the same for a function.
CONSTANTS = [
    0.0,
    -0.0,
    False,
    0,
    1,
    True,
    1.0,
    "1",
    b"1",
    None,
    math.nan,
    1 + 0j,
    complex(0.0, -0.0),
    complex(-0.0, 0.0),
]


def factor_of(constant):
    if isinstance(constant, complex):
        return 2.0 * math.copysign(1.0, constant.real) + math.copysign(0.5, constant.imag) + constant.real
    if isinstance(constant, float):
        return math.copysign(1.0, constant) * (3.0 if constant != constant else 5.0 + constant)
    return 7.0 + [None, bool, int, str, bytes].index(None if constant is None else type(constant))


@both
def test_constants_that_python_takes_for_equal(wrap):
    traces = Traces()

    def function(x, constant):
        traces.note()
        return factor_of(constant) * tf.sin(x)

    wrapped = wrap(function)
    for constant in CONSTANTS * 2:
        assert_equal(vjp(wrapped, X, constant), by_hand(factor_of(constant))[:2])
    # Not one for each call. False and 0, or 1 and True, need traces of their own.
    assert len(traces) == len(CONSTANTS)


@both
def test_structures_of_the_same_leaves_are_told_apart(wrap):
    def function(x, structure):
        factor = 5.0 if isinstance(structure, list) else 7.0 if isinstance(structure, dict) else 11.0
        return factor * tf.sin(x) * tf.add_n(tf.nest.flatten(structure))

    wrapped, one = wrap(function), tf.ones([], tf.float64)
    for structure, factor in [([one], 5.0), ({"a": one}, 7.0), ((one,), 11.0), ({"b": one}, 7.0)] * 2:
        assert_equal(vjp(wrapped, X, structure), by_hand(factor)[:2])


# How scan and while_loop multiply by a number in each step: LOOPS[name](step)(x), with step(y) a new y.
def by_scan(step):
    return lambda x: cg.scan(lambda carry, _: (step(carry), None), x, length=3)[0]


def by_while_loop(step):
    return lambda x: cg.while_loop(lambda y, t: t < 3, lambda y, t: (step(y), t + 1), (x, 0), maximum_iterations=9)[0]


def by_recompute_grad(step):
    return lambda x: cg.recompute_grad(lambda x: step(step(step(x))))(x)


def times(factor):
    """A new function with each call."""
    return lambda y: y * factor


class Number:
    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


GLOBAL = {"k": 0.0}


# Each yields new functions, the factors by which they multiply, and what the value depends on.
def over_the_same_variable():
    w = variable(2.0)
    for _ in range(3):
        yield times(w), 2.0, [X, w]


def over_other_numbers():
    for k in (2.0, -0.5, 2.0):
        yield times(k), k, [X]
        yield lambda y, k=k: y * k, k, [X]
        yield lambda y, *, k=k: y * k, k, [X]


def over_equal_numbers():
    for k in (0.0, -0.0, False):
        yield lambda y, k=k: y * factor_of(k), factor_of(k), [X]


def over_other_tensors():
    for k in (2.0, -0.5):
        w = tf.constant(k, tf.float64)
        yield times(w), k, [X, w]


def over_other_variables():
    for k in (2.0, -0.5):
        w = variable(k)
        yield times(w), k, [X, w]


def over_a_variable_that_changes():
    w = variable(0.0)
    for k in (2.0, -0.5):
        w.assign(k)
        yield times(w), k, [X, w]


def over_objects_that_change():
    items, names, number, array = [0.0], {"k": 0.0}, Number(0.0), np.zeros([])
    for k in (2.0, -0.5):
        items[0] = names["k"] = number.k = GLOBAL["k"] = k
        array.fill(k)
        yield lambda y: y * items[0], k, [X]
        yield lambda y: y * names["k"], k, [X]
        yield lambda y: y * number.k, k, [X]
        yield lambda y: y * array, k, [X]
        yield lambda y: y * GLOBAL["k"], k, [X]


def over_other_functions():
    for k in (2.0, 5.0):
        yield calling(functools.partial(operator.mul, k)), k, [X]


def calling(function):
    return lambda y: function(y)


def of_the_same_text():
    one, other = (lambda y: y * 2.0), (lambda y: y * 3.0)
    for step, k in [(one, 2.0), (other, 3.0)] * 2:
        yield step, k, [X]


CLOSURES = [
    over_the_same_variable,
    over_other_numbers,
    over_equal_numbers,
    over_other_tensors,
    over_other_variables,
    over_a_variable_that_changes,
    over_objects_that_change,
    over_other_functions,
    of_the_same_text,
]


@pytest.mark.parametrize("loop", [by_scan, by_while_loop, by_recompute_grad])
@pytest.mark.parametrize("closures", CLOSURES)
def test_new_functions_that_close_over(closures, loop):
    for step, factor, sources in closures():
        found = vjp(loop(step), X, sources=sources)
        expected = [X * factor**3, DY * factor**3, np.sum(DY * X * 3 * factor**2)]
        assert_equal(found, expected[: 1 + len(sources)])


# Functions that need the numbers in a Tensor.
NEEDS_NUMBERS = {
    "float": lambda x: x * float(x[0]),
    "int": lambda x: x * int(x[0]),
    "range": lambda x: x * sum(range(tf.cast(x[0], tf.int32))),
    "format": lambda x: x * float(f"{x[0]:.2f}"),
    "math": lambda x: x * math.sin(x[0]),
    "numpy": lambda x: x * np.sin(x),
    "numpy()": lambda x: x * float(x.numpy()[0]),
    "if": lambda x: x if x[0] > 0 else -x,
    "and": lambda x: x * (2.0 if x[0] > 0 and x[1] > 0 else 3.0),
    "list": lambda x: x * next(iter(x)),
}


def named(function, name):
    """The function under another name, for messages."""

    def body(x):
        return tf.sin(function(x))

    body.__name__ = body.__qualname__ = name
    return body


def _by_scan(step):
    def user_function(carry, _):
        return step(carry), None

    return lambda x: cg.scan(user_function, x, length=3)[0]


def _by_while_loop(step):
    def user_function(t, y):
        return t + 1, step(y)

    return lambda x: cg.while_loop(lambda t, y: t < 3, user_function, (0, x), maximum_iterations=9)[1]


def _by_cond(step):
    def user_function(t, y):
        return tf.reduce_sum(step(y)) < 100.0

    # The condition is traced after the first step.
    return lambda x: cg.while_loop(user_function, lambda t, y: (t + 1, y), (0, x), maximum_iterations=9)[1]


APIS = {
    "recompute_grad": lambda f: cg.recompute_grad(named(f, "user_function")),
    "override_gradients": lambda f: overridden(named(f, "user_function")),
    "scan": _by_scan,
    "while_loop": _by_while_loop,
    "while_loop (cond)": _by_cond,
}


@pytest.mark.parametrize(("kind", "api"), pairs(NEEDS_NUMBERS, APIS))
def test_a_function_that_needs_the_numbers_is_told_what_to_do(api, kind):
    function = APIS[api](NEEDS_NUMBERS[kind])
    assert NEEDS_NUMBERS[kind](X).shape == X.shape  # Without the API it runs.
    with pytest.raises(TypeError) as error:
        vjp(function, X)
    message = str(error.value)
    assert message.startswith(f"{api.split()[0]}: 'user_function' ")
    for remedy in ("tf.function", "numpy_function"):
        assert remedy in message
    for noise in ("{{", "[Op:", "\n"):
        assert noise not in message


def func_graphs():
    """All graphs of functions that are alive."""
    return [value for value in gc.get_objects() if type(value) is tf_internal.FuncGraph]


def recomputed(f):
    return cg.recompute_grad(f)


def scanned(f):
    def step(carry, _):
        return f(carry), None

    return lambda x: cg.scan(step, x, length=3)[0]


def looped(f):
    def cond(t, y):
        return t < 3

    def body(t, y):
        return t + 1, f(y)

    return lambda x: cg.while_loop(cond, body, (0, x), maximum_iterations=3)[1]


KINDS = {"recompute_grad": recomputed, "override_gradients": overridden, "scan": scanned, "while_loop": looped}


@pytest.mark.parametrize("wrap", KINDS.values(), ids=KINDS)
def test_one_collection_of_garbage_frees_all_graphs_of_a_function(wrap):
    w = variable(2.0)
    for _ in range(3):
        gc.collect()
    before = len(func_graphs())

    def function(x):
        return w * tf.sin(x)

    wrapped = wrap(function)
    vjp(wrapped, X, sources=[X, w])
    assert len(func_graphs()) > before
    alive = weakref.ref(function)
    del wrapped, function
    assert alive() is None  # Without a collection of garbage.
    gc.collect()
    assert len(func_graphs()) == before


@both
def test_no_graph_outlives_its_function(wrap):
    traces = Traces()

    def function(x):
        traces.note()
        return tf.sin(x)

    wrapped = wrap(function)
    vjp(wrapped, X)
    assert traces.graphs[0]() is not None
    del wrapped, function
    gc.collect()
    assert [graph() for graph in traces.graphs] == [None] * len(traces)


@both
def test_no_graph_outlives_the_object_of_its_method(wrap):
    traces = Traces()

    class Model:
        def __init__(self):
            self.w = variable(2.0)
            self.wrapped = wrap(self.call)

        def call(self, x):
            traces.note()
            return self.w * tf.sin(x)

    model = Model()
    assert_equal(vjp(model.wrapped, X, sources=[X, model.w]), by_hand(2.0))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    gc.collect()  # The first one frees the model, which refers to itself.
    assert [graph() for graph in traces.graphs] == [None] * len(traces)


def test_no_graph_outlives_the_step_of_a_loop():
    traces = Traces()

    def run():
        def step(y):
            traces.note()
            return tf.sin(y)

        def scanned(carry, _):
            return step(carry), None

        def body(t, y):
            return t + 1, step(y)

        vjp(lambda x: cg.scan(scanned, x, length=3)[0], X)
        vjp(lambda x: cg.while_loop(lambda t, y: t < 3, body, (0, x), maximum_iterations=3)[1], X)

    run()
    assert traces.graphs
    gc.collect()
    assert [graph() for graph in traces.graphs] == [None] * len(traces)


class Holder:
    """Reads a Tensor or variable that is an attribute."""

    @cg.recompute_grad
    def recomputed(self, x):
        return self.held * tf.sin(x)

    def step(self, carry, x):
        return carry, self.held * tf.sin(x)

    def body(self, y):
        return (self.held * tf.sin(y),)


@pytest.mark.parametrize("make", [variable, lambda value: tf.constant(value, tf.float64)], ids=["variable", "tensor"])
def test_a_new_tensor_outside_is_a_new_trace(make):
    holder, cell = Holder(), {}
    functions = [
        holder.recomputed,
        cg.recompute_grad(lambda x: cell["held"] * tf.sin(x)),
        overridden(lambda x: cell["held"] * tf.sin(x)),
        lambda x: cg.scan(holder.step, 0.0, x)[1],
        lambda x: cg.while_loop(lambda y: tf.reduce_all(y == X), holder.body, (x,), 1)[0],
    ]
    for value in (2.0, 3.0, 2.0):
        held = holder.held = cell["held"] = make(value)
        for function in functions:
            with tf.GradientTape() as tape:
                tape.watch([X, held])
                y = function(X)
            assert_equal([y, *tape.gradient(y, [X, held], output_gradients=DY)], by_hand(value))


@pytest.mark.parametrize(
    "decorate",
    [
        lambda f: cg.custom_gradient(lambda x: (f(x), lambda dy: dy)),
        lambda f: cg.custom_vjp(lambda x: (f(x), x), lambda x, dy: dy),
        cg.recompute_grad,
        overridden,
        scanned,
        looped,
    ],
    ids=["custom_gradient", "custom_vjp", *KINDS],
)
def test_what_a_call_keeps_for_its_gradient_goes_with_the_tape(decorate):
    function = decorate(tf.sin)
    vjp(function, X)
    gc.collect()
    gc.disable()
    try:
        x = tf.identity(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            function(x)
        alive = weakref.ref(x)
        del x, tape
        assert alive() is None
    finally:
        gc.enable()


def test_loops_with_a_new_step_keep_no_variable():
    def alive_after(size):
        v, ones = variable(np.ones(size)), tf.ones([size], tf.float64)
        with tf.GradientTape() as tape:
            y = cg.scan(lambda carry, x: (carry * v * x, None), ones, X)[0]
            (y,) = cg.while_loop(lambda y: True, lambda y: (y * v,), (y,), maximum_iterations=2)
        np.testing.assert_allclose(tape.gradient(y, v), np.full(size, 5 * np.prod(X)))
        return [weakref.ref(v), weakref.ref(v.handle)]

    alive = [reference for size in range(1, 10) for reference in alive_after(size)]
    gc.collect()
    assert [reference() for reference in alive] == [None] * len(alive)


def test_steps_that_compute_the_same_have_one_fingerprint():
    """The order in which TensorFlow lists control inputs varies."""
    v = variable(np.ones([4]))

    def step(y):
        for _ in range(10):
            y = tf.sin(y * v)
        return [y]

    spec, wording = tf.TensorSpec([4], tf.float64), without_gradient_function("scan")
    steps = [LoopStep(wording, step, [spec]) for _ in range(8)]
    assert len({step.fingerprint() for step in steps}) == 1


@both
def test_an_error_in_a_tf_scan_before_does_not_matter(wrap):
    """TensorFlow leaves a variable scope behind that eager mode refuses to open."""

    @tf.function
    def fails(x):
        return tf.scan(lambda carry, x: operator.getitem({}, "a bug"), x, 0.0)

    with pytest.raises(KeyError, match="a bug"):
        fails(X)
    assert_equal(vjp(wrap(tf.sin), X), [np.sin(X), DY * np.cos(X)])
