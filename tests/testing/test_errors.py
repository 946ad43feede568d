"""Wrong uses of check_gradient, and their messages."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

X = np.array([0.5, -1.0, 2.0])


def f(x):
    return tf.sin(x)


def g(x):
    return tf.sin(x)[:2]


def message_of(error, *args, **options):
    """The whole message of an error of check_gradient."""
    with pytest.raises(error) as raised:
        check_gradient(*args, **options)
    return str(raised.value)


UNKNOWN_MODES = (
    "modes is not a list of known modes; expected some of ['eager', 'function', 'xla', 'vectorized', 'while_loop', 'cond', "
    "'saved_model', 'functional', 'mixed_float16', 'mixed_bfloat16'], got {}. Pass a list of these names."
)
OTHER_SHAPES = (
    "intended_gradient returned other shapes than those of the arguments of 'f'; expected [[3]] (one for each of 'x'), got "
    "{}. Return NumPy arrays of these shapes, or None for zeros."
)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ([X], {"modes": ["eager", "graph"]}, UNKNOWN_MODES.format("['eager', 'graph']")),
        ([X], {"modes": "eager"}, UNKNOWN_MODES.format("'eager'")),
        ([X], {"modes": []}, UNKNOWN_MODES.format("[]")),
        (
            [X],
            {"like": f, "intended_gradient": f},
            "pass either like or intended_gradient, not both: each declares the intended gradient.",
        ),
        (
            [X],
            {"forward_mode": True, "intended_gradient": f},
            "forward_mode=True needs intended tangents, which intended_gradient does not give. Pass a function with that "
            "gradient as like, or leave out forward_mode.",
        ),
        (
            [X],
            {"forward_mode": True, "modes": ["xla"]},
            "forward_mode=True has no mode to run in; expected 'eager' or 'function' among modes, got ['xla']. Add one.",
        ),
        (
            [np.array([1, 2])],
            {},
            "'f' has no float or complex tensor among its arguments to differentiate by. Integers, bools, strings and None "
            "are passed on as they are.",
        ),
        (
            [np.array([1.0, np.inf])],
            {},
            "'x' of 'f' contains inf or nan, around which nothing can be differentiated numerically. Pass finite numbers.",
        ),
        (
            [X],
            {"like": g},
            "like returns other shapes than 'f'; expected [[3]], got [[2]]. Pass a function with the intended gradient and "
            "outputs like those of 'f'.",
        ),
        ([X], {"intended_gradient": lambda dy, x: dy[:2]}, OTHER_SHAPES.format("[[2]]")),
        ([X], {"intended_gradient": lambda dy, x: (dy, None)}, OTHER_SHAPES.format("[[3], None]")),
    ],
)
def test_wrong_values_of_arguments_are_named(args, options, message):
    assert message_of(ValueError, f, args, **options) == f"check_gradient: {message}"


TOLERANCE = "a finite number that is not negative"
STEP = "a number from 1e-12 to 1, or None"


@pytest.mark.parametrize(
    ("option", "value", "error", "expected"),
    [
        ("rtol", np.inf, ValueError, TOLERANCE),
        ("rtol", np.nan, ValueError, TOLERANCE),
        ("rtol", -1, ValueError, TOLERANCE),
        ("rtol", None, TypeError, TOLERANCE),
        ("rtol", "1e-3", TypeError, TOLERANCE),
        ("atol", np.inf, ValueError, TOLERANCE),
        ("atol", -1e-9, ValueError, TOLERANCE),
        ("atol", [1e-3, 1e-3], TypeError, TOLERANCE),
        ("step", 0.0, ValueError, STEP),
        ("step", 1e-300, ValueError, STEP),
        ("step", -0.1, ValueError, STEP),
        ("step", np.inf, ValueError, STEP),
        ("step", np.nan, ValueError, STEP),
        ("step", True, TypeError, STEP),
        ("seed", -1, ValueError, "an integer that is not negative"),
        ("max_elements", -1, ValueError, "a positive integer"),
        ("max_elements", 0, ValueError, "a positive integer"),
        ("max_elements", 2.5, TypeError, "a positive integer"),
    ],
)
def test_numbers_that_nothing_could_be_found_with_are_refused(option, value, error, expected):
    message = f"check_gradient: {option} is invalid; expected {expected}, got {value!r}."
    assert message_of(error, f, [X], **{option: value}) == message


NO_LIST = "args is no sequence of arguments; expected a list or a tuple, got ndarray. Pass [x] for one argument."
NO_FIT = "the arguments do not fit 'f': too many positional arguments. Call it as f(x)."
NO_FUNCTION = "{} is not a function; expected a callable, got {}. Pass the function, not its value."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"f": None}, NO_FUNCTION.format("f", "NoneType")),
        ({"like": X}, NO_FUNCTION.format("like", "ndarray")),
        ({"intended_gradient": X}, NO_FUNCTION.format("intended_gradient", "ndarray")),
        ({"args": X}, NO_LIST),
        ({"args": [X, X]}, NO_FIT),
    ],
)
def test_wrong_types_of_arguments_are_named(options, message):
    assert message_of(TypeError, **{"f": f, "args": [X], **options}) == f"check_gradient: {message}"


def noisy(x):
    return x * tf.random.uniform([3], dtype=tf.float64)


def with_another_number_of_outputs():
    calls = []

    def noisy(x):
        calls.append(1)
        return (x, x)[: len(calls)]

    return noisy


NO_DERIVATIVE = (
    "'{}' returns nothing that has a derivative; expected a float or complex tensor, got {}. Check the function before it "
    "rounds to integers."
)
ANOTHER_VALUE = (
    "'noisy' returns another value when it is called again: it uses random numbers or a state. Use "
    "tf.random.stateless_uniform and the like, with a fixed seed."
)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: tf.argmax(x), NO_DERIVATIVE.format("<lambda>", "['int64']")),
        (print, NO_DERIVATIVE.format("print", "no tensor")),
        (noisy, ANOTHER_VALUE),
        (with_another_number_of_outputs(), ANOTHER_VALUE),
    ],
)
def test_functions_that_cannot_be_differentiated_are_named(function, message):
    assert message_of(ValueError, function, [X]) == f"check_gradient: {message}"


def test_the_error_in_a_graph_asks_for_eager_mode():
    expected = (
        "check_gradient: it needs eager mode for numeric differentiation, but a graph is under construction, or "
        "tf.config.run_functions_eagerly(True) was called. Call it outside of a tf.function, with functions that run as "
        "graphs."
    )
    with tf.Graph().as_default():
        assert message_of(RuntimeError, f, [X]) == expected
    tf.config.run_functions_eagerly(True)
    try:
        assert message_of(RuntimeError, f, [X]) == expected
    finally:
        tf.config.run_functions_eagerly(False)


def test_an_exception_of_the_function_itself_comes_as_it_is():
    def broken(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        check_gradient(broken, [X])


def test_an_exception_of_a_gradient_is_the_cause_of_the_failure():
    @cg.custom_gradient
    def broken(x):
        def grad_fn(dy):
            raise KeyError("mine")

        return tf.sin(x), grad_fn

    with pytest.raises(AssertionError) as failure:
        check_gradient(broken, [X], modes=["eager"], second_order=True)
    assert isinstance(failure.value.__cause__, KeyError)
    assert str(failure.value).splitlines()[:2] == [
        "check_gradient: the gradient of 'broken' with respect to 'x' could not be computed in mode 'eager'; expected "
        "numbers, got KeyError: 'mine'. Leave the mode out by modes=[...] if TensorFlow cannot run the function in it.",
        "check_gradient: the second-order gradient of 'broken' with respect to 'x, upstream' could not be computed in mode "
        "'eager'; expected numbers, got KeyError: 'mine'. Leave the mode out by modes=[...] if TensorFlow cannot run the "
        "function in it.",
    ]


SQUARE = np.random.default_rng(2).normal(size=[4, 4])
# A function, its argument, a mode that TensorFlow cannot run it in, the type of the exception and what it says.
NOT_RUN = {
    "slogdet": (tf.linalg.slogdet, SQUARE, "xla", "InvalidArgumentError: Detected unsupported operations"),
    "sort": (tf.sort, X, "vectorized", "ValueError: No pfor vectorization defined for ScatterNd. "),
    "numpy_function": (
        cg.numpy_function(lambda x: (np.sin(x), np.cos(x))),
        X,
        "xla",
        "NotImplementedError: numpy_function: '<lambda>' is Python code, which XLA cannot compile; expected",
    ),
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_mode_that_tensorflow_cannot_run_is_reported_in_one_line(name):
    function, x, mode, expected = NOT_RUN[name]
    with pytest.raises(AssertionError) as failure:
        check_gradient(function, [x], modes=["eager", mode])
    line, head, *_ = str(failure.value).splitlines()
    assert f"could not be computed in mode '{mode}'; expected numbers, got {expected}" in line
    assert line.endswith("Leave the mode out by modes=[...] if TensorFlow cannot run the function in it.")
    assert head.startswith("gradients of ")
    assert str(failure.value).splitlines()[-1].endswith("NOT RUN")


def test_an_error_of_a_graph_that_ran_is_one_line():
    @tf.autograph.experimental.do_not_convert
    def checked(x):
        return x if tf.executing_eagerly() else tf.debugging.check_numerics(x / tf.zeros_like(x), "divided")

    with pytest.raises(AssertionError) as failure:
        check_gradient(checked, [X], modes=["function"])
    assert str(failure.value).splitlines()[0] == (
        "check_gradient: the gradient of 'checked' with respect to 'x' could not be computed in mode 'function'; expected "
        "numbers, got InvalidArgumentError: divided : Tensor had Inf values. Leave the mode out by modes=[...] if "
        "TensorFlow cannot run the function in it."
    )


WEIGHTS = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.linalg.matvec(WEIGHTS, x),
        lambda x: x * WEIGHTS,
        tf.function(lambda x: x * WEIGHTS),
        lambda x: tf.Variable(WEIGHTS) * x,
        lambda x: tf.convert_to_tensor(x, tf.float32),
    ],
)
def test_weights_of_float32_need_a_cast_inside(function):
    with pytest.raises(TypeError) as error:
        check_gradient(function, [X])
    start, end = str(error.value).split(", got ")
    assert start.endswith(
        "' mixes its arguments with tensors of lower precision; expected a function of float64 or complex128, to which the "
        "arguments are converted"
    )
    assert end.endswith(". Cast the arguments inside the function, and pass rtol=1e-3 and step=0.1.")
    assert isinstance(error.value.__cause__, (tf.errors.InvalidArgumentError, TypeError, ValueError))


def test_a_cast_inside_is_enough_for_weights_of_float32():
    def multiplied(x):
        return tf.linalg.matvec(WEIGHTS, tf.sin(tf.cast(x, tf.float32)))

    assert not check_gradient(multiplied, [X], modes=["eager"], rtol=1e-3, step=0.1).failures
