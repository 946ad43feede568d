"""Wrong results of gradient functions: every message, in full and in the user's words.

In eager mode, in a tf.function and in a graph of TensorFlow 1.
"""

import functools
import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

pytestmark = pytest.mark.core

X, Y = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
W = tf.Variable([1.0, 1.0], name="w")


def eager(function, num_arguments):
    x = [X, Y][:num_arguments]
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = function(*x)
    return tape.gradient(h, x)


def tf1(function, num_arguments):
    with tf.Graph().as_default():
        x = [tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(num_arguments)]
        tf.gradients(function(*x), x)


MODES = {
    "eager": eager,
    "traced": lambda function, n: tf.function(lambda: eager(function, n), autograph=False)(),
    "called": lambda function, n: eager(tf.function(function), n),
    "tf1": tf1,
}


def returning(answer, reads_variable=False):
    """A function of x and y, and maybe the variable w, with a grad_fn that returns `answer(dy)`."""

    def log1pexp(x, y):
        if reads_variable:
            return W * x + y, lambda dy, variables=None: answer(dy)
        return x + y, answer

    return cg.custom_gradient(log1pexp)


EXPECTED = "expected 2 (one per input: 'x', 'y')."
TWO = f"{EXPECTED} Return None for an input that has no gradient."
SHAPE = "Give it the shape of the input: sum over what was broadcast, broadcast over what was summed."
IN_ORDER = "Return one gradient for each input, in their order."

