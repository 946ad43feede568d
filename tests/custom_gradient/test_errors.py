"""Wrong results of a gradient function: every message with its full text, in eager mode, traced, and in a TF1 graph."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

pytestmark = pytest.mark.core


def eager(function):
    x, y = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = function(x, y)
    # One for each value: TensorFlow does not count them, and would read what is not there.
    tape.gradient(h, x, output_gradients=[tf.constant([1.0, 10.0])] * len(tf.nest.flatten(h)))


def traced(function):
    tf.function(lambda: eager(function), autograph=False)()


def tf1(function):
    with tf.Graph().as_default():
        x, y = tf.compat.v1.placeholder(tf.float32, [2]), tf.compat.v1.placeholder(tf.float32, [2])
        h = function(x, y)
        tf.gradients(h, x, grad_ys=[tf.constant([1.0, 10.0])] * len(tf.nest.flatten(h)))


MODES = {"eager": eager, "traced": traced, "tf1": tf1}
W = tf.Variable([1.0, 1.0], name="w")


def returning(make):
    """A function of x and y named log1pexp with a grad_fn that returns `make(dy)`."""

    def log1pexp(x, y):
        return x + y, make

    return log1pexp


def log1pexp_with_variables(x, y):
    return W * x + y, lambda dy, variables=None: (dy, dy)


CASES = {
    "number": (
        returning(lambda dy: dy),
        ValueError,
        "custom_gradient: grad_fn of 'log1pexp' returned 1 gradient; expected 2 (one per input: 'x', 'y'). Return None "
        "for an input that has no gradient.",
    ),
    "too_many": (
        returning(lambda dy: (dy, dy, dy)),
        ValueError,
        "custom_gradient: grad_fn of 'log1pexp' returned 3 gradients; expected 2 (one per input: 'x', 'y'). Return None "
        "for an input that has no gradient.",
    ),
    "dtype": (
        returning(lambda dy: (tf.cast(dy, tf.complex64), None)),
        TypeError,
        "custom_gradient: grad_fn of 'log1pexp' must return a gradient of dtype float32 for 'x', got complex64. Take its "
        "real part with tf.math.real.",
    ),
    "integers": (
        returning(lambda dy: (None, tf.cast(dy, tf.int32))),
        TypeError,
        "custom_gradient: grad_fn of 'log1pexp' must return a gradient of dtype float32 for 'y', got int32. Cast it with "
        "tf.cast.",
    ),
    "complex_array": (
        returning(lambda dy: (np.array([1j, 2j]), None)),
        TypeError,
        "custom_gradient: grad_fn of 'log1pexp' must return a gradient of dtype float32 for 'x', got complex128. Take its "
        "real part with tf.math.real.",
    ),
    "text": (
        returning(lambda dy: ("no", None)),
        TypeError,
        "custom_gradient: grad_fn of 'log1pexp' must return a Tensor for 'x', got 'no'. Return None for an input that has "
        "no gradient.",
    ),
    "text_tensor": (
        returning(lambda dy: (tf.constant(["a", "b"]), None)),
        TypeError,
        "custom_gradient: grad_fn of 'log1pexp' must return a gradient of dtype float32 for 'x', got string. Return "
        "numbers.",
    ),
    "variable_dtype": (
        lambda x, y: (W * x + y, lambda dy, variables=None: ((dy, dy), [tf.cast(dy, tf.int32)])),
        TypeError,
        "custom_gradient: grad_fn of '<lambda>' must return a gradient of dtype float32 for variable 'w:0', got int32. "
        "Cast it with tf.cast.",
    ),
    "variable_dict": (
        lambda x, y: (W * x + y, lambda dy, variables=None: ((dy, dy), {"w": dy})),
        ValueError,
        "custom_gradient: grad_fn of '<lambda>' must return the gradients of the variables in a list, got a dict. Return "
        "one gradient for each variable, in the order of 'variables'.",
    ),
    "set": (
        returning(lambda dy: {None, 1.0}),
        TypeError,
        "custom_gradient: grad_fn of 'log1pexp' must return its gradients in a tuple or a list, got a set. Return one "
        "gradient for each input, in their order.",
    ),
    "objects": (
        returning(lambda dy: np.array([None, 1.0], dtype=object)),
        TypeError,
        "custom_gradient: grad_fn of 'log1pexp' must return its gradients in a tuple or a list, got a NumPy array of "
        "objects. Return one gradient for each input, in their order.",
    ),
    "unknown_name": (
        returning(lambda dy: {"x": dy, "z": dy}),
        ValueError,
        "custom_gradient: grad_fn of 'log1pexp' returned a dict with the key 'z', but its inputs are 'x', 'y'. Use the "
        "names of the inputs as keys, or return a tuple with one gradient for each input.",
    ),
    "missing_name": (
        returning(lambda dy: {"y": dy}),
        ValueError,
        "custom_gradient: grad_fn of 'log1pexp' returned a dict without a gradient for 'x'. Use None for an input that has "
        "no gradient.",
    ),
    "dict_for_a_tensor": (
        returning(lambda dy: ({"a": dy}, dy)),
        ValueError,
        "custom_gradient: grad_fn of 'log1pexp' returned a dict for 'x', which is {kind}. Return a gradient with the "
        "structure of the input.",
    ),
    "shape": (
        returning(lambda dy: (None, tf.ones([7]))),
        ValueError,
        "custom_gradient: grad_fn of 'log1pexp' returned a gradient of the wrong shape for 'y'; expected (2,), got (7,). "
        "Give it the shape of the input: sum over what was broadcast, broadcast over what was summed.",
    ),
    "variables_not_a_pair": (
        log1pexp_with_variables,
        ValueError,
        "custom_gradient: grad_fn of 'log1pexp_with_variables' returned 1 gradient; expected 2 (one per input: 'x', 'y'). "
        "Return None for an input that has no gradient.",
    ),
    "variable_count": (
        lambda x, y: (W * x + y, lambda dy, variables=None: ((dy, dy), [])),
        ValueError,
        "custom_gradient: grad_fn of '<lambda>' returned 0 gradients for the variables; expected 1 (one per variable: "
        "'w:0'). Return None for a variable that has no gradient.",
    ),
    "variable_shape": (
        lambda x, y: (W * x + y, lambda dy, variables=None: ((dy, dy), [tf.ones([3])])),
        ValueError,
        "custom_gradient: grad_fn of '<lambda>' returned a gradient of the wrong shape for variable 'w:0'; expected "
        "(2,), got (3,). Give it the shape of the input: sum over what was broadcast, broadcast over what was summed.",
    ),
    "variables_without_gradients": (
        lambda x, y: (W * x + y, lambda dy, variables=None: dy),
        ValueError,
        None,
    ),
    "takes_no_variables": (
        lambda x, y: (W * x + y, lambda dy: (dy, dy)),
        TypeError,
        "custom_gradient: '<lambda>' reads variables that are not among its arguments ('w:0'); expected a grad_fn that "
        "takes the keyword argument 'variables', got grad_fn(dy). Write grad_fn(*dys, variables=None) and return "
        "(gradients of the inputs, gradients of the variables).",
    ),
    "no_pair": (
        lambda x, y: x + y,
        TypeError,
        None,
    ),
    "three": (
        lambda x, y: (x, y, lambda dy: dy),
        TypeError,
        None,
    ),
    "too_few_parameters": (
        lambda x, y: ((x, y), lambda dy: (dy, dy)),
        TypeError,
        "custom_gradient: grad_fn of '<lambda>' does not take its upstream gradients; expected parameters for 2 upstream "
        "gradients (one for each leaf of the value), got grad_fn(dy). Write grad_fn(*dys).",
    ),
    "missing_argument": (
        lambda x, y, z: (x, lambda dy: (dy, None, None)),
        TypeError,
        "custom_gradient: the arguments do not fit '<lambda>': missing a required argument: 'z'. Call it as "
        "<lambda>(x, y, z).",
    ),
    "rows_of_slices": (
        returning(lambda dy: (tf.IndexedSlices(tf.ones([1, 7]), tf.constant([0])), None)),
        ValueError,
        "custom_gradient: grad_fn of 'log1pexp' returned a gradient of the wrong shape for 'x'; expected rows of (), got "
        "rows of (7,). Give it the shape of the input: sum over what was broadcast, broadcast over what was summed.",
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_messages(case, mode):
    if mode == "tf1" and "variable" in case:
        mode = "traced"  # A variable of eager mode is none of a TensorFlow 1 graph.
    function, exception, message = CASES[case]
    with pytest.raises(exception) as caught:
        MODES[mode](cg.custom_gradient(function))
    if message is None:
        kind = {
            "no_pair": "'<lambda>' did not return its value with its gradient; expected a pair (value, grad_fn), got ",
            "three": "expected a pair (value, grad_fn), got ",
            "variables_without_gradients": "grad_fn of '<lambda>' did not return gradients for the variables; expected a "
            "pair (gradients of the inputs, gradients of the variables), got ",
        }[case]
        assert any(kind + article in str(caught.value) for article in ("a ", "an ")), str(caught.value)
    else:
        kind = "an EagerTensor" if mode == "eager" else "a SymbolicTensor"
        assert message.replace("{kind}", kind) in str(caught.value)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("where", ["plain", "loop"])
def test_a_wrong_shape_that_shows_at_run_time_only(where, jit_compile):
    @cg.custom_gradient
    def function(x):
        return 1.0 * x, lambda dy: tf.concat([dy, dy], 0)

    def loop(x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=2)[1]

    @tf.function(input_signature=[tf.TensorSpec([None])], jit_compile=jit_compile)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x) if where == "plain" else loop(x)
        return tape.gradient(y, x)

    message = (
        "custom_gradient: grad_fn of 'function' returned a gradient of the wrong shape for 'x'; expected [2], got [4]. "
        "Give it the shape of the input: sum over what was broadcast, broadcast over what was summed."
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run(tf.constant([1.0, 2.0]))


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
    """TensorFlow's optimizer folds an op away whose shape function says that two shapes are the same."""
    function = cg.custom_gradient(lambda x: (1.0 * x, grad_fn))

    @tf.function(input_signature=[tf.TensorSpec([size])] * 2)
    def run(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=dy)

    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape("for 'x'; expected [2], got [1]. ")):
        run(tf.constant([3.0, 4.0]), tf.constant([1.0, -10.0]))


