"""Wrong uses of check_gradient, and their messages."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

X = np.array([0.5, -1.0, 2.0])


def f(x):
    return tf.sin(x)


def message_of(error, function, args, **options):
    """The message of an error of check_gradient, after its name."""
    with pytest.raises(error) as raised:
        check_gradient(function, args, **options)
    name, _, message = str(raised.value).partition(": ")
    assert name == "check_gradient"
    return message


def lines_of_failure(function, args, **options):
    with pytest.raises(AssertionError) as failure:
        check_gradient(function, args, **options)
    return str(failure.value).splitlines()


UNKNOWN_MODES = (
    "modes must be one or more of 'eager', 'function', 'xla', 'vectorized', 'while_loop', 'cond', 'saved_model', "
    "'functional', 'mixed_float16', 'mixed_bfloat16', in a list, got {}."
)
OTHER_SHAPES = "intended_gradient must return arrays of the shapes [[3]] (one for each of 'x') for 'f', got {}. Return None for zeros."
BOTH = "like and intended_gradient must not both be given, because each says which gradient is right. Leave one out."
NO_TANGENTS = (
    "forward_mode=True needs tangents to compare with, which intended_gradient does not give. Pass a function with that "
    "gradient as like, or leave out forward_mode."
)
NO_MODE = "modes must contain 'eager' or 'function' if forward_mode=True, got ['xla']. Add one of them."
OTHER_OUTPUTS = "like must return the same shapes as 'f', [[3]], got [[2]]."
NO_NUMBERS = (
    "args must contain a float or complex number or tensor to differentiate 'f' by, got none. Integers, bools, strings and "
    "None are passed on as they are."
)
NOT_FINITE = "the argument 'x' of 'f' must be finite for numeric differentiation, got inf or nan. Pass finite numbers."
NO_LIST = "args must be a list or tuple of arguments, got an ndarray. Pass [x] for one argument."
NO_FIT = "the arguments do not fit 'f': too many positional arguments. Call it as f(x)."
NO_FUNCTION = "{} must be a function, got {}. Pass the function, not its value."
NO_DERIVATIVE = (
    "'{}' must return a float or complex tensor, got {}. If it rounds to integers at the end, check the part before."
)
ANOTHER_VALUE = (
    "'noisy' must return the same value each time, got another one from the second call. If it uses random numbers, take "
    "tf.random.stateless_uniform and the like, with a fixed seed."
)


def noisy(x):
    return x * tf.random.uniform([3], dtype=tf.float64)


def with_another_number_of_outputs():
    calls = []

    def noisy(x):
        calls.append(1)
        return (x, x)[: len(calls)]

    return noisy


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"modes": ["eager", "graph"]}, ValueError, UNKNOWN_MODES.format("['eager', 'graph']")),
        ({"modes": "eager"}, TypeError, "modes must be a list of names such as ['eager'], got 'eager'."),
        ({"modes": []}, ValueError, UNKNOWN_MODES.format("[]")),
        ({"like": f, "intended_gradient": f}, ValueError, BOTH),
        ({"forward_mode": True, "intended_gradient": f}, ValueError, NO_TANGENTS),
        ({"forward_mode": True, "modes": ["xla"]}, ValueError, NO_MODE),
        ({"args": [np.array([1, 2])]}, ValueError, NO_NUMBERS),
        ({"args": [np.array([1.0, np.inf])]}, ValueError, NOT_FINITE),
        ({"like": lambda x: tf.sin(x)[:2]}, ValueError, OTHER_OUTPUTS),
        ({"intended_gradient": lambda dy, x: dy[:2]}, ValueError, OTHER_SHAPES.format("[[2]]")),
        ({"intended_gradient": lambda dy, x: (dy, None)}, ValueError, OTHER_SHAPES.format("[[3], None]")),
        ({"function": lambda x: tf.argmax(x)}, ValueError, NO_DERIVATIVE.format("<lambda>", "only 'int64'")),
        ({"function": print}, ValueError, NO_DERIVATIVE.format("print", "no tensor")),
        ({"function": noisy}, ValueError, ANOTHER_VALUE),
        ({"function": with_another_number_of_outputs()}, ValueError, ANOTHER_VALUE),
        ({"function": None}, TypeError, NO_FUNCTION.format("f", "a NoneType")),
        ({"like": X}, TypeError, NO_FUNCTION.format("like", "an ndarray")),
        ({"intended_gradient": X}, TypeError, NO_FUNCTION.format("intended_gradient", "an ndarray")),
        ({"args": X}, TypeError, NO_LIST),
        ({"args": [X, X]}, TypeError, NO_FIT),
    ],
)
def test_wrong_arguments_are_named(options, error, message):
    assert message_of(error, **{"function": f, "args": [X], **options}) == message


TOLERANCE = "a finite number that is not negative"
STEP = "a number from 1e-12 to 1, or None"


@pytest.mark.parametrize(
    ("option", "value", "error", "expected"),
    [
        ("rtol", np.inf, ValueError, TOLERANCE),
        ("rtol", np.nan, ValueError, TOLERANCE),
        ("rtol", None, TypeError, TOLERANCE),
        ("atol", -1e-9, ValueError, TOLERANCE),
        ("atol", [1e-3, 1e-3], TypeError, TOLERANCE),
        ("step", 1e-300, ValueError, STEP),
        ("step", -0.1, ValueError, STEP),
        ("step", np.inf, ValueError, STEP),
        ("step", np.nan, ValueError, STEP),
        ("step", True, TypeError, STEP),
        ("seed", -1, ValueError, "an integer that is not negative"),
        ("max_elements", 0, ValueError, "a positive integer"),
        ("max_elements", 2.5, TypeError, "a positive integer"),
    ],
)
def test_numbers_that_nothing_could_be_found_with_are_refused(option, value, error, expected):
    message = f"{option} must be {expected}, got {value!r}."
    assert message_of(error, f, [X], **{option: value}) == message


def test_the_error_in_a_graph_asks_for_eager_mode():
    expected = (
        "must be called in eager mode, got a call in a graph or after tf.config.run_functions_eagerly(True). Call it "
        "outside of tf.function."
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


FAILED = (
    "check_gradient: the {} of '{}' with respect to '{}' could not be computed in mode '{}': {}. If TensorFlow cannot run "
    "the function in that mode, leave it out of modes."
)


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
        FAILED.format(order, "broken", names, "eager", "KeyError: 'mine'")
        for order, names in (("gradient", "x"), ("second-order gradient", "x, upstream"))
    ]


SQUARE = np.random.default_rng(2).normal(size=[4, 4])
# A function, its argument, a mode in which TensorFlow cannot run it, and the exception.
NOT_RUN = {
    "slogdet": (tf.linalg.slogdet, SQUARE, "xla", "InvalidArgumentError: Detected unsupported operations"),
    "sort": (tf.sort, X, "vectorized", "ValueError: No pfor vectorization defined for ScatterNd. "),
    "numpy_function": (
        cg.numpy_function(lambda x: (np.sin(x), np.cos(x))),
        X,
        "xla",
        "NotImplementedError: numpy_function: '<lambda>' is Python code, which XLA cannot compile. Leave",
    ),
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_mode_that_tensorflow_cannot_run_is_reported_in_one_line(name):
    function, x, mode, expected = NOT_RUN[name]
    line, head, *_, last = lines_of_failure(function, [x], modes=["eager", mode])
    assert f"could not be computed in mode '{mode}': {expected}" in line
    assert line.endswith(FAILED.rpartition("{}")[2])
    assert head.startswith("gradients of ")
    assert last.endswith("NOT RUN")


def test_an_error_of_a_graph_that_ran_is_one_line():
    @tf.autograph.experimental.do_not_convert
    def checked(x):
        return x if tf.executing_eagerly() else tf.debugging.check_numerics(x / tf.zeros_like(x), "divided")

    got = "InvalidArgumentError: divided : Tensor had Inf values"
    first, *_ = lines_of_failure(checked, [X], modes=["function"])
    assert first == FAILED.format("gradient", "checked", "x", "function", got)


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
    assert start.endswith("' must compute in float64 or complex128, to which its arguments are converted")
    assert end.endswith(
        ". Cast the arguments inside the function to the lower precision, and pass rtol=1e-3 and step=0.1."
    )
    assert isinstance(error.value.__cause__, (tf.errors.InvalidArgumentError, TypeError, ValueError))


def test_a_cast_inside_is_enough_for_weights_of_float32():
    def multiplied(x):
        return tf.linalg.matvec(WEIGHTS, tf.sin(tf.cast(x, tf.float32)))

    assert not check_gradient(multiplied, [X], modes=["eager"], rtol=1e-3, step=0.1).failures