# What grad_fn returns, and the message after "grad_fn of 'log1pexp'", where {} is the type of a Tensor.
VALUES = {
    "number": (lambda dy: dy, f"returned 1 gradient; {TWO}"),
    "too_many": (lambda dy: (dy, dy, dy), f"returned 3 gradients; {EXPECTED} Return one gradient for each input."),
    "names": (
        lambda dy: {"y": dy, "x": dy},
        "must return one gradient for each of 'x', 'y', got a dict of 'y', 'x'. Return a tuple in this order: only the "
        "gradients of '**kwargs' and of a dict have names.",
    ),
    "dict_for_a_tensor": (
        lambda dy: ({"a": dy}, dy),
        "must return the gradient of 'x' in its structure, got a dict of 'a'. Return a Tensor for a Tensor, a list for a "
        "list, and a dict with the same keys for a dict.",
    ),
    "shape": (
        lambda dy: (None, tf.ones([7])),
        f"returned a gradient of the wrong shape for 'y'; expected (2,), got (7,). {SHAPE}",
    ),
    "rows_of_slices": (
        lambda dy: (tf.IndexedSlices(tf.ones([1, 7]), tf.constant([0])), None),
        f"returned a gradient of the wrong shape for 'x'; expected rows of (), got rows of (7,). {SHAPE}",
    ),
    "variables_not_a_pair": (lambda dy: (dy, dy), f"returned 1 gradient; {TWO}"),
    "variable_count": (
        lambda dy: ((dy, dy), []),
        "returned 0 gradients for the variables; expected 1 (one per variable: 'w:0'). Return None for a variable that has "
        "no gradient.",
    ),
    "variable_shape": (
        lambda dy: ((dy, dy), [tf.ones([3])]),
        f"returned a gradient of the wrong shape for variable 'w:0'; expected (2,), got (3,). {SHAPE}",
    ),
}
FLOAT = "must return a gradient of dtype float32 for"
TYPES = {
    "variable_dict": (
        lambda dy: ((dy, dy), {"w": dy}),
        "must return the gradients of the variables in a list, got a dict. Return one gradient for each variable, in the "
        "order of 'variables'.",
    ),
    "variables_without_gradients": (
        lambda dy: dy,
        "must return a pair (gradients of the inputs, gradients of the variables), got {}. Return None for a variable that "
        "has no gradient.",
    ),
    "dtype": (
        lambda dy: (tf.cast(dy, tf.complex64), None),
        f"{FLOAT} 'x', got complex64. Take its real part with tf.math.real.",
    ),
    "integers": (lambda dy: (None, tf.cast(dy, tf.int32)), f"{FLOAT} 'y', got int32. Cast it with tf.cast."),
    "complex_array": (
        lambda dy: (np.array([1j, 2j]), None),
        f"{FLOAT} 'x', got complex128. Take its real part with tf.math.real.",
    ),
    "text_tensor": (lambda dy: (tf.constant(["a", "b"]), None), f"{FLOAT} 'x', got string. Return numbers."),
    "text": (
        lambda dy: ("no", None),
        "must return a Tensor for 'x', got 'no'. Return None for an input that has no gradient.",
    ),
    "set": (lambda dy: {None, 1.0}, f"must return its gradients in a tuple or a list, got a set. {IN_ORDER}"),
    "objects": (
        lambda dy: np.array([None, 1.0], dtype=object),
        f"must return its gradients in a tuple or a list, got an ndarray. {IN_ORDER}",
    ),
    "variable_dtype": (
        lambda dy: ((dy, dy), [tf.cast(dy, tf.int32)]),
        f"{FLOAT} variable 'w:0', got int32. Cast it with tf.cast.",
    ),
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


UPSTREAM = "must take the residuals and"
ONE = "1 upstream gradient (one for each leaf of the value), got"

# Functions of one argument, or of two if they say so, and the whole message.
VALUES_OF_OTHERS = {
    "custom_vjp with too few gradients": (
        lambda: cg.custom_vjp(fwd, bwd),
        f"custom_vjp: backward 'bwd' of 'fwd' returned 1 gradient; {TWO}",
    ),
    "grad_pass_through of another shape": (
        lambda: cg.grad_pass_through(total),
        "grad_pass_through: 'total' must return a value with the shape of 'x', (2,), got (). Use custom_gradient for a "
        "function that changes shapes.",
    ),
    "grad_pass_through of another number": (
        lambda: cg.grad_pass_through(add),
        "grad_pass_through: 'add' must return as many tensors as it has inputs, 2 ('x', 'y'), got 1. Use custom_gradient "
        "for it.",
    ),
    "straight_through with a surrogate of more dimensions": (
        lambda: cg.straight_through(tf.sign, lambda x: tf.ones([3, 2])),
        "straight_through: the surrogate '<lambda>' of 'sign' must return the shape of x, (2,), got (3, 2). If it is "
        "the derivative of a surrogate, pass it as derivative=.",
    ),
    "straight_through with a surrogate without a derivative": (
        lambda: cg.straight_through(tf.sign, tf.ones_like),
        "straight_through: the surrogate 'ones_like_v2' of 'sign' must have a derivative, but TensorFlow finds none. If "
        "it is the derivative of a surrogate, pass it as derivative=.",
    ),
    "straight_through with a derivative of more dimensions": (
        lambda: cg.straight_through(tf.sign, derivative=lambda x: tf.ones([3, 2])),
        "straight_through: the derivative '<lambda>' of 'sign' must return the shape of x, (2,), got (3, 2). Return one "
        "number for each element of x.",
    ),
}
TYPES_OF_OTHERS = {
    "custom_gradient of a variable that grad_fn does not take": (
        lambda: cg.custom_gradient(lambda x: (W * x, lambda dy: dy)),
        "custom_gradient: '<lambda>' reads variables that are not among its arguments ('w:0'), so grad_fn must take the "
        "keyword argument 'variables', got grad_fn(dy). Write grad_fn(*dys, variables=None) and return (gradients of the "
        "inputs, gradients of the variables).",
    ),
    "custom_gradient without a pair": (
        lambda: cg.custom_gradient(keeps_x),
        "custom_gradient: 'keeps_x' must return a pair (value, grad_fn), got {}. End it with: return value, grad_fn",
    ),
    "custom_gradient with too many values": (
        lambda: cg.custom_gradient(lambda x: (x, x, lambda dy: dy)),
        "custom_gradient: '<lambda>' must return a pair (value, grad_fn), got a tuple of 3 (",
    ),
    "custom_gradient with too few parameters of grad_fn": (
        lambda: cg.custom_gradient(lambda x: ((x, x), lambda dy: dy)),
        "custom_gradient: grad_fn of '<lambda>' must take 2 upstream gradients (one for each leaf of the value), got "
        "grad_fn(dy). Write grad_fn(*dys).",
    ),
    "custom_gradient without an argument": (
        lambda: cg.custom_gradient(lambda x, z: (x, lambda dy: (dy, None))),
        "custom_gradient: the arguments do not fit '<lambda>': missing a required argument: 'z'. Call it as <lambda>(x, z).",
    ),
    "custom_vjp without residuals": (
        lambda: cg.custom_vjp(keeps_x, bwd),
        "custom_vjp: 'keeps_x' must return a pair (value, residuals), got {}. End it with: return value, residuals",
    ),
    "custom_vjp whose backward takes no residuals": (
        lambda: cg.custom_vjp(lambda x: (x, x), lambda dy: dy),
        f"custom_vjp: backward '<lambda>' of '<lambda>' {UPSTREAM} {ONE} backward(dy). Write backward(residuals, *dys).",
    ),
    "custom_vjp whose backward takes nothing": (
        lambda: cg.custom_vjp(lambda x: (x, x), lambda: None),
        f"{UPSTREAM} {ONE} backward(). Write ",
    ),
    "custom_vjp whose backward takes too few upstream gradients": (
        lambda: cg.custom_vjp(fwd_of_two, bwd),
        f"custom_vjp: backward 'bwd' of 'fwd_of_two' {UPSTREAM} 2 upstream gradients (one for each leaf of the value), got "
        "backward(residuals, dy). Write backward(residuals, *dys).",
    ),
    "custom_vjp whose backward takes no constant": (
        lambda: cg.custom_vjp(fwd_with_limit, bwd, nondiff_argnames=["limit"]),
        f"{UPSTREAM} {ONE} backward(residuals, dy). Write backward(residuals, *dys, limit).",
    ),
    "custom_vjp whose backward takes no needed": (
        lambda: cg.custom_vjp(fwd, lambda residuals, needed: None),
        f"{UPSTREAM} {ONE} backward(residuals, needed). Write backward(residuals, *dys, needed).",
    ),
    "custom_vjp whose backward takes no variables": (
        lambda: cg.custom_vjp(fwd_with_variable, bwd),
        "custom_vjp: 'fwd_with_variable' reads variables that are not among its arguments ('w:0'), so backward must take "
        "the keyword argument 'variables', got backward(residuals, dy). Write backward(residuals, *dys, variables=None) and "
        "return (gradients of the inputs, gradients of the variables).",
    ),
    "grad_pass_through of another dtype": (
        lambda: lambda x: tf.math.real(cg.grad_pass_through(to_complex)(x)),
        "grad_pass_through: 'to_complex' must return a value that is real where 'x' is real, got complex64 for float32. Cast "
        "its value with tf.cast, or use custom_gradient.",
    ),
    "straight_through with a surrogate of another dtype": (
        lambda: cg.straight_through(tf.sign, to_double),
        "straight_through: the surrogate 'to_double' of 'sign' must return the dtype of x, float32, got float64. Cast it "
        "with tf.cast.",
    ),
    "straight_through with a surrogate of nothing": (
        lambda: cg.straight_through(tf.sign, lambda x: None),
        "straight_through: the surrogate '<lambda>' of 'sign' must return a Tensor, got None. Use TensorFlow "
        "operations. If it is the derivative of a surrogate, pass it as derivative=.",
    ),
    "straight_through with a derivative of nothing": (
        lambda: cg.straight_through(tf.sign, derivative=lambda x: None),
        "straight_through: the derivative '<lambda>' of 'sign' must return a Tensor, got None. Return the derivative at x.",
    ),
    "straight_through with a surrogate of two arguments": (
        lambda: cg.straight_through(tf.sign, add),
        "straight_through: the surrogate 'add' of 'sign' must take x alone, got (x, y). Write it as a function of x.",
    ),
}


CASES = {}
for error, of_grad_fn, of_others in ((ValueError, VALUES, VALUES_OF_OTHERS), (TypeError, TYPES, TYPES_OF_OTHERS)):
    for name, (answer, message) in of_grad_fn.items():
        make = functools.partial(returning, answer, "variable" in name)
        CASES[name] = (make, error, f"custom_gradient: grad_fn of 'log1pexp' {message}")
    for name, (make, message) in of_others.items():
        CASES[name] = (make, error, message)


def can_run(case, mode):
    if mode == "tf1":
        return "variable" not in case  # A TensorFlow 1 graph cannot use variables of eager mode.
    return (case, mode) != ("custom_gradient without an argument", "called")  # TensorFlow itself refuses this call.


@pytest.mark.parametrize(("case", "mode"), [(case, mode) for case in CASES for mode in MODES if can_run(case, mode)])
def test_messages(case, mode):
    make, exception, message = CASES[case]
    function = make()
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    num_arguments = 1 if "without an argument" in case else len(required)
    with pytest.raises(exception) as caught:
        MODES[mode](function, num_arguments)
    kind = "a SymbolicTensor" if "SymbolicTensor" in str(caught.value) else "an EagerTensor"
    assert message.format(kind) in str(caught.value)
    assert message.startswith("custom_gradient") or "grad_fn" not in str(caught.value)


# Shapes that are only known at run time


def run_of_unknown_shape(function, size=None, jit_compile=False):
    @tf.function(input_signature=[tf.TensorSpec([size])] * 2, jit_compile=jit_compile)
    def run(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=dy)

    return run(tf.constant([3.0, 4.0]), tf.constant([1.0, -10.0]))


def twice(x):
    return tf.concat([2.0 * x, x], 0)


def in_a_loop(function):
    return lambda x: tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=2)[
        1
    ]


