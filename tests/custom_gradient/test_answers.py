"""What a gradient function may return: flat or in the structure of the arguments. tests/messages has what is refused."""

import collections
import functools
import inspect
import types

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients
from ..support.tensors import pairs

pytestmark = pytest.mark.core

X, Y, Z = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])
DY = np.array([1.0, 10.0])


OBJECT = object()
Pair = collections.namedtuple("Pair", ["first", "second"])


def of_two(x, y): ...
def of_one_and_more(x, k=None, name=None): ...
def of_flag(x, flag, y): ...
def of_any(*args): ...
def of_keywords(x, **options): ...
def of_method(self, x, flag): ...


def generator(a, b):
    yield a
    yield b


# The signature, the call with up to three Tensors, and the answer, which gets and gives 7 dy, 5 dy and 3 dy for them.
FITS = {
    "a tuple": (of_two, lambda f, x, y: f(x, y), lambda a, b: (a, b)),
    "keywords out of order": (of_two, lambda f, x, y: f(y=y, x=x), lambda a, b: [a, b]),
    "a generator": (of_two, lambda f, x, y: f(x, y), generator),
    "the values of a dict": (of_two, lambda f, x, y: f(x, y), lambda a, b: {"z": a, "c": b}.values()),
    "other dtypes": (of_two, lambda f, x, y: f(x, y), lambda a, b: (tf.cast(a, "float32"), tf.cast(b, "half"))),
    "a list beside": (of_two, lambda f, x, y, z: f([x, y], z), lambda a, b, c: ([a, b], c)),
    "a flat list": (of_two, lambda f, x, y, z: f([x, [y]], z), lambda *g: g),
    "None for a list": (of_two, lambda f, x, y, z: f([x, y], z), lambda a, b, c: (None, c)),
    "the only list": (of_any, lambda f, x, y: f([x, y]), lambda a, b: [a, b]),
    "a namedtuple": (of_any, lambda f, x, y: f(Pair(x, y)), lambda a, b: (Pair(a, b),)),
    "a dict beside": (of_two, lambda f, x, y, z: f({"b": x, "a": y}, z), lambda a, b, c: ({"b": a, "a": b}, c)),
    "a flat dict": (of_two, lambda f, x, y, z: f({"b": y, "a": x}, z), lambda *g: g),
    "the only dict": (of_one_and_more, lambda f, x, y: f({"x": y, "k": x}), lambda a, b: {"k": a, "x": b}),
    "a dict in the only list": (of_one_and_more, lambda f, x, y: f([{"a": x}, y]), lambda a, b: [{"a": a}, b]),
    "dicts in stars": (of_any, lambda f, x, y: f({"a": x}, {"a": y}), lambda a, b: ({"a": a}, {"a": b})),
    "a number in a dict": (of_one_and_more, lambda f, x: f({"n": 3, "x": x}), lambda a: {"x": a}),
    "a constant in a list": (of_one_and_more, lambda f, x: f([3.0, x]), lambda a: [None, a]),
    "**kwargs": (of_keywords, lambda f, x, y, z: f(x, d=y, n=3, a=z), lambda a, b, c: (a, {"d": b, "a": c})),
    "**kwargs of one": (of_keywords, lambda f, x, y: f(x, n=3, a=y), lambda a, b: (a, b, None)),
    "**kwargs of None": (of_keywords, lambda f, x, y, z: f(x, d=y, a=z), lambda a, b, c: (a, None, None)),
    "a flag": (of_flag, lambda f, x, y: f(x, True, y), lambda a, b: (a, None, b)),
    "no flag": (of_flag, lambda f, x, y: f(x, True, y), lambda a, b: (a, b)),
    "one of two defaults": (of_one_and_more, lambda f, x: f(x, "k", None), lambda a: (a, None)),
    "a float": (of_one_and_more, lambda f, x: f(x, 2.0), lambda a: (a, 9.0 * a)),
    "an array": (of_one_and_more, lambda f, x: f(x, Y), lambda a: (a, 9.0 * a)),
    "an object": (of_method, lambda f, x: types.MethodType(f, OBJECT)(x, True), lambda a: (None, a)),
    "no object": (of_method, lambda f, x: types.MethodType(f, OBJECT)(x, True), lambda a: (a, None)),
}
WITHOUT = {"None for a list": "ab", "**kwargs of None": "bc"}  # The gradients that the answer does not give.

