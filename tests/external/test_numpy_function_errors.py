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
X = tf.constant([1.0, 2.0])


def f(x):
    return x, np.ones_like(x)


def returning(*answer):
    def simulate(x, y):
        return answer[0] if len(answer) == 1 else answer

    return simulate


ZEROS, JACOBIAN = np.zeros(3), np.zeros((3, 2))
BATCH = np.zeros((2, 3)), [np.zeros((2, 3))] * 2
ELEMENTWISE = (
    "Without an output, value and gradients have the shape to which the inputs broadcast: for anything else pass "
    "output=tf.TensorSpec(shape, dtype)."
)
NOT_BATCHED = "The value has output.shape and a gradient output.shape + x.shape."
BATCHED = "With batched=True the value is [batch] + output.shape and a gradient [batch] + output.shape + x.shape[1:]."

# Each with what numpy_function gets beside the function, which is called with two inputs of shape [2].
RESULTS = {
    "no_pair": (
        returning(ZEROS),
        {},
        TypeError,
        "numpy_function: 'simulate' did not return its value with its gradient; expected a pair (value, gradients), got a "
        "ndarray. End it with: return value, gradients",
    ),
    "three": (
        returning(ZEROS, ZEROS, ZEROS),
        {},
        TypeError,
        "numpy_function: 'simulate' did not return its value with its gradient; expected a pair (value, gradients), got a "
        "tuple of 3 (ndarray, ndarray, ndarray). End it with: return value, gradients",
    ),
    "one_gradient": (
        returning(ZEROS, JACOBIAN),
        {"output": SPEC},
        ValueError,
        "numpy_function: 'simulate' returned a wrong number of gradients; expected 2 (one for each differentiable input: "
        "'x', 'y'), got a ndarray. Name inputs that have no gradient in nondiff_argnames.",
    ),
    "three_gradients": (
        returning(ZEROS, [JACOBIAN] * 3),
        {"output": SPEC},
        ValueError,
        "numpy_function: 'simulate' returned a wrong number of gradients; expected 2 (one for each differentiable input: "
        "'x', 'y'), got 3. Name inputs that have no gradient in nondiff_argnames.",
    ),
    "none": (
        returning(ZEROS, [JACOBIAN, None]),
        {"output": SPEC},
        ValueError,
        "numpy_function: 'simulate' returned no gradient for 'y'; expected an array, got None. Name an input that has no "
        "gradient in nondiff_argnames.",
    ),
    "none_alone": (
        returning(ZEROS, None),
        {"output": SPEC, "nondiff_argnames": ["y"]},
        ValueError,
        "numpy_function: 'simulate' returned no gradient for 'x'; expected an array, got None. Name an input that has no "
        "gradient in nondiff_argnames.",
    ),
    "value_shape": (
        returning(np.zeros(2), [JACOBIAN, JACOBIAN]),
        {"output": SPEC},
        ValueError,
        f"numpy_function: 'simulate' returned a value of the wrong shape; expected (3,), got (2,). {NOT_BATCHED}",
    ),
    "gradient_shape": (
        returning(ZEROS, [JACOBIAN, JACOBIAN.T]),
        {"output": SPEC},
        ValueError,
        f"numpy_function: 'simulate' returned a gradient for 'y' of the wrong shape; expected (3, 2), got (2, 3). {NOT_BATCHED}",
    ),
    "batch_shape": (
        returning(*BATCH),
        {"output": SPEC, "batched": True},
        None,
        None,
    ),
    "batch_value_shape": (
        returning(BATCH[0].T, BATCH[1]),
        {"output": SPEC, "batched": True},
        ValueError,
        f"numpy_function: 'simulate' returned a value of the wrong shape; expected (2, 3), got (3, 2). {BATCHED}",
    ),
    "batch_gradient_shape": (
        returning(BATCH[0], [BATCH[0], np.zeros(3)]),
        {"output": SPEC, "batched": True},
        ValueError,
        f"numpy_function: 'simulate' returned a gradient for 'y' of the wrong shape; expected (2, 3), got (3,). {BATCHED}",
    ),
    "elementwise_shape": (
        returning(np.zeros(2), [JACOBIAN, np.zeros(2)]),
        {},
        ValueError,
        f"numpy_function: 'simulate' returned a gradient for 'x' of the wrong shape; expected (2,), got (3, 2). {ELEMENTWISE}",
    ),
    "complex_value": (
        returning(1j * ZEROS, [JACOBIAN, JACOBIAN]),
        {"output": SPEC},
        ValueError,
        "numpy_function: 'simulate' returned a complex value; expected float32, got complex128. Return its real part, or "
        "make the dtype of output complex.",
    ),
    "complex_gradient": (
        returning(ZEROS, [1j * JACOBIAN, JACOBIAN]),
        {"output": SPEC},
        ValueError,
        "numpy_function: 'simulate' returned a complex gradient for 'x'; expected float32, got complex128. Return its real "
        "part, or make the dtype of output complex.",
    ),
    "ragged": (
        returning([[1.0], [2.0, 3.0]], [JACOBIAN, JACOBIAN]),
        {"output": SPEC},
        ValueError,
        "numpy_function: 'simulate' returned a value that is not an array of numbers; expected numbers, got [[1.0], [2.0, "
        "3.0]]. Return NumPy arrays.",
    ),
    "no_numbers": (
        returning("solved", [JACOBIAN, JACOBIAN]),
        {"output": SPEC},
        ValueError,
        "numpy_function: 'simulate' returned a value that is not an array of numbers; expected numbers, got 'solved'. Return "
        "NumPy arrays.",
    ),
}


