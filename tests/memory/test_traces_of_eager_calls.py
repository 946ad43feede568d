"""Eager calls share traces where that changes no number, and leave nothing that outlives its use."""

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
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-12)


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
        carry = carry * self.w + tf.sin(x)
        return carry, carry

    def goes_on(self, t, y):
        return t < tf.cast(self.w, tf.int32)

    def body(self, t, y):
        return t + 1, y * self.w


def test_equal_layers_with_a_recomputed_method_have_their_own_variables():
    layers = [Layer(3, variable(2.0)), Layer(3, variable(5.0))]
    assert layers[0] == layers[1]
    for layer in [*layers, *layers]:
        assert_equal(vjp(layer.recomputed, X, sources=[X, layer.w]), by_hand(layer.w.numpy()))


@dataclasses.dataclass(frozen=True)
class RecomputedLayer:
    """As `Layer`, called itself."""

    units: int
    w: tf.Variable = dataclasses.field(compare=False)

    @cg.recompute_grad
    def __call__(self, x):
        return self.w * tf.sin(x)


def test_equal_layers_that_are_called_have_their_own_variables():
    layers = [RecomputedLayer(3, variable(2.0)), RecomputedLayer(3, variable(5.0))]
    for layer in [*layers, *layers]:
        assert_equal(vjp(layer, X, sources=[X, layer.w]), by_hand(layer.w.numpy()))


@both
@pytest.mark.parametrize("bound", [False, True], ids=["objects", "methods"])
def test_equal_callables_have_their_own_variables(wrap, bound):
    layers = [Layer(3, variable(2.0)), Layer(3, variable(5.0))]
    wrapped = [wrap(layer.__call__ if bound else layer) for layer in layers]
    for layer, function in [*zip(layers, wrapped, strict=True)] * 2:
        assert_equal(vjp(function, X, sources=[X, layer.w]), by_hand(layer.w.numpy()))


@both
def test_equal_arguments_have_their_own_variables(wrap):
    function = wrap(lambda x, layer: layer.w * tf.sin(x))
    layers = [Layer(3, variable(2.0)), Layer(3, variable(5.0))]
    for layer in [*layers, *layers]:
        assert_equal(vjp(function, X, layer, sources=[X, layer.w]), by_hand(layer.w.numpy()))
        assert_equal(vjp(lambda x, layer=layer: function(x, layer=layer), X, sources=[X, layer.w]), by_hand(layer.w))


def geometric(w, xs):
    """The values of carry = carry w + sin(x), and their gradients with respect to xs and w, by hand."""
    carry, slope, ys, slopes = 1.0, 0.0, [], []
    for x in xs:
        carry, slope = carry * w + np.sin(x), carry + slope * w
        ys.append(carry)
        slopes.append(slope)
    dy, by_carry, dxs = DY.numpy(), 0.0, []
    for t in reversed(range(len(xs))):
        by_carry = dy[t] + by_carry * w
        dxs.insert(0, by_carry * np.cos(xs[t]))
    return [np.array(ys), np.array(dxs), np.sum(dy * np.array(slopes))]


def test_methods_of_equal_objects_in_scan():
    for layer in [Layer(3, variable(2.0)), Layer(3, variable(5.0))] * 2:
        found = vjp(
            lambda xs, layer=layer: cg.scan(layer.step, tf.constant(1.0, tf.float64), xs)[1], X, sources=[X, layer.w]
        )
        assert_equal(found, geometric(layer.w.numpy(), X.numpy()))


@pytest.mark.parametrize("as_a_method", ["cond", "body", "both"])
def test_methods_of_equal_objects_in_while_loop(as_a_method):
    for layer in [Layer(3, variable(2.0)), Layer(3, variable(5.0))] * 2:
        w = int(layer.w)

        def loop(x, layer=layer, w=w):
            cond = layer.goes_on if as_a_method != "body" else lambda t, y: t < w
            body = layer.body if as_a_method != "cond" else lambda t, y: (t + 1, y * layer.w)
            return cg.while_loop(cond, body, (0, x), maximum_iterations=10)[1]

        expected = [X * w**w, DY * w**w, np.sum(DY * X * w * w ** (w - 1))]
        assert_equal(vjp(loop, X, sources=[X, layer.w]), expected)