@pytest.mark.parametrize("jit_compile", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("where", ["plain", "loop"])
def test_a_wrong_shape_that_shows_at_run_time_only(where, jit_compile):
    function = cg.custom_gradient(lambda x: (1.0 * x, twice))
    message = (
        "custom_gradient: grad_fn of '<lambda>' returned a gradient of the wrong shape for 'x'; expected [2], got [4]. "
        + SHAPE
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run_of_unknown_shape(function if where == "plain" else in_a_loop(function), jit_compile=jit_compile)


@pytest.mark.parametrize(
    ("size", "grad_fn"),
    [
        (None, lambda dy: tf.ones([1])),
        (None, lambda dy: tf.reshape(tf.reduce_sum(dy), [1])),
        (2, lambda dy: tf.boolean_mask(dy, dy > 0.0)),
    ],
    ids=["a_constant", "of_the_gradient", "of_the_input"],
)
def test_a_wrong_shape_where_one_shape_is_known(size, grad_fn):
    """TensorFlow's optimizer removes an op if its shape function says that two shapes are the same."""
    function = cg.custom_gradient(lambda x: (1.0 * x, grad_fn))
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape("for 'x'; expected [2], got [1]. ")):
        run_of_unknown_shape(function, size)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["", "jit"])
def test_a_right_shape_that_shows_at_run_time_only(jit_compile):
    function = cg.custom_gradient(lambda x: (1.0 * x, lambda dy: twice(dy)[: tf.size(dy)]))
    np.testing.assert_array_equal(run_of_unknown_shape(function, jit_compile=jit_compile), [2.0, -20.0])