@pytest.mark.parametrize("case", [name for name in RESULTS if RESULTS[name][2]])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_results_of_the_function_are_checked(case, traced):
    """In a graph TensorFlow makes an error of its own of it, with the text."""
    function, keywords, kind, message = RESULTS[case]
    wrapped = cg.numpy_function(function, **keywords)
    if not traced:
        with pytest.raises(kind, match=f"^{re.escape(message)}$"):
            wrapped(X, X)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(f"{kind.__name__}: {message}")):
        tf.function(wrapped)(X, X)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_inputs_that_are_not_one_batch(traced):
    function, keywords, _, _ = RESULTS["batch_shape"]
    wrapped = cg.numpy_function(function, **keywords)
    unknown = [tf.TensorSpec(None, tf.float32)] * 2
    runs = [tf.function(wrapped), tf.function(wrapped, input_signature=unknown)] if traced else [wrapped]
    assert wrapped(X, X).shape == (2, 3)
    message = (
        "numpy_function: the differentiable inputs of 'simulate' are not one batch; expected the same leading dimension for "
        "all, got shape (2,) for 'x', shape (3,) for 'y'. Broadcast them, or name an input that has no gradient in "
        "nondiff_argnames."
    )
    for run in runs:
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=re.escape(message)):
            run(X, tf.zeros([3]))
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=re.escape("shape () for 'y'")):
            run(X, tf.zeros([]))


CALLS = {
    "no_differentiable_input": (
        lambda: cg.numpy_function(f)(tf.constant([1, 2])),
        TypeError,
        "numpy_function: 'f' has no differentiable input that gives its output a shape and a dtype; expected a "
        "floating-point or complex input or an output, got neither. Pass output=tf.TensorSpec(shape, dtype).",
    ),
    "no_broadcast": (
        lambda: cg.numpy_function(returning(0, 0))(X, tf.zeros([3])),
        ValueError,
        "numpy_function: the differentiable inputs of 'simulate' do not broadcast; expected shapes that broadcast, since "
        "there is no output, got (2,) for 'x', (3,) for 'y'. Pass output=tf.TensorSpec(shape, dtype) if it is not "
        "elementwise.",
    ),
    "ragged": (
        lambda: cg.numpy_function(f)(tf.ragged.constant([[1.0], [2.0, 3.0]])),
        TypeError,
        "numpy_function: an argument of 'f' is not a dense tensor; expected a Tensor or an array for 'x', got a RaggedTensor. "
        "Convert it before the call.",
    ),
    "wrong_arguments": (
        lambda: cg.numpy_function(f)(X, X),
        TypeError,
        "numpy_function: the arguments do not fit 'f': too many positional arguments. Call it as f(x).",
    ),
}
DECORATIONS = {
    "no_function": (
        lambda: cg.numpy_function(3),
        TypeError,
        "numpy_function: cannot decorate this value; expected a function or another callable, got an int. Pass "
        "the function itself, then call the result with its arguments.",
    ),
    "no_spec": (
        lambda: cg.numpy_function(f, [3]),
        TypeError,
        "numpy_function: output does not describe the value; expected a tf.TensorSpec of known rank with a dtype of float16, "
        "bfloat16, float32, float64, complex64, complex128, got [3]. Write for example output=tf.TensorSpec([3], "
        "tf.float64), or leave it out for a function of single elements.",
    ),
    "unknown_rank": (lambda: cg.numpy_function(f, tf.TensorSpec(None, tf.float32)), TypeError, None),
    "integer_output": (lambda: cg.numpy_function(f, tf.TensorSpec([3], tf.int32)), TypeError, None),
    "batched": (
        lambda: cg.numpy_function(f, SPEC, batched=32),
        TypeError,
        "numpy_function: batched is not a bool; expected True or False, got 32. Pass a Python bool.",
    ),
    "nondiff": (
        lambda: cg.numpy_function(f, nondiff_argnames=["z"]),
        ValueError,
        "numpy_function: nondiff_argnames does not name arguments of 'f'; expected some of ['x'], got ['z']. Pass a list of "
        "names.",
    ),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_calls_are_checked(case, traced):
    call, kind, message = CALLS[case]
    with pytest.raises(kind, match=re.escape(message)):
        (tf.function(call, autograph=False) if traced else call)()


@pytest.mark.parametrize("case", DECORATIONS)
def test_the_decoration_is_checked(case):
    make, kind, message = DECORATIONS[case]
    with pytest.raises(kind, match=re.escape(message or "numpy_function: output does not describe the value; ")):
        make()


def raising(x):
    raise KeyError("the solver has diverged")


def test_exceptions_of_the_function_come_as_they_are_in_eager_mode_and_with_their_text_in_a_graph():
    with pytest.raises(KeyError, match=r"^'the solver has diverged'$"):
        cg.numpy_function(raising)(X)
    with pytest.raises(tf.errors.UnknownError, match="KeyError: 'the solver has diverged'"):
        tf.function(cg.numpy_function(raising))(X)


UNDER_XLA = (
    "numpy_function: 'f' is Python code, which XLA cannot compile; expected a graph without XLA, got one with "
    "jit_compile=True. Compile a Keras model with jit_compile=False, and leave jit_compile=True out of every tf.function "
    "around it."
)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["direct", "in_an_inner_function"])
def test_xla_is_refused(wrap):
    function = wrap(cg.numpy_function(f))
    with pytest.raises(NotImplementedError, match=re.escape(UNDER_XLA)):
        tf.function(lambda x: 2.0 * function(x), jit_compile=True)(X)