@both
def test_new_arrays_do_not_retrace(wrap):
    traces = Traces()

    def function(x, batch, *, weights):
        traces.note()
        return tf.sin(x) * batch["features"] * weights[0]

    wrapped, rng = wrap(function), np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(size=[2, 3])
        found = vjp(lambda x, a=a, b=b: wrapped(x, {"features": a}, weights=[b]), X)
        assert_equal(found, [np.sin(X) * a * b, DY * np.cos(X) * a * b])
    assert len(traces) == 1
    vjp(lambda x: wrapped(x, {"features": a[:1]}, weights=[b]), X)
    vjp(lambda x: wrapped(x, {"features": a.astype(np.float64)}, weights=[b]), X)
    assert len(traces) == 2  # Of another shape.


def test_new_arrays_do_not_retrace_a_step():
    traces = Traces()

    def step(carry, x):
        traces.note()
        carry = carry * 2.0 + tf.sin(x)
        return carry, carry

    rng = np.random.default_rng(0)
    for _ in range(20):
        xs = rng.normal(size=[3])
        _, ys = cg.scan(step, np.ones([]), xs)
        np.testing.assert_allclose(ys, geometric(2.0, xs)[0])
    assert len(traces) == 1


@dataclasses.dataclass
class Config:
    """Has no hash."""

    w: tf.Variable


@both
@pytest.mark.parametrize(
    "make", [lambda w: Layer(1, w), Config, lambda w: [Config(w)]], ids=["frozen", "plain", "list"]
)
def test_objects_that_were_arguments_are_not_kept_alive(wrap, make):
    def function(x, config):
        (config,) = config if isinstance(config, list) else [config]
        return config.w * tf.sin(x)

    wrapped, alive = wrap(function), []
    for i in range(10):
        w = variable(i + 2.0)
        config = make(w)
        assert_equal(vjp(wrapped, X, config, sources=[X, w]), by_hand(i + 2.0))
        alive += map(weakref.ref, config if isinstance(config, list) else [config])
        del config
    gc.collect()
    assert [reference() for reference in alive] == [None] * 10


@both
def test_arrays_that_were_arguments_are_not_kept_alive(wrap):
    wrapped, alive = wrap(lambda x, a: a * tf.sin(x)), []
    for i in range(10):
        a = np.full([3], i + 2.0)
        vjp(wrapped, X, a)
        alive.append(weakref.ref(a))
    del a
    gc.collect()
    assert [reference() for reference in alive] == [None] * 10


@both
def test_an_object_without_a_hash_is_an_argument_as_any_other(wrap):
    traces = Traces()

    def function(x, config):
        traces.note()
        return config.w * tf.sin(x)

    wrapped, configs = wrap(function), [Config(variable(2.0)), Config(variable(5.0))]
    for config in configs * 3:
        assert_equal(vjp(wrapped, X, config, sources=[X, config.w]), by_hand(config.w.numpy()))
    assert len(traces) == 2


@both
def test_new_tensors_and_the_same_variables_do_not_retrace(wrap):
    traces = Traces()

    def function(x, w, v):
        traces.note()
        return w * tf.sin(x) * v

    wrapped, w = wrap(function), variable(2.0)
    for i in range(5):
        x, v = X + i, tf.constant(i + 1.0, tf.float64)
        w.assign_add(1.0)
        found = vjp(wrapped, x, w, v, sources=[x, w, v])
        sine = np.sin(x)
        assert_equal(
            found,
            [
                (i + 3) * (i + 1) * sine,
                DY * (i + 3) * (i + 1) * np.cos(x),
                np.sum(DY * sine) * (i + 1),
                np.sum(DY * sine) * (i + 3),
            ],
        )
    assert len(traces) == 1


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
def test_a_number_and_its_negative_zero_in_a_structure(wrap):
    wrapped = wrap(lambda x, options: math.copysign(2.0, options["s"][0]) * tf.sin(x))
    for s in (0.0, -0.0, 0.0, -0.0):
        assert_equal(vjp(wrapped, X, {"s": [s]}), by_hand(math.copysign(2.0, s))[:2])


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


loops = pytest.mark.parametrize(
    "loop", [by_scan, by_while_loop, by_recompute_grad], ids=["scan", "while_loop", "recompute_grad"]
)


def assert_cubes(loop, step, factor, sources=(X,)):
    """With the gradient by a factor that is among the sources."""
    found = vjp(loop(step), X, sources=sources)
    expected = [X * factor**3, DY * factor**3, np.sum(DY * X * 3 * factor**2)]
    assert_equal(found, expected[: 1 + len(sources)])


