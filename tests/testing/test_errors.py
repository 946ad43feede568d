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


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (
            [X],
            {"modes": ["eager", "graph"]},
            "check_gradient: modes is not a list of known modes; expected some of ['eager', 'function', 'xla', "
            "'vectorized', 'while_loop', 'cond', 'saved_model', 'functional', 'mixed_float16', 'mixed_bfloat16'], "
            "got ['eager', 'graph']. Pass a list of these names.",
        ),
        (
            [X],
            {"modes": "eager"},
            "check_gradient: modes is not a list of known modes; expected some of ['eager', 'function', 'xla', "
            "'vectorized', 'while_loop', 'cond', 'saved_model', 'functional', 'mixed_float16', 'mixed_bfloat16'], "
            "got 'eager'. Pass a list of these names.",
        ),
        (
            [X],
            {"modes": []},
            "check_gradient: modes is not a list of known modes; expected some of ['eager', 'function', 'xla', "
            "'vectorized', 'while_loop', 'cond', 'saved_model', 'functional', 'mixed_float16', 'mixed_bfloat16'], "
            "got []. Pass a list of these names.",
        ),
        (
            [X],
            {"like": f, "intended_gradient": f},
            "check_gradient: pass either like or intended_gradient, not both: each declares the intended gradient.",
        ),
        (
            [X],
            {"forward_mode": True, "intended_gradient": f},
            "check_gradient: forward_mode=True needs intended tangents, which intended_gradient does not give. Pass a "
            "function with that gradient as like, or leave out forward_mode.",
        ),
        (
            [X],
            {"forward_mode": True, "modes": ["xla"]},
            "check_gradient: forward_mode=True has no mode to run in; expected 'eager' or 'function' among modes, got "
            "['xla']. Add one.",
        ),
        (
            [np.array([1, 2])],
            {},
            "check_gradient: 'f' has no float or complex tensor among its arguments to differentiate by. Integers, bools, "
            "strings and None are passed on as they are.",
        ),
        (
            [np.array([1.0, np.inf])],
            {},
            "check_gradient: 'x' of 'f' contains inf or nan, around which nothing can be differentiated numerically. Pass "
            "finite numbers.",
        ),
        (
            [X],
            {"like": g},
            "check_gradient: like returns other shapes than 'f'; expected [[3]], got [[2]]. Pass a function with the "
            "intended gradient and outputs like those of 'f'.",
        ),
        (
            [X],
            {"intended_gradient": lambda dy, x: dy[:2]},
            "check_gradient: intended_gradient returned other shapes than those of the arguments of 'f'; expected [[3]] "
            "(one for each of 'x'), got [[2]]. Return NumPy arrays of these shapes, or None for zeros.",
        ),
        (
            [X],
            {"intended_gradient": lambda dy, x: (dy, None)},
            "check_gradient: intended_gradient returned other shapes than those of the arguments of 'f'; expected [[3]] "
            "(one for each of 'x'), got [[3], None]. Return NumPy arrays of these shapes, or None for zeros.",
        ),
    ],
)
def test_wrong_values_of_arguments_are_named(args, options, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 The whole message is compared.
        check_gradient(f, args, **options)
    assert str(error.value) == message


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
    with pytest.raises(error) as raised:
        check_gradient(f, [X], **{option: value})
    assert str(raised.value) == (f"check_gradient: {option} is invalid; expected {expected}, got {value!r}.")


@pytest.mark.parametrize("option", ["f", "like", "intended_gradient"])
def test_an_argument_that_is_no_function_is_refused(option):
    options = {"f": f, option: X} if option != "f" else {"f": None}
    with pytest.raises(TypeError) as error:
        check_gradient(args=[X], **options)
    got = "NoneType" if option == "f" else "ndarray"
    assert str(error.value) == (
        f"check_gradient: {option} is not a function; expected a callable, got {got}. Pass the function, not its value."
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: tf.argmax(x),
            "check_gradient: '<lambda>' returns nothing that has a derivative; expected a float or complex tensor, got "
            "['int64']. Check the function before it rounds to integers.",
        ),
        (
            print,
            "check_gradient: 'print' returns nothing that has a derivative; expected a float or complex tensor, got no "
            "tensor. Check the function before it rounds to integers.",
        ),
    ],
)
def test_functions_without_a_derivative_are_named(function, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 The whole message is compared.
        check_gradient(function, [X])
    assert str(error.value) == message


def test_functions_that_are_none_of_their_arguments_are_refused():
    def noisy(x):
        return x * tf.random.uniform([3], dtype=tf.float64)

    check_that_it_gives_another_value(noisy)
    calls = []

    def noisy(x):
        calls.append(1)
        return (x, x)[: len(calls)]

    check_that_it_gives_another_value(noisy)


def check_that_it_gives_another_value(noisy):
    with pytest.raises(ValueError) as error:  # noqa: PT011 The whole message is compared.
        check_gradient(noisy, [X])
    assert str(error.value) == (
        "check_gradient: 'noisy' returns another value when it is called again: it uses random numbers or a state. Use "
        "tf.random.stateless_uniform and the like, with a fixed seed."
    )


def test_arguments_that_are_no_list_are_refused():
    with pytest.raises(TypeError) as error:
        check_gradient(f, X)
    assert str(error.value) == (
        "check_gradient: args is no sequence of arguments; expected a list or a tuple, got ndarray. Pass [x] for one "
        "argument."
    )


def test_arguments_that_do_not_fit_are_refused():
    message = "check_gradient: the arguments do not fit 'f': too many positional arguments. Call it as f(x)."
    with pytest.raises(TypeError) as error:
        check_gradient(f, [X, X])
    assert str(error.value) == message


def test_the_error_in_a_graph_asks_for_eager_mode():
    expected = (
        "check_gradient: it needs eager mode for numeric differentiation, but a graph is under construction, or "
        "tf.config.run_functions_eagerly(True) was called. Call it outside of a tf.function, with functions that run as "
        "graphs."
    )
    with tf.Graph().as_default(), pytest.raises(RuntimeError) as error:
        check_gradient(f, [X])
    assert str(error.value) == expected
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(RuntimeError) as error:
            check_gradient(f, [X])
    finally:
        tf.config.run_functions_eagerly(False)
    assert str(error.value) == expected


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

    assert not check_gradient(multiplied, [X], rtol=1e-3, step=0.1).failures
