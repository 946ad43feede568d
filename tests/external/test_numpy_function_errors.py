"""Wrong uses of numpy_function: every message with its full text, in eager mode and in a graph; XLA; saving."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.sources import ROOT

SPEC = tf.TensorSpec([3], tf.float32)
X, Y = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])


def f(x):
    return x, np.ones_like(x)


SINGLE = cg.numpy_function(f)
ZEROS, JACOBIAN = np.zeros(3), np.zeros((3, 2))
BATCH = np.zeros((2, 3))
ELEMENTWISE = (
    "Without an output, value and gradients have the shape to which the inputs broadcast. For any other shape, pass "
    "output=tf.TensorSpec(shape, dtype)."
)
NOT_BATCHED = "The value has output.shape and a gradient output.shape + x.shape."
BATCHED = "With batched=True the value is [batch] + output.shape and a gradient [batch] + output.shape + x.shape[1:]."
WITH_VJP = "It has the shape output.shape."
NO_GRADIENT = "got None. Name an input that has no gradient in nondiff_argnames."
NONDIFF = (
    "Integers, bools and other values without a derivative have none. Name other inputs that have no gradient in "
    "nondiff_argnames."
)
REAL_PART = "got complex128. Return the real part, or make the dtype of output complex."
TWO = [SPEC, tf.TensorSpec([], tf.int32)]
OF_TWO = (
    "the structure of output, [TensorSpec(shape=(3,), dtype=tf.float32, name=None), TensorSpec(shape=(), dtype=tf.int32, "
    "name=None)], got"
)


def called(answer, output=SPEC, **options):
    """A call of a function of two inputs that returns this answer."""

    def simulate(x, y):
        return answer

    return lambda: cg.numpy_function(simulate, output, **options)(X, Y)


def made(answer=(ZEROS, None), gradients=(ZEROS[:2], ZEROS[:2]), output=SPEC, jvp=None, **options):
    """A function with a vjp that returns these gradients."""

    def simulate(x, y):
        return answer

    return cg.numpy_function(simulate, output, vjp=lambda residuals, *dy: gradients, jvp=jvp, **options)


def gradient(function):
    with tf.GradientTape() as tape:
        tape.watch([X, Y])
        value = tf.nest.flatten(function(X, Y))[0]
    return tape.gradient(value, [X, Y])


def tangent(function):
    with tf.autodiff.ForwardAccumulator([X, Y], [X, Y]) as accumulator:
        value = tf.nest.flatten(function(X, Y))[0]
    return accumulator.jvp(value)


# What to run, and the message after "numpy_function: ".
VALUES = {
    "one gradient": (
        called((ZEROS, JACOBIAN)),
        f"'simulate' must return 2 gradients (one for each differentiable input: 'x', 'y'), got an ndarray. {NONDIFF}",
    ),
    "three gradients": (
        called((ZEROS, [JACOBIAN] * 3)),
        f"'simulate' must return 2 gradients (one for each differentiable input: 'x', 'y'), got 3. {NONDIFF}",
    ),
    "no gradient": (
        called((ZEROS, [JACOBIAN, None])),
        f"'simulate' must return a gradient for 'y', {NO_GRADIENT}",
    ),
    "no gradient of one": (
        called((ZEROS, None), nondiff_argnames=["y"]),
        f"'simulate' must return a gradient for 'x', {NO_GRADIENT}",
    ),
    "shape of the value": (
        called((np.zeros(2), [JACOBIAN, JACOBIAN])),
        f"'simulate' must return a value of shape (3,), got (2,). {NOT_BATCHED}",
    ),
    "shape of a gradient": (
        called((ZEROS, [JACOBIAN, JACOBIAN.T])),
        f"'simulate' must return a gradient for 'y' of shape (3, 2), got (2, 3). {NOT_BATCHED}",
    ),
    "shape of a batch": (
        called((BATCH.T, [BATCH, BATCH]), batched=True),
        f"'simulate' must return a value of shape (2, 3), got (3, 2). {BATCHED}",
    ),
    "shape of gradients of a batch": (
        called((BATCH, [BATCH, np.zeros(3)]), batched=True),
        f"'simulate' must return a gradient for 'y' of shape (2, 3), got (3,). {BATCHED}",
    ),
    "shape without an output": (
        called((np.zeros(2), [JACOBIAN, np.zeros(2)]), None),
        f"'simulate' must return a gradient for 'x' of shape (2,), got (3, 2). {ELEMENTWISE}",
    ),
    "vjp: shape of the value": (
        lambda: made((np.zeros(2), None))(X, Y),
        f"'simulate' must return a value of shape (3,), got (2,). {WITH_VJP}",
    ),
    "vjp: shape of a leaf": (
        lambda: made(([np.zeros(3), [1, 2]], None), output=TWO)(X, Y),
        f"'simulate' must return a value (leaf 1 of 2) of shape (), got (2,). {WITH_VJP}",
    ),
    "vjp: shape of a batch": (
        lambda: made(batched=True)(X, Y),
        "'simulate' must return a value of shape (2, 3), got (3,). It has the shape [batch] + output.shape.",
    ),
    "vjp: shape without an output": (
        lambda: made(output=None)(X, Y),
        "'simulate' must return a value of shape (2,), got (3,). Without an output, it has the shape to which the inputs "
        "broadcast.",
    ),
    "vjp: structure": (
        lambda: made(output=TWO)(X, Y),
        f"'simulate' must return a value with {OF_TWO} array([0., 0., 0.]). Return one array for each TensorSpec.",
    ),
    "vjp: number of gradients": (
        lambda: gradient(made(gradients=[np.zeros(2)])),
        f"vjp of 'simulate' must return 2 gradients (one for each differentiable input: 'x', 'y'), got 1. {NONDIFF}",
    ),
    "vjp: no gradient": (
        lambda: gradient(made(gradients=[np.zeros(2), None])),
        f"vjp of 'simulate' must return a gradient for 'y', {NO_GRADIENT}",
    ),
    "vjp: shape of a gradient": (
        lambda: gradient(made(gradients=[np.zeros(2), np.zeros(3)])),
        "vjp of 'simulate' must return a gradient for 'y' of shape (2,), got (3,). A gradient has the shape of its input.",
    ),
    "jvp: shape": (
        lambda: tangent(made(jvp=lambda *_: np.zeros(4))),
        "jvp of 'simulate' must return a tangent of shape (3,), got (4,). It has the shape of the value.",
    ),
    "jvp: structure": (
        lambda: tangent(made(([np.zeros(3), 1], None), output=TWO, jvp=lambda *_: np.zeros(3)[:1])),
        f"jvp of 'simulate' must return a tangent with {OF_TWO} array([0.]). Return one array for each TensorSpec.",
    ),
}
TYPES = {
    "complex value": (
        called((1j * ZEROS, [JACOBIAN, JACOBIAN])),
        f"'simulate' must return real numbers as the value, {REAL_PART}",
    ),
    "complex gradient": (
        called((ZEROS, [1j * JACOBIAN, JACOBIAN])),
        f"'simulate' must return real numbers as the gradient for 'x', {REAL_PART}",
    ),
    "ragged": (
        called(([[1.0], [2.0, 3.0]], [JACOBIAN, JACOBIAN])),
        "'simulate' must return an array of numbers as the value, got [[1.0], [2.0, 3.0]]. Return a NumPy array.",
    ),
    "no pair": (
        called(ZEROS),
        "'simulate' must return a pair (value, gradients), got an ndarray. End it with: return value, gradients",
    ),
    "vjp: no pair": (
        lambda: made(np.zeros(3))(X, Y),
        "'simulate' must return a pair (value, residuals), since there is a vjp, got an ndarray. End it with: return value, "
        "residuals",
    ),
    "vjp: parameters": (
        lambda: gradient(cg.numpy_function(lambda x, y: (ZEROS, None), SPEC, vjp=lambda residuals: None)),
        "vjp of '<lambda>' must take residuals, 1 upstream gradient, got vjp(residuals). Write vjp(residuals, *dy).",
    ),
    "vjp: parameters of nondiff_argnames": (
        lambda: gradient(
            cg.numpy_function(
                lambda x, y: (ZEROS, None), SPEC, vjp=lambda residuals, dy: dy[:2], nondiff_argnames=["y"]
            )
        ),
        "vjp of '<lambda>' must take residuals, 1 upstream gradient, and 'y' (from nondiff_argnames), got vjp(residuals, "
        "dy). Write vjp(residuals, *dy, y).",
    ),
    "jvp: parameters": (
        lambda: tangent(made(jvp=lambda residuals, dx: dx)),
        "jvp of 'simulate' must take residuals, 2 tangents, got jvp(residuals, dx). Write jvp(residuals, *tangents).",
    ),
}


@pytest.mark.parametrize("case", [*VALUES, *TYPES])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_results_are_checked(case, traced):
    """In a graph TensorFlow raises an error of its own with the same text."""
    run, message = (VALUES | TYPES)[case]
    error, message = TypeError if case in TYPES else ValueError, f"numpy_function: {message}"
    if traced:
        with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(f"{error.__name__}: {message}")):
            tf.function(run, autograph=False)()
    else:
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            run()


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_inputs_that_are_not_one_batch(traced):
    wrapped = cg.numpy_function(lambda x, y: (BATCH, [BATCH, BATCH]), SPEC, batched=True)
    unknown = [tf.TensorSpec(None, tf.float32)] * 2
    runs = [tf.function(wrapped), tf.function(wrapped, input_signature=unknown)] if traced else [wrapped]
    assert wrapped(X, X).shape == (2, 3)
    message = (
        "numpy_function: with batched=True, the differentiable inputs of '<lambda>' must have the same leading dimension, "
        "got shape (2,) for 'x', shape (3,) for 'y'. Broadcast them, or name an input that has no gradient in "
        "nondiff_argnames."
    )
    for run in runs:
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=re.escape(message)):
            run(X, tf.zeros([3]))
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=re.escape("shape () for 'y'")):
            run(X, tf.zeros([]))


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_forward_mode_without_a_jvp(traced):
    message = (
        "numpy_function: 'simulate' has no tangents and no second derivatives. Pass a jvp for forward mode, and a vjp made "
        "with numpy_function for second derivatives."
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        (tf.function(tangent, autograph=False) if traced else tangent)(made())


def test_second_derivatives_in_eager_mode():
    message = (
        "numpy_function: 'simulate' has no second derivatives, because its vjp computes with arrays. Pass a vjp made with "
        "numpy_function."
    )
    for jvp in (None, lambda *_: np.zeros(3)):
        with tf.GradientTape() as tape:
            tape.watch([X, Y])
            dx, _ = gradient(made(jvp=jvp))
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            tape.gradient(dx, X)


def test_gradients_of_the_tangents_of_a_function_with_an_integer_output():
    function = made(([ZEROS, 1], None), output=TWO, jvp=lambda *_: [ZEROS, 0])

    @tf.function(autograph=False)
    def derived():
        with tf.GradientTape() as tape:
            tape.watch([X, Y])
            tangents = tangent(function)
        return tape.gradient(tangents, X)

    message = (
        "numpy_function: to differentiate the tangents of 'simulate', output must not hold integers or bools. Return those "
        "as residuals."
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        derived()


def test_gradients_of_tensors_are_checked():
    spec = tf.TensorSpec([2])

    def function(vjp):
        return cg.numpy_function(lambda x, y: (x.numpy() if tf.is_tensor(x) else x, None), spec, vjp=tf.function(vjp))

    with pytest.raises(TypeError, match=re.escape("must return a gradient of dtype float32 for 'y', got int32")):
        gradient(function(lambda inputs, dy: (dy, tf.cast(dy, tf.int32))))
    assert gradient(function(lambda inputs, dy: (dy, tf.cast(dy, tf.float64))))[1].dtype == tf.float32
    with pytest.raises(ValueError, match=re.escape("wrong shape for 'x'; expected (2,), got (1,)")):
        gradient(function(lambda inputs, dy: (dy[:1], dy)))
    with pytest.raises(ValueError, match=re.escape("returned 3 gradients; expected 2 (one per input: 'x', 'y').")):
        gradient(function(lambda inputs, dy: (dy, dy, dy)))


# Calls and decorations

NO_SPEC = "output must be a tf.TensorSpec with a dtype of "
DTYPES = "float16, bfloat16, float32, float64, complex64, complex128"
WRITE = "Write for example output=tf.TensorSpec([3], tf.float64), or leave it out for an elementwise function."
UNLIKE_TENSORFLOW = (
    "Unlike tf.numpy_function, it takes a function and returns one: write numpy_function(f, output)(x), and name the "
    "options, as in batched=True."
)

# What to run, the error, and the message after "numpy_function: ".
CALLS = {
    "no_differentiable_input": (
        lambda: SINGLE(tf.constant([1, 2])),
        TypeError,
        "without an output, 'f' must get a floating-point or complex input, got none. Pass output=tf.TensorSpec(shape, "
        "dtype).",
    ),
    "no_broadcast": (
        lambda: cg.numpy_function(lambda x, y: (0, 0))(X, tf.zeros([3])),
        ValueError,
        "without an output, the differentiable inputs of '<lambda>' must broadcast, got (2,) for 'x', (3,) for 'y'. If it "
        "is not elementwise, pass output=tf.TensorSpec(shape, dtype).",
    ),
    "ragged": (
        lambda: SINGLE(tf.ragged.constant([[1.0], [2.0, 3.0]])),
        TypeError,
        "the argument 'x' of 'f' must be a Tensor or an array, got a RaggedTensor. Convert it before the call.",
    ),
    "wrong_arguments": (
        lambda: SINGLE(X, X),
        TypeError,
        "the arguments do not fit 'f': too many positional arguments. Call it as f(x).",
    ),
    "no_function": (
        lambda: cg.numpy_function(3),
        TypeError,
        "the argument must be a function, got an int. Pass the function itself, then call the result with its arguments.",
    ),
    "no_spec": (lambda: cg.numpy_function(f, [3]), TypeError, f"{NO_SPEC}{DTYPES}, got [3]. {WRITE}"),
    "unknown_rank": (
        lambda: cg.numpy_function(f, tf.TensorSpec(None, tf.float32)),
        ValueError,
        "output must have a known rank, got ",
    ),
    "integer_output": (lambda: cg.numpy_function(f, tf.TensorSpec([3], tf.int32)), TypeError, NO_SPEC),
    "structure_without_vjp": (lambda: cg.numpy_function(f, [SPEC]), TypeError, NO_SPEC),
    "nothing": (lambda: cg.numpy_function(f, [], vjp=len), TypeError, NO_SPEC),
    "string": (
        lambda: cg.numpy_function(f, [SPEC, tf.TensorSpec([], tf.string)], vjp=len),
        TypeError,
        f"{NO_SPEC}{DTYPES}, an integer or bool, got TensorSpec(shape=(), dtype=tf.string, name=None). {WRITE}",
    ),
    "vjp": (
        lambda: cg.numpy_function(f, vjp=3),
        TypeError,
        "vjp must be a function vjp(residuals, *dy), got an int.",
    ),
    "jvp_alone": (
        lambda: cg.numpy_function(f, jvp=len),
        ValueError,
        "jvp needs a vjp, got jvp=len alone. Pass both, or leave out jvp: the gradients that a function returns also give "
        "its tangents.",
    ),
    "batched": (
        lambda: cg.numpy_function(f, SPEC, batched=32),
        TypeError,
        "batched must be True or False, got 32. Pass a Python bool.",
    ),
    "the call of tf.numpy_function": (
        lambda: cg.numpy_function(f, [X], tf.float32),
        TypeError,
        f"too many positional arguments. {UNLIKE_TENSORFLOW}",
    ),
    "the names of tf.numpy_function": (
        lambda: cg.numpy_function(func=f, inp=[X], Tout=tf.float32),
        TypeError,
        f"missing a required argument: 'f'. {UNLIKE_TENSORFLOW}",
    ),
    "nondiff": (
        lambda: cg.numpy_function(f, nondiff_argnames=["z"]),
        ValueError,
        "nondiff_argnames must name arguments of 'f', which are ['x'], got ['z'].",
    ),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_calls_are_checked(case, traced):
    call, kind, message = CALLS[case]
    with pytest.raises(kind, match=re.escape(f"numpy_function: {message}")):
        (tf.function(call, autograph=False) if traced else call)()


def raising(x, *_):
    raise KeyError("the solver has diverged")


def test_exceptions_of_the_function_come_as_they_are_in_eager_mode_and_with_their_text_in_a_graph():
    with pytest.raises(KeyError, match=r"^'the solver has diverged'$"):
        cg.numpy_function(raising)(X)
    with pytest.raises(KeyError, match=r"^'the solver has diverged'$"):
        gradient(cg.numpy_function(lambda x, y: (ZEROS, None), SPEC, vjp=raising))
    with pytest.raises(tf.errors.UnknownError, match="KeyError: 'the solver has diverged'"):
        tf.function(cg.numpy_function(raising))(X)


UNDER_XLA = (
    "numpy_function: 'f' is Python code, which XLA cannot compile. Leave jit_compile=True out of every tf.function around "
    "it, and compile a Keras model with jit_compile=False."
)
FUNCTIONS = {
    "direct": SINGLE,
    "with_vjp": cg.numpy_function(f, vjp=lambda residuals, dy: dy),
    "in_an_inner_function": tf.function(SINGLE),
    "in_a_loop": lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, SINGLE(x)), (0, x))[1],
}


@pytest.mark.mode_table(feature="numpy_function", mode="jit", outcome="unsupported")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_xla_is_refused(name):
    with pytest.raises(NotImplementedError, match=re.escape(UNDER_XLA)):
        tf.function(lambda x: 2.0 * FUNCTIONS[name](x), jit_compile=True)(X)


@pytest.mark.mode_table(feature="numpy_function", mode="keras_jit", outcome="unsupported")
def test_a_keras_model_under_xla_is_told_what_to_do():
    class Layer(keras.layers.Layer):
        def call(self, x):
            return cg.numpy_function(f)(x)

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2), Layer()])
    model.compile(loss="mse", jit_compile=True)
    with pytest.raises(NotImplementedError, match="compile a Keras model with jit_compile=False"):
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)


def module_of(function):
    module = tf.Module()
    module.call = tf.function(function, input_signature=[tf.TensorSpec([None])])
    return module


IN_A_GRADIENT = cg.custom_gradient(lambda x: (x, lambda dy: dy * SINGLE(x)))


@pytest.mark.mode_table(feature="numpy_function", mode="reloaded", outcome="unsupported")
@pytest.mark.parametrize("function", [*FUNCTIONS.values(), IN_A_GRADIENT], ids=[*FUNCTIONS, "in_a_gradient"])
def test_saving_is_refused(function, tmp_path, capfd):
    message = (
        "tf_cg_ops: a saved function must consist of TensorFlow operations, got Python code from numpy_function or "
        "watch_gradient(call=...). Save the weights instead, and build the model from its code where you load them."
    )
    with pytest.raises(
        ValueError, match=f"^Found invalid capture b'{re.escape(message)}' when saving custom gradients\\.$"
    ):
        tf.saved_model.save(module_of(function), tmp_path)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.mode_table(feature="numpy_function", mode="keras_export", outcome="unsupported")
def test_exporting_a_keras_model_is_refused(tmp_path):
    x = keras.Input([2])
    model = keras.Model(x, SINGLE(x))
    with pytest.raises(ValueError, match="a saved function must consist of TensorFlow operations"):
        model.export(tmp_path / "model", verbose=False)


# TensorFlow numbers Python functions from 1 in each process, so here the saved number belongs to another function.
IN_ANOTHER_PROCESS = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

called = []
def other(*arrays):
    called.append(arrays)
    return arrays[-1], arrays[-1]

x = tf.constant([1.0, 2.0])
keep = [tf.function(cg.numpy_function(lambda x: other(x))), tf.function(lambda x: tf.numpy_function(other, [x], [x.dtype] * 2))]
for function in keep:
    function(x)
called.clear()
try:
    tf.saved_model.load(sys.argv[1]).call(x)
except tf.errors.InvalidArgumentError as error:
    print(error)
assert not called
"""


def test_a_graph_that_was_saved_nevertheless_calls_no_other_function(tmp_path):
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module_of(SINGLE), tmp_path / "model", options=options)
    result = run_python(IN_ANOTHER_PROCESS, tmp_path / "model", cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert (
        "numpy_function: 'f' is Python code, which only runs in the process that made this graph. Build the model from its Python code here, and load its weights."
    ) in result.stdout