FORMS = {f"{mode} {api}": (mode, api) for mode in ("eager", "traced") for api in ("custom_gradient", "custom_vjp")}


@pytest.mark.parametrize(("case", "form"), pairs(FITS, FORMS))
def test_each_gradient_goes_to_its_argument(case, form):
    (signature, call, answer), (mode, api) = FITS[case], FORMS[form]
    sources = [tf.constant(a) for a in (X, Y, Z)][: len(inspect.signature(call).parameters) - 1]

    def grad_fn(dy):
        return answer(*(k * dy for k in (7.0, 5.0, 3.0)[: len(sources)]))

    @functools.wraps(signature)
    def value(*args, **kwargs):
        leaves = tf.nest.flatten((args, kwargs))
        y = sum(leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.dtype == "float64")
        return [y, grad_fn if api == "custom_gradient" else None]  # A list is a pair, too.

    apply = cg.custom_gradient if api == "custom_gradient" else lambda f: cg.custom_vjp(f, lambda _, dy: grad_fn(dy))
    found = gradients(mode, functools.partial(call, apply(value)), sources, tf.constant(DY))
    for name, number, gradient in zip("abc", (7, 5, 3), found, strict=False):
        if name in WITHOUT.get(case, ""):
            assert gradient is None
        else:
            np.testing.assert_allclose(gradient, number * DY, rtol=1e-3 if case == "other dtypes" else 1e-7)
            assert gradient.dtype == tf.float64


INTEGERS = {
    "a Tensor": tf.constant([3, 4]),
    "bools": tf.constant([True, False]),
    "an array": np.array([3, 4], np.int32),
    "an array of bools": np.array([True, False]),
    "a number of NumPy": np.uint8(3),
}
DROPPED = [
    lambda: tf.zeros([2], tf.bool),
    lambda: tf.zeros([2], tf.int32),
    lambda: np.zeros([2], np.int64),
    lambda: 0,
    lambda: None,
]


def dropping(make):
    return cg.custom_gradient(lambda x, n: (x, lambda dy: (2.0 * dy, make())))


@pytest.mark.parametrize("mode", RUNS)
def test_integers_and_bools_for_integers_and_bools_are_dropped(mode):
    """The tape and the accumulator are around, so that an array becomes a Tensor in a tf.function."""

    def function(x, argument):
        for make in DROPPED:
            x = dropping(make)(x, argument)
        return x

    for name, argument in INTEGERS.items():
        run = RUNS[mode](function)
        (dx,) = gradients("eager", lambda x, run=run, argument=argument: run(x, argument), [tf.constant(X)], DY)
        np.testing.assert_allclose(dx, 2.0 ** len(DROPPED) * DY, err_msg=name)
        if mode == "traced":
            with tf.autodiff.ForwardAccumulator(x := tf.constant(X), tf.constant(DY)) as accumulator:
                y = run(x, argument)
            np.testing.assert_allclose(accumulator.jvp(y), 2.0 ** len(DROPPED) * DY, err_msg=name)


def test_an_answer_beside_gradients_of_variables(gradient):
    v = tf.Variable(Y)

    @cg.custom_gradient
    def function(x, *, k):
        return x * k["a"] * v, lambda dy, variables: ([7.0 * dy, {"a": 5.0 * dy}], (3.0 * dy for _ in variables))

    found = gradient(lambda x, y, v: function(x, k={"a": y}), [X, Y, v], DY)
    np.testing.assert_allclose(found, (7 * DY, 5 * DY, 3 * DY))


def test_complex_inputs_take_real_gradients(gradient):
    function = cg.custom_gradient(lambda z: (z, lambda dz: tf.math.real(dz)))
    (dz,) = gradient(function, [X + 1j], tf.constant(DY + 3j))
    np.testing.assert_allclose(dz, DY)