def test_a_keras_model_under_xla_is_told_what_to_do():
    class Layer(keras.layers.Layer):
        def call(self, x):
            return cg.numpy_function(f)(x)

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2), Layer()])
    model.compile(loss="mse", jit_compile=True)
    with pytest.raises(NotImplementedError, match="Compile a Keras model with jit_compile=False"):
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)


class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def direct(self, x):
        return cg.numpy_function(f)(x)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def in_a_loop(self, x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, cg.numpy_function(f)(x)), (0, x))[1]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def in_a_gradient(self, x):
        @cg.custom_gradient
        def in_grad_fn(x):
            return x, lambda dy: dy * cg.numpy_function(f)(x)

        return in_grad_fn(x)


@pytest.mark.parametrize("name", ["direct", "in_a_loop", "in_a_gradient"])
def test_saving_is_refused(name, tmp_path, capfd):
    module = tf.Module()
    module.call = getattr(Model(), name)
    with pytest.raises(ValueError, match=r"Problematic op name: .*numpy_function_of_f/PyFunc") as caught:
        tf.saved_model.save(module, tmp_path / "model")
    message = (
        "tf_cg_ops: the operation that TensorFlow names is Python code, of numpy_function or of watch_gradient, which a graph "
        "cannot hold; expected TensorFlow operations in what is saved, got a function of this process. Save the weights, and "
        "build the model from its Python code where they are loaded."
    )
    assert str(caught.value.__cause__) == message
    assert message in capfd.readouterr().err  # TensorFlow's own message points there.


# TensorFlow's numbers for Python functions start anew: under the same number there are others here.
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
if sys.argv[2] == "others":
    keep = [tf.function(cg.numpy_function(lambda x: other(x))), tf.function(lambda x: tf.numpy_function(other, [x], [x.dtype] * 2))]
    for function in keep:
        function(x)
called.clear()
model = tf.saved_model.load(sys.argv[1])
try:
    model.direct(x)
except tf.errors.InvalidArgumentError as error:
    print(error)
assert not called
"""


@pytest.mark.parametrize("others", ["", "others"], ids=["alone", "beside_other_functions"])
def test_a_graph_that_was_saved_nevertheless_calls_no_other_function(others, tmp_path):
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    model = Model()
    module = tf.Module()
    module.direct = model.direct
    tf.saved_model.save(module, tmp_path / "model", options=options)
    result = run_python(
        IN_ANOTHER_PROCESS, tmp_path / "model", others, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}
    )
    assert (
        "numpy_function: 'f' is Python code, which lived in the process that made this graph; expected that process, got "
        "another one. Build the model from its Python code here, and load its weights."
    ) in result.stdout