def test_a_value_of_another_shape_that_shows_at_run_time_only():
    message = "grad_pass_through: 'twice' must return a value with the shape of 'x', [2], got [4]. Use custom_gradient"
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run_of_unknown_shape(lambda x: cg.grad_pass_through(twice)(x)[:2])


# What is not a function, exceptions of the user, and what cannot be traced


@pytest.mark.parametrize("decorator", ["custom_gradient", "custom_jvp", "recompute_grad", "grad_pass_through"])
def test_a_decorated_object_that_is_not_a_function_is_refused_at_once(decorator):
    with pytest.raises(TypeError, match=rf"^{decorator}: the argument must be a function, got an EagerTensor\."):
        getattr(cg, decorator)(tf.constant(1.0))


@pytest.mark.parametrize(("name", "call"), [("forward", "forward(*args)"), ("backward", "backward(residuals, *dys)")])
def test_a_pass_that_is_not_a_function_is_refused_at_once(name, call):
    message = f"custom_vjp: {name} must be a function, got a float. Pass the function itself: {call}."
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        cg.custom_vjp(**{"forward": fwd, "backward": bwd, name: 3.0})


DECORATORS = {
    "custom_gradient": lambda n: cg.custom_gradient(saved_orders=n),
    "custom_vjp": lambda n: cg.custom_vjp(fwd, bwd, saved_orders=n),
    "custom_jvp": lambda n: cg.custom_jvp(saved_orders=n),
}


