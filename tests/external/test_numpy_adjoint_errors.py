"""Wrong uses of numpy_function with vjp: every message with its full text, in eager mode and in a graph."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

SPEC = tf.TensorSpec([3], tf.float32)
X, Y = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
TWO = [SPEC, tf.TensorSpec([], tf.int32)]
HINT = "It has the shape of output."


ANSWER, GRADIENTS = (np.zeros(3), None), (np.zeros(2), np.zeros(2))


def made(answer=ANSWER, gradients=GRADIENTS, output=SPEC, jvp=None, **options):
    """A function of two inputs that returns this answer, with these gradients."""

    def simulate(x, y):
        return answer

    def adjoint(residuals, *dy):
        return gradients

    return cg.numpy_function(simulate, output, vjp=adjoint, jvp=jvp, **options)


def gradient(function):
    with tf.GradientTape() as tape:
        tape.watch([X, Y])
        value = tf.nest.flatten(function(X, Y))[0]
    return tape.gradient(value, [X, Y])


def tangent(function):
    with tf.autodiff.ForwardAccumulator([X, Y], [X, Y]) as accumulator:
        value = tf.nest.flatten(function(X, Y))[0]
    return accumulator.jvp(value)


def raising(residuals, *dy):
    raise TypeError("of the user's own")


RESULTS = {
    "parameters_of_vjp": (
        lambda: gradient(cg.numpy_function(lambda x, y: ANSWER, SPEC, vjp=lambda residuals: GRADIENTS)),
        TypeError,
        "numpy_function: vjp of '<lambda>' does not take its residuals and upstream gradients; expected parameters for "
        "residuals and 1 upstream gradient, got vjp(residuals). Write vjp(residuals, *dy).",
    ),
    "parameters_of_jvp": (
        lambda: tangent(made(jvp=lambda residuals, dx: dx)),
        TypeError,
        "numpy_function: jvp of 'simulate' does not take its residuals and tangents; expected parameters for residuals and "
        "2 tangents, got jvp(residuals, dx). Write jvp(residuals, *tangents).",
    ),
    "no_pair": (
        lambda: made(np.zeros(3))(X, Y),
        TypeError,
        "numpy_function: 'simulate' did not return its value with its residuals; expected a pair (value, residuals), since "
        "there is a vjp, got a ndarray. End it with: return value, residuals",
    ),
    "shape": (
        lambda: made((np.zeros(2), None))(X, Y),
        ValueError,
        f"numpy_function: 'simulate' returned a value of the wrong shape; expected (3,), got (2,). {HINT}",
    ),
    "shape_of_a_leaf": (
        lambda: made(([np.zeros(3), [1, 2]], None), output=TWO)(X, Y),
        ValueError,
        "numpy_function: 'simulate' returned a value (leaf 1 of 2) of the wrong shape; expected (), got (2,). " + HINT,
    ),
    "shape_of_a_batch": (
        lambda: made(batched=True)(X, Y),
        ValueError,
        "numpy_function: 'simulate' returned a value of the wrong shape; expected (2, 3), got (3,). It has the shape of "
        "output, after that of the batch.",
    ),
    "shape_without_an_output": (
        lambda: made(output=None)(X, Y),
        ValueError,
        "numpy_function: 'simulate' returned a value of the wrong shape; expected (2,), got (3,). Without an output it has "
        "the shape to which the inputs broadcast.",
    ),
    "structure": (
        lambda: made(output=TWO)(X, Y),
        ValueError,
        "numpy_function: 'simulate' returned a value of another structure; expected that of output, "
        "[TensorSpec(shape=(3,), dtype=tf.float32, name=None), TensorSpec(shape=(), dtype=tf.int32, name=None)], got "
        "array([0., 0., 0.]). Return one array for each TensorSpec.",
    ),
    "keys": (
        lambda: made(({"b": 0}, None), output={"a": SPEC})(X, Y),
        ValueError,
        "numpy_function: 'simulate' returned a value of another structure; expected that of output, {'a': "
        "TensorSpec(shape=(3,), dtype=tf.float32, name=None)}, got {'b': 0}. Return one array for each TensorSpec.",
    ),
    "complex": (
        lambda: made((1j * np.zeros(3), None))(X, Y),
        ValueError,
        "numpy_function: 'simulate' returned a complex value; expected float32, got complex128. Return its real part, or "
        "make the dtype of output complex.",
    ),
    "number_of_gradients": (
        lambda: gradient(made(gradients=[np.zeros(2)])),
        ValueError,
        "numpy_function: vjp of 'simulate' returned a wrong number of gradients; expected 2 (one for each differentiable "
        "input: 'x', 'y'), got 1. Name inputs that have no gradient in nondiff_argnames.",
    ),
    "no_gradient": (
        lambda: gradient(made(gradients=[np.zeros(2), None])),
        ValueError,
        "numpy_function: vjp of 'simulate' returned no gradient for 'y'; expected an array, got None. Name an input that "
        "has no gradient in nondiff_argnames.",
    ),
    "shape_of_a_gradient": (
        lambda: gradient(made(gradients=[np.zeros(2), np.zeros(3)])),
        ValueError,
        "numpy_function: vjp of 'simulate' returned a gradient for 'y' of the wrong shape; expected (2,), got (3,). A "
        "gradient has the shape of its input.",
    ),
    "shape_of_a_tangent": (
        lambda: tangent(made(jvp=lambda *_: np.zeros(4))),
        ValueError,
        "numpy_function: jvp of 'simulate' returned a tangent of the wrong shape; expected (3,), got (4,). It has the "
        "shape of the value.",
    ),
    "structure_of_tangents": (
        lambda: tangent(made(([np.zeros(3), 1], None), output=TWO, jvp=lambda *_: np.zeros(3)[:1])),
        ValueError,
        "numpy_function: jvp of 'simulate' returned a tangent of another structure; expected that of output, "
        "[TensorSpec(shape=(3,), dtype=tf.float32, name=None), TensorSpec(shape=(), dtype=tf.int32, name=None)], got "
        "array([0.]). Return one array for each TensorSpec.",
    ),
}


def test_a_type_error_in_a_vjp_stays_that_of_the_user():
    with pytest.raises(TypeError, match=r"^of the user's own$"):
        gradient(cg.numpy_function(lambda x, y: ANSWER, SPEC, vjp=raising))


@pytest.mark.parametrize("case", RESULTS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_results_are_checked(case, traced):
    run, kind, message = RESULTS[case]
    if not traced:
        with pytest.raises(kind, match=f"^{re.escape(message)}$"):
            run()
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(f"{kind.__name__}: {message}")):
        tf.function(run, autograph=False)()


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_forward_mode_without_a_jvp(traced):
    message = (
        "numpy_function: 'simulate' has no tangents or second derivatives; expected a jvp, or a vjp of Tensors, got neither. "
        "Pass jvp for forward mode, a vjp that numpy_function made for second derivatives."
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        (tf.function(tangent, autograph=False) if traced else tangent)(made())


def test_second_derivatives_in_eager_mode():
    message = (
        "numpy_function: 'simulate' has no second derivative; expected a vjp of Tensors, got one of arrays. Pass a vjp that "
        "numpy_function made."
    )
    for jvp in (None, lambda *_: np.zeros(3)):
        with tf.GradientTape() as tape:
            tape.watch([X, Y])
            dx, _ = gradient(made(jvp=jvp))
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            tape.gradient(dx, X)


def test_gradients_of_tensors_are_checked():
    spec = tf.TensorSpec([2])

    def function(vjp):
        return cg.numpy_function(lambda x, y: (x.numpy() if tf.is_tensor(x) else x, None), spec, vjp=tf.function(vjp))

    with pytest.raises(TypeError, match=re.escape("must return a gradient of dtype float32 for 'y', got int32")):
        gradient(function(lambda inputs, dy: (dy, tf.cast(dy, tf.int32))))
    assert gradient(function(lambda inputs, dy: (dy, tf.cast(dy, tf.float64))))[1].dtype == tf.float32
    with pytest.raises(ValueError, match=re.escape("wrong shape for 'x'; expected (2,), got (1,)")):
        gradient(function(lambda inputs, dy: (dy[:1], dy)))
    with pytest.raises(ValueError, match=re.escape("expected 2 (one for each differentiable input: 'x', 'y'), got 3")):
        gradient(function(lambda inputs, dy: (dy, dy, dy)))


def no_gradient(integer):
    return integer, None


DECORATIONS = {
    "vjp": (
        lambda: cg.numpy_function(no_gradient, vjp=3),
        "numpy_function: vjp is not a function; expected a function or another callable, got an int. Pass the function "
        "itself: vjp(residuals, *vectors).",
    ),
    "jvp": (
        lambda: cg.numpy_function(no_gradient, vjp=len, jvp=3),
        "numpy_function: jvp is not a function; expected a function or another callable, got an int. Pass the function "
        "itself: jvp(residuals, *vectors).",
    ),
    "jvp_alone": (
        lambda: cg.numpy_function(no_gradient, jvp=len),
        "numpy_function: there is a jvp without a vjp; expected both, or a vjp alone, got jvp=len. A function that returns "
        "its gradients has its tangents by them.",
    ),
    "structure_without_vjp": (
        lambda: cg.numpy_function(no_gradient, [SPEC]),
        "numpy_function: output does not describe the value; expected a tf.TensorSpec of known rank with a dtype of "
        "float16, bfloat16, float32, float64, complex64, complex128, got [TensorSpec(shape=(3,), dtype=tf.float32, "
        "name=None)]. Write for example output=tf.TensorSpec([3], tf.float64), or leave it out for a function of single "
        "elements.",
    ),
    "string": (
        lambda: cg.numpy_function(no_gradient, [SPEC, tf.TensorSpec([], tf.string)], vjp=len),
        "numpy_function: output does not describe the value; expected a tf.TensorSpec of known rank with a dtype of "
        "float16, bfloat16, float32, float64, complex64, complex128, an integer or bool, got a TensorSpec. Write for "
        "example output=tf.TensorSpec([3], tf.float64), or leave it out for a function of single elements.",
    ),
    "nothing": (
        lambda: cg.numpy_function(no_gradient, [], vjp=len),
        "numpy_function: output does not describe the value; expected a tf.TensorSpec of known rank with a dtype of "
        "float16, bfloat16, float32, float64, complex64, complex128, an integer or bool, got None. Write for example "
        "output=tf.TensorSpec([3], tf.float64), or leave it out for a function of single elements.",
    ),
}


@pytest.mark.parametrize("case", DECORATIONS)
def test_the_decoration_is_checked(case):
    run, message = DECORATIONS[case]
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        run()


def test_xla_and_saving_are_refused(tmp_path):
    function = made()
    with pytest.raises(NotImplementedError, match="'simulate' is Python code, which XLA cannot compile"):
        tf.function(function, jit_compile=True)(X, Y)
    module = tf.Module()
    module.f = tf.function(function, input_signature=[tf.TensorSpec([2])] * 2)
    with pytest.raises(ValueError, match="PyFunc"):
        tf.saved_model.save(
            module, str(tmp_path / "model"), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        )
