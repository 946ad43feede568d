"""Wrong uses of custom_vjp, recompute_grad and grad_pass_through: the messages name the user's functions."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

X, Y = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
W = tf.Variable([1.0, 1.0], name="w")


def gradient(function, num_arguments):
    x = [X, Y][:num_arguments]
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = function(*x)
    return tape.gradient(h, x)


def tf1_gradient(function, num_arguments):
    with tf.Graph().as_default():
        x = [tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(num_arguments)]
        tf.gradients(function(*x), x)


MODES = {
    "eager": gradient,
    "traced": lambda function, n: tf.function(lambda: gradient(function, n), autograph=False)(),
    "called": lambda function, n: gradient(tf.function(function), n),
    "tf1": tf1_gradient,
}


def fwd(x, y):
    return x * y, (x, y)


def fwd_of_two(x):
    return (x, 2.0 * x), x


def fwd_with_limit(x, limit=1.0):
    return x * limit, x


def fwd_with_variable(x):
    return W * x, x


def bwd(residuals, dy):
    return residuals[1] * dy


def wrong_shape(x, dy):
    return tf.ones([7])


def keeps_x(x):
    return x


def to_double(x):
    return tf.cast(x, tf.float64)


def to_complex(x):
    return tf.cast(x, tf.complex64)


def total(x):
    return tf.reduce_sum(x)


def add(x, y):
    return x + y


def two_arguments(x, y):
    return x


# The function, how many arguments it takes, the exception, and the whole message.
CASES = {
    "custom_vjp without residuals": (
        lambda: cg.custom_vjp(keeps_x, bwd),
        1,
        TypeError,
        "custom_vjp: 'keeps_x' did not return its value with its residuals; expected a pair (value, residuals), got {}. "
        "End it with: return value, residuals",
    ),
    "custom_vjp with too few gradients": (
        lambda: cg.custom_vjp(fwd, bwd),
        2,
        ValueError,
        "custom_vjp: backward 'bwd' of 'fwd' returned 1 gradient; expected 2 (one per input: 'x', 'y'). Return None for "
        "an input that has no gradient.",
    ),
    "custom_vjp with a gradient of another shape": (
        lambda: cg.custom_vjp(lambda x: (x, x), wrong_shape),
        1,
        ValueError,
        "custom_vjp: backward 'wrong_shape' of '<lambda>' returned a gradient of the wrong shape for 'x'; expected (2,), "
        "got (7,). Give it the shape of the input: sum over what was broadcast, broadcast over what was summed.",
    ),
    "custom_vjp with a gradient of another dtype": (
        lambda: cg.custom_vjp(lambda x: (x, x), lambda x, dy: tf.cast(dy, tf.complex64)),
        1,
        TypeError,
        "custom_vjp: backward '<lambda>' of '<lambda>' must return a gradient of dtype float32 for 'x', got complex64. Take "
        "its real part with tf.math.real.",
    ),
    "custom_vjp with text for a gradient": (
        lambda: cg.custom_vjp(lambda x: (x, x), lambda x, dy: "no"),
        1,
        TypeError,
        "custom_vjp: backward '<lambda>' of '<lambda>' must return a Tensor for 'x', got 'no'. Return None for an input "
        "that has no gradient.",
    ),
    "custom_vjp with a gradient of another name": (
        lambda: cg.custom_vjp(fwd, lambda residuals, dy: {"x": dy, "z": dy}),
        2,
        ValueError,
        "custom_vjp: backward '<lambda>' of 'fwd' returned a dict with the key 'z', but its inputs are 'x', 'y'. Use the "
        "names of the inputs as keys, or return a tuple with one gradient for each input.",
    ),
    "custom_vjp whose backward takes no residuals": (
        lambda: cg.custom_vjp(lambda x: (x, x), lambda dy: dy),
        1,
        TypeError,
        "custom_vjp: backward '<lambda>' of '<lambda>' does not take its residuals and upstream gradients; expected "
        "parameters for residuals and 1 upstream gradient (one for each leaf of the value), got backward(dy). Write "
        "backward(residuals, *dys).",
    ),
    "custom_vjp whose backward takes nothing": (
        lambda: cg.custom_vjp(lambda x: (x, x), lambda: None),
        1,
        TypeError,
        "custom_vjp: backward '<lambda>' of '<lambda>' does not take its residuals and upstream gradients; expected "
        "parameters for residuals and 1 upstream gradient (one for each leaf of the value), got backward(). Write "
        "backward(residuals, *dys).",
    ),
    "custom_vjp whose backward takes too few upstream gradients": (
        lambda: cg.custom_vjp(fwd_of_two, bwd),
        1,
        TypeError,
        "custom_vjp: backward 'bwd' of 'fwd_of_two' does not take its residuals and upstream gradients; expected "
        "parameters for residuals and 2 upstream gradients (one for each leaf of the value), got "
        "backward(residuals, dy). Write backward(residuals, *dys).",
    ),
    "custom_vjp whose backward takes no constant": (
        lambda: cg.custom_vjp(fwd_with_limit, bwd, nondiff_argnames=["limit"]),
        1,
        TypeError,
        "custom_vjp: backward 'bwd' of 'fwd_with_limit' does not take its residuals and upstream gradients; expected "
        "parameters for residuals and 1 upstream gradient (one for each leaf of the value), got "
        "backward(residuals, dy). Write backward(residuals, *dys, limit).",
    ),
    "custom_vjp whose backward takes no variables": (
        lambda: cg.custom_vjp(fwd_with_variable, bwd),
        1,
        TypeError,
        "custom_vjp: 'fwd_with_variable' reads variables that are not among its arguments ('w:0'); expected a backward "
        "that takes the keyword argument 'variables', got backward(residuals, dy). Write backward(residuals, *dys, "
        "variables=None) and return (gradients of the inputs, gradients of the variables).",
    ),
    "grad_pass_through of another shape": (
        lambda: cg.grad_pass_through(total),
        1,
        ValueError,
        "grad_pass_through: 'total' does not keep the shape of 'x'; expected (2,), got (). Use custom_gradient for a "
        "function that changes shapes.",
    ),
    "grad_pass_through of another dtype": (
        lambda: lambda x: tf.math.real(cg.grad_pass_through(to_complex)(x)),
        1,
        TypeError,
        "grad_pass_through: 'to_complex' must return a value that is real where 'x' is real, got complex64 for float32. Cast "
        "its value with tf.cast, or use custom_gradient.",
    ),
    "grad_pass_through of another number": (
        lambda: cg.grad_pass_through(add),
        2,
        ValueError,
        "grad_pass_through: 'add' has another number of tensors in its value than among its arguments; expected 2 (one "
        "per input: 'x', 'y'), got 1. Use custom_gradient for it.",
    ),
    "straight_through with a surrogate of another dtype": (
        lambda: cg.straight_through(tf.sign, to_double),
        1,
        ValueError,
        "straight_through: the surrogate 'to_double' of 'sign' returned a derivative of the wrong dtype; expected "
        "float32, the dtype of x, got float64. Cast it with tf.cast.",
    ),
    "straight_through with a surrogate of another shape": (
        lambda: cg.straight_through(tf.sign, lambda x: tf.ones([7])),
        1,
        ValueError,
        "straight_through: the surrogate '<lambda>' of 'sign' returned a derivative of the wrong shape; expected (2,), "
        "the shape of x, got (7,). Return one number for each element of x.",
    ),
    "straight_through with a surrogate of more dimensions": (
        lambda: cg.straight_through(tf.sign, lambda x: tf.ones([3, 2])),
        1,
        ValueError,
        "straight_through: the surrogate '<lambda>' of 'sign' returned a derivative of the wrong shape; expected (2,), "
        "the shape of x, got (3, 2). Return one number for each element of x.",
    ),
    "straight_through with a surrogate of nothing": (
        lambda: cg.straight_through(tf.sign, lambda x: None),
        1,
        TypeError,
        "straight_through: the surrogate '<lambda>' of 'sign' returned no derivative; expected a Tensor, got None. Return "
        "the derivative at x, in its shape and dtype.",
    ),
    "straight_through with a surrogate of two arguments": (
        lambda: cg.straight_through(tf.sign, two_arguments),
        1,
        TypeError,
        "straight_through: the surrogate 'two_arguments' of 'sign' does not take x alone; expected a function of one "
        "argument, got (x, y). Write it as a function of x.",
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_messages_speak_of_what_the_user_wrote(case, mode):
    make, num_arguments, exception, message = CASES[case]
    if mode == "tf1" and "variable" in case:
        pytest.skip("a variable of eager mode is none of a TensorFlow 1 graph")
    with pytest.raises(exception) as caught:
        MODES[mode](make(), num_arguments)
    kind = "a SymbolicTensor" if "SymbolicTensor" in str(caught.value) else "an EagerTensor"
    assert message.format(kind) in str(caught.value)
    assert "grad_fn" not in str(caught.value)


def test_a_shape_that_shows_at_run_time_only_is_that_of_the_function():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = cg.grad_pass_through(lambda x: tf.concat([x, x], 0))(x)
        return tape.gradient(y, x)

    message = "grad_pass_through: '<lambda>' does not keep the shape of 'x'; expected [2], got [4]. Use custom_gradient"
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run(X)


SAVED = {
    "custom_vjp": (
        lambda: cg.custom_vjp(lambda x: (x, x), lambda x, dy: tf.constant(dy.numpy())),
        r"custom_vjp: the gradient of '<lambda>' is not there; expected a backward that TensorFlow can trace into a graph, "
        r"got this while tracing it: .*numpy.*\. Use TensorFlow operations in backward\.",
    ),
    "custom_vjp_count": (
        lambda: cg.custom_vjp(lambda x, y=None: (x, x), lambda x, dy: (dy, dy, dy)),
        r"custom_vjp: the gradient of '<lambda>' is not there; expected a backward that .* tracing it: ValueError: "
        r"custom_vjp: backward '<lambda>' of '<lambda>' returned 3 gradients; expected .*",
    ),
    "grad_pass_through": (
        lambda: cg.grad_pass_through(total),
        r"grad_pass_through: the gradient of 'total' is not there; expected a function that TensorFlow can trace into a "
        r"graph, got this while tracing it: ValueError: grad_pass_through: 'total' does not keep the shape of 'x'; .*\. Use "
        r"TensorFlow operations in 'total'\.",
    ),
    "straight_through": (
        lambda: cg.straight_through(tf.sign, lambda x: tf.constant(x.numpy())),
        r"straight_through: the gradient of 'sign' is not there; expected a surrogate that TensorFlow can trace into a "
        r"graph, got this while tracing it: .*numpy.*\. Use TensorFlow operations in the surrogate\.",
    ),
}

LOAD = """
import sys
import tensorflow as tf, tf_cg_ops
for name in sys.argv[2:]:
    x = tf.constant([1.0, 2.0])
    try:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = getattr(tf.saved_model.load(sys.argv[1]), name)(x)
        tape.gradient(y, x)
    except RuntimeError as error:
        print(name, repr(str(error)))