@pytest.mark.parametrize("api", DECORATORS)
def test_saved_orders_must_be_a_positive_int(api):
    with pytest.raises(ValueError, match=rf"^{api}: saved_orders must be at least 1, got 0\.$"):
        DECORATORS[api](0)
    for wrong in ("2", 2.0, True):
        with pytest.raises(TypeError, match=rf"^{api}: saved_orders must be an int such as 2, got .*{wrong}"):
            DECORATORS[api](wrong)


def test_names_that_are_not_arguments_are_refused():
    message = "nondiff_argnames must name arguments of 'fwd', which are ['x', 'y'], got ['nope']."
    with pytest.raises(ValueError, match=re.escape(f"custom_vjp: {message}")):
        cg.custom_vjp(fwd, bwd, nondiff_argnames=["nope"])
    with pytest.raises(ValueError, match=re.escape(f"custom_jvp: {message}")):
        cg.custom_jvp(fwd, nondiff_argnames=["nope"])


def failing(*_):
    raise TypeError("my own")


OF_THE_USER = {
    "custom_gradient": cg.custom_gradient(lambda x: (2.0 * x, failing)),
    "custom_vjp": cg.custom_vjp(lambda x: (2.0 * x, x), failing),
    "loop": in_a_loop(cg.custom_gradient(lambda x: (2.0 * x, failing))),
}


@pytest.mark.parametrize("name", OF_THE_USER)
def test_an_exception_of_a_traced_grad_fn_is_as_it_is(name):
    """A tf.function builds its gradient when it is called under a tape."""
    for function in (OF_THE_USER[name], tf.function(OF_THE_USER[name])):
        np.testing.assert_array_equal(function(X), X * (4.0 if name == "loop" else 2.0))
        with pytest.raises(TypeError, match=r"^my own$"):
            eager(function, 1)


def test_an_exception_of_a_surrogate_comes_at_the_call():
    function = cg.straight_through(lambda x: 2.0 * x, failing)
    np.testing.assert_array_equal(function(X), X * 2.0)
    for run in (function, tf.function(function)):
        with tf.GradientTape() as tape:
            tape.watch(x := tf.constant(X))
            with pytest.raises(TypeError, match=r"my own"):
                run(x)


WRONG_NUMBER = (
    "custom_gradient: grad_fn of '<lambda>' returned 2 gradients; expected 1 (one per input: 'x'). Return one gradient for "
    "each input."
)
COPIES = {
    "recompute_grad": cg.recompute_grad,
    "scan": lambda f: lambda x: cg.scan(lambda carry, _: (f(carry), None), x, length=1)[0],
    "while_loop": lambda f: lambda x: cg.while_loop(lambda x: True, lambda x: (f(x),), (x,), 1, checkpoint=None)[0],
    "override_gradients": lambda f: cg.override_gradients(lambda x: f(tf.sign(x)), {"Sign": cg.rules.pass_through}),
    "twice": lambda f: cg.recompute_grad(lambda x: cg.scan(lambda carry, _: (f(carry), None), x, length=1)[0]),
    "a called function": lambda f: cg.recompute_grad(tf.function(f)),
}


def raising(exception):
    def grad_fn(dy):
        raise exception

    return grad_fn


def tripled(grad_fn):
    return cg.custom_gradient(lambda x: (3.0 * x, grad_fn))


@pytest.mark.parametrize("copy", COPIES)
def test_an_exception_of_a_grad_fn_in_a_copied_graph_is_as_it_is(copy):
    for grad_fn, kind, message in [
        (raising(KeyError("mine")), KeyError, "'mine'"),
        (raising(TypeError("my own")), TypeError, "my own"),
        (lambda dy: (dy, dy), ValueError, WRONG_NUMBER),
    ]:
        function = COPIES[copy](tripled(grad_fn))
        for run in (function, tf.function(function)):
            with pytest.raises(kind, match=f"^{re.escape(message)}$"):
                eager(run, 1)


