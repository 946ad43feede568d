"""Gradients by name, in iterators and in other dtypes: grad_fn's answer is never dropped or guessed."""

import dataclasses
import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import eager, jit, traced
from ..support.tensors import pairs

pytestmark = pytest.mark.core

X, Y, DY = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([1.0, 10.0])
MODES = {"eager": eager, "traced": traced, "jit": jit}
WRAPPERS = {"eager": lambda f: f, "traced": tf.function, "jit": functools.partial(tf.function, jit_compile=True)}


def vjp(answer):
    return cg.custom_vjp(lambda x, y: (x * y, None), lambda residuals, dy: answer(dy))


def gradient_decorated(answer):
    return cg.custom_gradient(lambda x, y: (x * y, answer))


DECORATORS = {"custom_gradient": gradient_decorated, "custom_vjp": vjp}


def generator(dy):
    yield 7.0 * dy
    yield 5.0 * dy


# All mean 7 dy for x and 5 dy for y.
ANSWERS = {
    "generator_function": generator,
    "by_name": lambda dy: {"y": 5.0 * dy, "x": 7.0 * dy},
    "generator": lambda dy: (k * dy for k in (7.0, 5.0)),
    "map": lambda dy: map(lambda k: k * dy, (7.0, 5.0)),
    "zip": lambda dy: zip([7.0 * dy], [5.0 * dy], strict=True),
    "dict_view": lambda dy: {"first": 7.0 * dy, "a": 5.0 * dy}.values(),
    "single_precision": lambda dy: (tf.cast(7.0 * dy, tf.float32), tf.cast(5.0 * dy, tf.float16)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("answer", "decorator"), pairs(ANSWERS, DECORATORS))
def test_each_gradient_goes_to_its_argument(answer, decorator, mode):
    _, (dx, dy) = MODES[mode](DECORATORS[decorator](ANSWERS[answer]), [X, Y], DY)
    np.testing.assert_array_equal(dx, 7 * DY)
    np.testing.assert_array_equal(dy, 5 * DY)
    assert dx.dtype == dy.dtype == np.float64


def call_of_a_dict(d, x):
    return d["a"] * d["b"] * x


# Calls whose gradients are 7 dy for a, 5 dy for b and 3 dy for x, in any order of keys.
STRUCTURES = {
    "nested": lambda d, x: (call_of_a_dict(d, x), lambda dy: {"x": 3.0 * dy, "d": {"b": 5.0 * dy, "a": 7.0 * dy}}),
    "nested_in_a_tuple": lambda d, x: (call_of_a_dict(d, x), lambda dy: ({"b": 5.0 * dy, "a": 7.0 * dy}, 3.0 * dy)),
    "flat": lambda d, x: (call_of_a_dict(d, x), lambda dy: (7.0 * dy, 5.0 * dy, 3.0 * dy)),
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_dicts_inside_are_taken_by_key(gradient, structure):
    function = cg.custom_gradient(STRUCTURES[structure])
    da, db, dx = gradient(lambda a, b, x: function({"b": b, "a": a}, x), [X, Y, X], DY)
    np.testing.assert_allclose((da, db, dx), (7 * DY, 5 * DY, 3 * DY))


KEYWORDS = {
    "expanded": lambda dy: {"b": 5.0 * dy, "x": 3.0 * dy, "a": 7.0 * dy},
    "by_the_parameter": lambda dy: {"options": {"b": 5.0 * dy, "a": 7.0 * dy}, "x": 3.0 * dy},
    "structure": lambda dy: (3.0 * dy, {"b": 5.0 * dy, "a": 7.0 * dy}),
}


@pytest.mark.parametrize("answer", KEYWORDS)
def test_keywords_of_any_name_have_gradients_by_name(gradient, answer):
    function = cg.custom_gradient(lambda x, **options: (x * options["a"] * options["b"], KEYWORDS[answer]))
    da, db, dx = gradient(lambda a, b, x: function(x, b=b, a=a), [X, Y, X], DY)
    np.testing.assert_allclose((da, db, dx), (7 * DY, 5 * DY, 3 * DY))


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize(
    "answer", [lambda dy: (dy, dy, dy), lambda dy: [dy, [None, dy]], lambda dy: iter((dy, dy, dy))]
)
def test_several_gradients_of_keywords_without_names_are_an_error(decorator, answer):
    """A tf.function sorts keyword arguments by name, so that the gradients would change places without a word."""

    def value(x, **options):
        return x * options["scale"] * options["bias"] * options["number"]

    if decorator == "custom_gradient":
        function, subject = cg.custom_gradient(lambda x, **options: (value(x, **options), answer)), "grad_fn"
    else:
        function = cg.custom_vjp(lambda x, **options: (value(x, **options), None), lambda _, dy: answer(dy))
        subject = "backward '<lambda>'"
    message = (
        f"{decorator}: {subject} of '<lambda>' must return the gradients of '**options' in a dict with the keys 'scale', "
        "'bias', got 3 gradients without names: keyword arguments have no order that TensorFlow keeps. Return the dict "
        "after the gradients of the other inputs."
    )
    for mode in ("eager", "traced"):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            MODES[mode](lambda x, y: function(x, scale=y, bias=2.0 * y, number=3), [X, Y], DY)


KEYWORDS_WITHOUT_NAMES = {
    "a single one": (lambda dy: (3.0 * dy, 7.0 * dy), {"a": 2.0}),
    "a number beside it": (lambda dy: (3.0 * dy, 7.0 * dy, None), {"a": 2.0, "k": 4}),
    "none": (lambda dy: (3.0 * dy, None, None), {"a": 2.0, "b": 5.0}),
}


@pytest.mark.parametrize("case", KEYWORDS_WITHOUT_NAMES)
def test_gradients_of_keywords_without_names_are_right_where_they_cannot_change_places(gradient, case):
    answer, options = KEYWORDS_WITHOUT_NAMES[case]
    function = cg.custom_gradient(lambda x, **options: (x * options["a"], answer))
    tensors = [tf.constant([number] * 2, tf.float64) for number in options.values() if isinstance(number, float)]

    def call(x, *tensors):
        given = iter(tensors)
        return function(x, **{k: next(given) if isinstance(v, float) else v for k, v in options.items()})

    dx, da, *_ = gradient(call, [X, *tensors], DY)
    np.testing.assert_allclose(dx, 3 * DY)
    if case != "none":
        np.testing.assert_allclose(da, 7 * DY)


@pytest.mark.parametrize("keys", [("a", "b"), ("d", "e"), ("d", "k")])
def test_the_gradient_of_the_only_dict_may_have_its_structure(gradient, keys):
    """Even if one of its keys is the name of an argument."""
    first, second = keys
    function = cg.custom_gradient(
        lambda d, k=None: (d[first] * d[second], lambda dy: {second: 5.0 * dy, first: 7.0 * dy})
    )
    da, db = gradient(lambda a, b: function({first: a, second: b}), [X, Y], DY)
    np.testing.assert_allclose((da, db), (7 * DY, 5 * DY))


def test_an_argument_without_tensors_may_be_missing_in_a_dict(gradient):
    function = cg.custom_gradient(lambda name, x, k: (x * k, lambda dy: {"x": 7.0 * dy}))
    (dx,) = gradient(lambda x: function("name", x, 3), [X], DY)
    np.testing.assert_allclose(dx, 7 * DY)


def test_a_dict_of_gradients_beside_gradients_of_variables(gradient):
    v = tf.Variable(Y)

    @cg.custom_gradient
    def function(x, y):
        return x * y * v, lambda dy, variables: ({"y": 5.0 * dy, "x": 7.0 * dy}, (3.0 * dy for _ in variables))

    dx, dy, dv = gradient(lambda x, y, v: function(x, y), [X, Y, v], DY)
    np.testing.assert_allclose((dx, dy, dv), (7 * DY, 5 * DY, 3 * DY))


@dataclasses.dataclass
class Params:
    weight: object


class Mode:
    pass


NUMBER = " For a gradient, pass it as a floating-point Tensor."
OTHER = ""
OBJECT = (
    " Pass its Tensors as arguments, or in a tuple or a dict, or make it a tf.experimental.ExtensionType: TensorFlow does "
    "not look into other objects."
)
WITHOUT_TENSORS = {
    "int": (3, "an int", NUMBER),
    "text": ("fast", "a str", OTHER),
    "none": (None, "None", OTHER),
    "bool": (True, "a bool", NUMBER),
    "integers": (np.array([1, 2]), "an ndarray", NUMBER),
    "function": (tf.sin, "a function", OTHER),
    "dataclass": (Params(3.0), "a Params", OBJECT),
    "object": (Mode(), "a Mode", OBJECT),
}


@pytest.mark.parametrize(("leaf", "mode"), pairs(WITHOUT_TENSORS, MODES))
@pytest.mark.parametrize("api", ["custom_gradient", "custom_vjp"])
def test_a_gradient_for_what_holds_no_tensor_is_an_error(leaf, api, mode):
    value, kind, remedy = WITHOUT_TENSORS[leaf]
    if api == "custom_gradient":
        function, subject = cg.custom_gradient(lambda x, p: (2.0 * x, lambda dy: (dy, dy))), "grad_fn"
    else:
        function = cg.custom_vjp(lambda x, p: (2.0 * x, None), lambda residuals, dy: (dy, dy))
        subject = "backward '<lambda>'"
    message = (
        f"{api}: {subject} of '<lambda>' must return None for 'p', which is {kind}: only Tensors and Variables have "
        f"gradients.{remedy}"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        MODES[mode](lambda x: function(x, value), [X], DY)


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_of_floats_for_integers_is_an_error(mode):
    function = cg.custom_gradient(lambda x, n: (x * tf.cast(n, x.dtype), lambda dy: (dy, dy)))
    message = (
        "custom_gradient: grad_fn of '<lambda>' must return a gradient of dtype int32 for 'n', got float64. Return None: "
        "only floating-point and complex numbers have gradients."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        MODES[mode](lambda x: function(x, tf.constant([2, 3])), [X], DY)


@pytest.mark.parametrize("constant", [2.0, np.float64(2.0), Y], ids=["float", "number", "array"])
def test_a_gradient_for_a_constant_is_accepted_and_not_used(gradient, constant):
    """So the same grad_fn works for the Tensors that a tf.function makes from arrays."""
    function = cg.custom_gradient(lambda x, k: (x * k, lambda dy: (dy * k, dy * x)))
    (dx,) = gradient(lambda x: function(x, constant), [X], DY)
    np.testing.assert_allclose(dx, DY * constant)


def test_nested_dicts_of_other_keys_are_an_error(gradient):
    function = cg.custom_gradient(lambda d: (d["a"] * d["b"], lambda dy: ({"p": dy, "q": dy},)))
    message = (
        "custom_gradient: grad_fn of '<lambda>' returned a dict with the keys 'p', 'q' for 'd', which has the keys 'a', "
        "'b'. Use the keys of the input."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        gradient(lambda a, b: function({"a": a, "b": b}), [X, Y], DY)


PAIRS = {
    "custom_gradient": cg.custom_gradient(lambda x: [x, lambda dy: 7.0 * dy]),
    "custom_vjp": cg.custom_vjp(lambda x: [x, None], lambda residuals, dy: 7.0 * dy),
    "custom_jvp": cg.custom_jvp(tf.identity),
}
PAIRS["custom_jvp"].defjvp(lambda primals, tangents: [primals[0], 7.0 * tangents[0]])


@pytest.mark.parametrize("name", PAIRS)
def test_a_list_is_a_pair_too(name):
    _, (dx,) = eager(PAIRS[name], [X], DY)
    np.testing.assert_allclose(dx, 7 * DY)


# Dtypes


def with_gradient(x, gradient):
    return cg.custom_gradient(lambda x: (x, lambda dy: gradient))(x)


CASTS = {
    "argument": lambda x: cg.custom_gradient(lambda x: (x, lambda dy: tf.cast(7 * dy, tf.float64)))(x),
    "array": lambda x: cg.custom_gradient(lambda x: (x, lambda dy: np.array([7.0, 70.0])))(x),
    "int_of_python": lambda x: tf.stack([with_gradient(x[0], 7), with_gradient(x[1], 70)]),
    "slices": lambda x: cg.custom_gradient(
        lambda x: (x, lambda dy: tf.IndexedSlices(tf.cast(7 * dy, tf.float64), tf.constant([0, 1])))
    )(x),
    "half": lambda x: cg.custom_gradient(lambda x: (x, lambda dy: tf.cast(7 * dy, tf.bfloat16)))(x),
    "backward": lambda x: cg.custom_vjp(lambda x: (x, x), lambda r, dy: tf.cast(7 * dy, tf.float64))(x),
    "passed": lambda x: 7 * cg.grad_pass_through(lambda x: tf.cast(x, tf.float64))(x),
}


@pytest.mark.parametrize(("case", "wrap"), pairs(CASTS, WRAPPERS))
def test_another_real_dtype_is_cast(case, wrap):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = CASTS[case](x)
        return tf.convert_to_tensor(tape.gradient(y, x, output_gradients=tf.cast(DY, y.dtype)))

    dx = WRAPPERS[wrap](run)(tf.constant(X, tf.float32))
    assert dx.dtype == tf.float32
    np.testing.assert_allclose(dx, 7 * DY)


V = tf.Variable(tf.cast(Y, tf.float32))


def wide(gradient):
    return tf.cast(gradient, tf.float64)


def times_v():
    function = cg.custom_jvp(lambda x: x * V)

    @function.defjvp
    def rule(primals, tangents, variables, variable_tangents):
        parts = zip((7, 5), (*tangents, *variable_tangents), strict=True)
        return function(*primals), sum(wide(k * t) for k, t in parts if t is not None)

    return function


# All have the gradients 7 dy for x and 5 dy for V, in float64.
WIDE = {
    "custom_gradient": cg.custom_gradient(lambda x: (x * V, lambda dy, variables: (wide(7 * dy), [wide(5 * dy)]))),
    "custom_vjp": cg.custom_vjp(lambda x: (x * V, None), lambda r, dy, variables: (wide(7 * dy), [wide(5 * dy)])),
    "custom_jvp": times_v(),
    "override_gradients": cg.override_gradients(lambda x: x * V, {"Mul": lambda op, dy: (wide(7 * dy), wide(5 * dy))}),
}


def in_a_loop(function):
    return lambda x: tf.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=1)[
        1
    ]


@pytest.mark.parametrize("place", ["alone", "in a loop"])
@pytest.mark.parametrize("wrap", [*WRAPPERS, "reloaded"])
@pytest.mark.parametrize("api", WIDE)
def test_gradients_of_arguments_and_variables_are_cast(api, wrap, place, tmp_path):
    function, v = WIDE[api], V
    if wrap == "reloaded":
        model = tf.Module()
        model.v, model.f = V, tf.function(function, input_signature=[tf.TensorSpec([2])])
        tf.saved_model.save(model, tmp_path)
        loaded = tf.saved_model.load(tmp_path)
        function, v = loaded.f, loaded.v
    function = function if place == "alone" else tf.function(in_a_loop(function))

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, [x, v], output_gradients=tf.cast(DY, tf.float32))

    dx, dv = WRAPPERS.get(wrap, WRAPPERS["eager"])(run)(tf.constant(X, tf.float32))
    assert dx.dtype == dv.dtype == tf.float32
    np.testing.assert_allclose(dx, 7 * DY)
    np.testing.assert_allclose(dv, 5 * DY)


def test_complex_inputs_take_real_gradients(gradient):
    function = cg.custom_gradient(lambda z: (z, lambda dz: tf.math.real(dz)))
    (dz,) = gradient(function, [X + 1j], tf.constant(DY + 3j))
    np.testing.assert_allclose(dz, DY)


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_tangent_is_cast(wrap):
    function = cg.custom_jvp(tf.identity)
    function.defjvp(lambda primals, tangents: (primals[0], tf.cast(7 * tangents[0], tf.float64)))

    def run(x):
        with tf.autodiff.ForwardAccumulator(x, tf.cast(DY, tf.float32)) as accumulator:
            y = function(x)
        return accumulator.jvp(y)

    np.testing.assert_allclose(WRAPPERS[wrap](run)(tf.constant(X, tf.float32)), 7 * DY)


def test_a_loaded_model_has_gradients_by_name_and_cast(tmp_path, gradient):
    model = tf.Module()
    model.f = tf.function(
        cg.custom_gradient(lambda x, y: (x * y, lambda dy: {"y": tf.cast(5 * dy, tf.float64), "x": 7 * dy})),
        input_signature=[tf.TensorSpec([2])] * 2,
    )
    tf.saved_model.save(model, tmp_path)
    sources = [tf.constant(array, tf.float32) for array in (X, Y)]
    found = gradient(tf.saved_model.load(tmp_path).f, sources, tf.constant(DY, tf.float32))
    np.testing.assert_array_equal(found, [7 * DY, 5 * DY])


def test_a_list_that_changes_after_the_call_keeps_its_gradient():
    operands = [3.0, tf.constant(X)]
    function = cg.custom_gradient(lambda xs: (xs[0] * xs[1], lambda dy: [None, 2.0 * dy]))
    with tf.GradientTape() as tape:
        tape.watch(operands[1])
        y = function(operands)
    x = operands.pop()
    np.testing.assert_allclose(tape.gradient(y, x, output_gradients=tf.constant(DY)), 2.0 * DY)