"""


def test_a_loaded_model_speaks_of_what_the_user_wrote(tmp_path):
    model = tf.Module()
    for name, (make, _) in SAVED.items():
        setattr(model, name, tf.function(make(), input_signature=[tf.TensorSpec([2])]))
    tf.saved_model.save(model, tmp_path / "model")
    lines = run_python(LOAD, tmp_path / "model", *SAVED, cwd=tmp_path).stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines] == list(SAVED)
    for line, (_, expected) in zip(lines, SAVED.values(), strict=True):
        text = line.partition(" ")[2]
        assert re.search(expected, text.encode().decode("unicode_escape"), re.DOTALL), text
        assert "grad_fn" not in text


def test_a_batched_rule_speaks_of_what_the_user_wrote():
    function = cg.custom_vjp(lambda x: (x, x), lambda x, dy: tf.constant(dy.numpy()))

    @tf.function(autograph=False)  # Whose messages quote the library's source.
    def run(x):
        def per_example(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)

        return tf.vectorized_map(per_example, x)

    with pytest.raises(Exception, match="numpy") as caught:
        run(tf.ones([3, 2]))
    assert "grad_fn" not in str(caught.value)


def test_a_backward_that_is_no_function_is_refused_at_once():
    with pytest.raises(TypeError) as caught:
        cg.custom_vjp(fwd, 3.0)
    assert str(caught.value) == (
        "custom_vjp: backward is not a function; expected a function or another callable, got a float. Pass the function "
        "itself: backward(residuals, *dys)."
    )


@pytest.mark.parametrize("derivative", [2.0, np.float64(2.0), np.array([2.0, 2.0])], ids=["float", "number", "array"])
def test_a_surrogate_may_return_numbers(derivative):
    (dx,) = gradient(cg.straight_through(tf.sign, lambda x: derivative), 1)
    np.testing.assert_array_equal(dx, [2.0, 2.0])


def test_an_exception_inside_a_backward_or_surrogate_is_as_it_is():
    def failing(*_):
        raise TypeError("my own")

    for function in (cg.custom_vjp(lambda x: (x, x), failing), cg.straight_through(tf.sign, failing)):
        with pytest.raises(TypeError, match=r"^my own$"):
            gradient(function, 1)