@pytest.mark.parametrize("derivative", [2.0, np.float64(2.0), np.array([2.0, 2.0])], ids=["float", "number", "array"])
def test_a_derivative_may_return_numbers(derivative):
    (dx,) = eager(cg.straight_through(tf.sign, derivative=lambda x: derivative), 1)
    np.testing.assert_array_equal(dx, [2.0, 2.0])


SAVED = {
    "custom_gradient": (
        lambda: cg.custom_gradient(lambda x: (2.0 * x, lambda dy: tf.constant(dy.numpy()))),
        r"custom_gradient: the gradient of '<lambda>' is not there, because TensorFlow could not trace grad_fn: "
        r".*numpy.*\. Correct grad_fn, or compute it with TensorFlow operations\.",
    ),
    "custom_gradient_exception": (
        lambda: cg.custom_gradient(lambda x: (2.0 * x, raising(KeyError("mine")))),
        r"custom_gradient: the gradient of '<lambda>' is not there, because TensorFlow could not trace grad_fn: "
        r"KeyError: 'mine'\. Correct grad_fn, or compute it with TensorFlow operations\.",
    ),
    "custom_vjp": (
        lambda: cg.custom_vjp(lambda x: (2.0 * x, x), lambda x, dy: tf.constant(dy.numpy())),
        r"custom_vjp: the gradient of '<lambda>' is not there, because TensorFlow could not trace backward: "
        r".*numpy.*\. Correct backward, or compute it with TensorFlow operations\.",
    ),
    "custom_vjp_count": (
        lambda: cg.custom_vjp(lambda x, y=None: (2.0 * x, x), lambda x, dy: (dy, dy, dy)),
        r"custom_vjp: the gradient of '<lambda>' is not there, because TensorFlow could not trace backward: ValueError: "
        r"custom_vjp: backward '<lambda>' of '<lambda>' returned 3 gradients; expected .* each input\. "
        r"Correct backward, or compute it with TensorFlow operations\.",
    ),
    "grad_pass_through": (
        lambda: cg.grad_pass_through(twice),
        r"grad_pass_through: the gradient of 'twice' is not there, because TensorFlow could not trace 'twice': ValueError: "
        r"grad_pass_through: 'twice' must return a value with the shape of 'x', .* changes shapes\. Correct 'twice', or .*\.",
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
        assert y[:2].numpy().tolist() == [2.0, 4.0]
        tape.gradient(y, x)
    except RuntimeError as error:
        print(name, repr(str(error)))
"""


def test_a_grad_fn_that_cannot_be_traced_does_not_block_saving(tmp_path):
    """A loaded model has the values, and says in the user's words why the gradient is missing."""
    model = tf.Module()
    for name, (make, _) in SAVED.items():
        setattr(model, name, tf.function(make(), input_signature=[tf.TensorSpec([2])]))
    with pytest.warns(UserWarning, match="^The saved model will not have this gradient") as warned:
        tf.saved_model.save(model, tmp_path / "model")
    texts = [str(warning.message) for warning in warned if "will not have" in str(warning.message)]
    assert len(texts) == len(SAVED)
    for _, expected in SAVED.values():
        assert [bool(re.search(expected, text, re.DOTALL)) for text in texts].count(True) == 1
    lines = run_python(LOAD, tmp_path / "model", *SAVED, cwd=tmp_path).stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines] == list(SAVED)
    for line, (name, (_, expected)) in zip(lines, SAVED.items(), strict=True):
        text = line.partition(" ")[2].encode().decode("unicode_escape")
        assert re.search(expected, text, re.DOTALL), text
        assert name.startswith("custom_gradient") or "grad_fn" not in text


def test_a_batched_rule_speaks_of_what_the_user_wrote():
    function = cg.custom_vjp(lambda x: (x, x), lambda x, dy: tf.constant(dy.numpy()))

    @tf.function(autograph=False)  # AutoGraph's messages quote the library's source.
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


def test_a_result_from_a_graph_that_is_gone_is_refused_in_tensorflows_words():
    kept = []
    tf.function(kept.append)(tf.constant(1.0))
    leaky = cg.custom_gradient(lambda x: (kept[0], lambda dy: dy * x))
    with pytest.raises(TypeError, match="out of scope"):
        leaky(tf.constant(1.0))