@pytest.mark.parametrize("jit_compile", [False, True], ids=["", "jit"])
def test_a_right_shape_that_shows_at_run_time_only(jit_compile):
    @cg.custom_gradient
    def function(x):
        return 1.0 * x, lambda dy: tf.concat([2.0 * dy, dy], 0)[: tf.size(dy)]

    @tf.function(input_signature=[tf.TensorSpec([None])], jit_compile=jit_compile)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=tf.range(tf.cast(tf.size(x), tf.float32)))

    np.testing.assert_array_equal(run(tf.constant([1.0, 2.0, 3.0])), [0.0, 2.0, 4.0])


@pytest.mark.parametrize("decorator", ["custom_gradient", "recompute_grad", "grad_pass_through"])
def test_a_decorated_object_that_is_no_function_is_refused_at_once(decorator):
    with pytest.raises(TypeError, match=rf"^{decorator}: cannot decorate this value; .* got an EagerTensor. Pass"):
        getattr(cg, decorator)(tf.constant(1.0))


class OwnError(Exception):
    pass


@cg.custom_gradient
def failing(x):
    def grad_fn(dy):
        raise OwnError("as it is")

    return 2.0 * x, grad_fn


def test_an_exception_of_grad_fn_comes_when_a_gradient_is_asked_for_and_as_it_is():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = failing(x)
    np.testing.assert_array_equal(y, [2.0, 4.0])
    with pytest.raises(OwnError, match=r"^as it is$"):
        tape.gradient(y, x)