def times(factor):
    """A new function with each call."""
    return lambda y: y * factor


@loops
def test_a_new_function_that_closes_over_the_same_objects(loop):
    w = variable(2.0)
    for _ in range(3):
        assert_cubes(loop, times(w), 2.0, [X, w])


@loops
def test_a_new_function_that_closes_over_another_number(loop):
    for k in (2.0, -0.5, 2.0):
        assert_cubes(loop, times(k), k)
        assert_cubes(loop, lambda y, k=k: y * k, k)
        assert_cubes(loop, lambda y, *, k=k: y * k, k)


def times_factor_of(constant):
    return lambda y: y * factor_of(constant)


@loops
def test_a_new_function_that_closes_over_equal_numbers(loop):
    for k in (0.0, -0.0, False):
        assert_cubes(loop, times_factor_of(k), factor_of(k))


@loops
def test_a_new_function_that_closes_over_another_tensor(loop):
    for k in (2.0, -0.5):
        w = tf.constant(k, tf.float64)
        assert_cubes(loop, times(w), k, [X, w])


@loops
def test_a_new_function_that_closes_over_another_variable(loop):
    for k in (2.0, -0.5):
        w = variable(k)
        assert_cubes(loop, times(w), k, [X, w])


@loops
def test_a_new_function_that_closes_over_a_variable_that_changes(loop):
    w = variable(0.0)
    for k in (2.0, -0.5):
        w.assign(k)
        assert_cubes(loop, times(w), k, [X, w])


class Number:
    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


GLOBAL = {"k": 0.0}

# For each kind of state, a function that puts a number there, and one that makes a step of it.
CHANGING = {
    "list": (lambda state, k: state.__setitem__(0, k), lambda state: lambda y: y * state[0], [0.0]),
    "dict": (lambda state, k: state.__setitem__("k", k), lambda state: lambda y: y * state["k"], {"k": 0.0}),
    "attribute": (lambda state, k: setattr(state, "k", k), lambda state: lambda y: y * state.k, Number(0.0)),
    "array": (lambda state, k: state.fill(k), lambda state: lambda y: y * state, np.zeros([])),
    "global": (lambda state, k: GLOBAL.__setitem__("k", k), lambda state: lambda y: y * GLOBAL["k"], None),
}


@loops
@pytest.mark.parametrize("kind", CHANGING)
def test_a_new_function_that_closes_over_something_that_changed(loop, kind):
    change, make, state = CHANGING[kind]
    for k in (2.0, -0.5):
        change(state, k)
        assert_cubes(loop, make(state), k)


def calling(function):
    return lambda y: function(y)


@loops
def test_a_new_function_that_calls_another_new_one(loop):
    for k in (2.0, 5.0):
        assert_cubes(loop, calling(functools.partial(operator.mul, k)), k)


@loops
def test_functions_of_the_same_text_at_another_place(loop):
    one, other = (lambda y: y * 2.0), (lambda y: y * 3.0)
    for step, k in [(one, 2.0), (other, 3.0)] * 2:
        assert_cubes(loop, step, k)


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
    """With another name, which messages show."""

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


@pytest.mark.parametrize("kind", NEEDS_NUMBERS)
@pytest.mark.parametrize("api", APIS)
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


def collect_graphs():
    """The graphs of a trace refer to each other in a way that takes the collector of garbage two runs."""
    gc.collect()
    gc.collect()


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
    collect_graphs()
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
    collect_graphs()
    assert alive() is None
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
    collect_graphs()
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


@pytest.mark.parametrize("sizes", [[3] * 9, range(1, 10)], ids=["one size", "many sizes"])
def test_loops_with_a_new_step_keep_no_variable(sizes):
    def alive_after(size):
        v, ones = variable(np.ones(size)), tf.ones([size], tf.float64)
        with tf.GradientTape() as tape:
            y = cg.scan(lambda carry, x: (carry * v * x, None), ones, X)[0]
            (y,) = cg.while_loop(lambda y: True, lambda y: (y * v,), (y,), maximum_iterations=2)
        np.testing.assert_allclose(tape.gradient(y, v), np.full(size, 5 * np.prod(X)))
        return [weakref.ref(v), weakref.ref(v.handle)]

    alive = [reference for size in sizes for reference in alive_after(size)]
    collect_graphs()
    assert [reference() for reference in alive] == [None] * len(alive)