def loop(x):
    return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, failing(x)), (0, x))[1]


@pytest.mark.parametrize(("function", "value"), [(failing, [2.0, 4.0]), (loop, [4.0, 8.0])], ids=["plain", "loop"])
def test_an_exception_of_a_traced_grad_fn_is_as_it_is(function, value):
    """A tf.function builds its gradient when it is called under a tape."""
    x = tf.constant([1.0, 2.0])
    run = tf.function(function)
    np.testing.assert_array_equal(run(x), value)

    def ask():
        with tf.GradientTape() as tape:
            tape.watch(x)
            return tape.gradient(run(x), x)

    with pytest.raises(OwnError, match=r"^as it is$"):
        ask()


def test_a_grad_fn_that_cannot_be_traced_does_not_block_saving(tmp_path):
    @cg.custom_gradient
    def through_numpy(x):
        return x**2, lambda dy: tf.constant(dy.numpy() * 3)

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = through_numpy(x)
    np.testing.assert_array_equal(tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])), [3.0, 30.0])

    model = tf.Module()
    model.f = tf.function(through_numpy, input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(model, tmp_path / "model")
    code = """
import json, sys
import tensorflow as tf, tf_cg_ops
f, x = tf.saved_model.load(sys.argv[1]).f, tf.constant([1.0, 2.0])
y = f(x)
try:
    with tf.GradientTape() as tape:
        tape.watch(x)
        tape.gradient(f(x), x)
except RuntimeError as error:
    print(json.dumps([y.numpy().tolist(), str(error)]))
"""
    value, message = json.loads(run_python(code, tmp_path / "model", cwd=tmp_path).stdout.splitlines()[-1])
    assert value == [1.0, 4.0]
    assert message.startswith(
        "custom_gradient: the gradient of 'through_numpy' is not there; expected a grad_fn that TensorFlow can trace into "
        "a graph, got this while tracing it: "
    )
    assert "numpy" in message


def test_a_result_from_a_graph_that_is_gone_is_refused_in_tensorflows_words():
    kept = []
    tf.function(kept.append)(tf.constant(1.0))

    @cg.custom_gradient
    def leaky(x):
        return kept[0], lambda dy: dy * x

    with pytest.raises(TypeError, match="out of scope"):
        leaky(tf.constant(1.0))
