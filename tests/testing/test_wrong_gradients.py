"""check_gradient finds wrong gradients: a row for each fault, with its message."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

from ..support.tensors import pairs

RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=[3]), RNG.normal(size=[3])
Z = RNG.normal(size=[3]) + 1j * RNG.normal(size=[3])
MATRIX = RNG.normal(size=[3, 3])
WEIGHT = tf.Variable([2.0, 3.0, 4.0], dtype=tf.float64)

NUMBER = r"[-+.\dej]+"
MODES = ["eager", "function", "xla", "vectorized"]
ALL_MODES = "the modes 'eager', 'function', 'xla', 'vectorized'"
in_python = tf.autograph.experimental.do_not_convert


def message_of_failure(function, args, modes=("eager",), **options):
    with pytest.raises(AssertionError) as failure:
        check_gradient(function, args, modes=modes, **options)
    return str(failure.value)


def first_line(function, args, **options):
    return message_of_failure(function, args, **options).splitlines()[0]


def decorated(value, grad_fn):
    """A function of any arguments with this value and this gradient."""

    @cg.custom_gradient
    def f(*args):
        return value(*args), lambda dy: grad_fn(dy, *args)

    def faulty(*args):
        return f(*args)

    return faulty


# The ends of the messages.
SIGN, FACTOR = "The ratio is -1 everywhere, so the sign is wrong.", "The ratio is 2 everywhere, so a factor is wrong."
CONJUGATED = "It would be right with the derivative conjugated. TensorFlow's convention is dx = dy * conj(f')."
SWAPPED = "It equals the gradient with respect to 'args[1]'. Are the gradients in the right order?"
NONE = "The gradient is None: for TensorFlow, the value does not depend on the argument."
ONES_ONLY = "It is right for an upstream of ones, and wrong for this random one."
NOT_LINEAR = "If you want that, as when you clip a gradient, pass intended_gradient=."
ON_PURPOSE = "as in a straight-through estimator, pass like= or intended_gradient=."


def transpose(x):
    return tf.linalg.matvec(MATRIX, x)


def squared_size(z):
    return tf.math.real(z * tf.math.conj(z))


STEPS = np.array([0.5, -1.0, 3.0])  # The first is halfway between two integers.
# A value, its gradient and its arguments.
WRONG = {
    "sign": (tf.sin, lambda dy, x: -dy * tf.cos(x), [X], SIGN),
    "factor": (tf.sin, lambda dy, x: 2 * dy * tf.cos(x), [X], FACTOR),
    "conj": (lambda z: z**3, lambda dy, z: dy * 3 * z**2, [Z], CONJUGATED),
    "conj of a real output": (squared_size, lambda dy, z: 2 * tf.cast(dy, z.dtype) * tf.math.conj(z), [Z], CONJUGATED),
    "transposed": (transpose, lambda dy, x: transpose(dy), [X], "A gradient needs the transposed Jacobian."),
    "no_upstream": (tf.sin, lambda dy, x: tf.cos(x), [X], "It does not depend on the upstream. Multiply it by dy."),
    "swapped": (lambda x, y: x * tf.sin(y), lambda dy, x, y: (dy * x * tf.cos(y), dy * tf.sin(y)), [X, Y], SWAPPED),
    "none": (tf.sin, lambda dy, x: [None], [X], NONE),
    "zero": (tf.sin, lambda dy, x: tf.zeros_like(x), [X], "The gradient is zero everywhere."),
    "uniform_only": (lambda x: x**2, lambda dy, x: tf.reduce_mean(dy) * 2 * x, [X], ONES_ONLY),
    "symmetric_only": (lambda x: x[:, None] * x, lambda dy, x: 2 * tf.linalg.matvec(dy, x), [X], ONES_ONLY),
    "nan": (tf.sin, lambda dy, x: dy * tf.math.log(-tf.abs(x)), [X], "The gradient is not finite."),
    "clipped at every upstream": (tf.sin, lambda dy, x: tf.clip_by_value(dy, -0.7, 0.7) * tf.cos(x), [X], NOT_LINEAR),
    "clipped, but not for ones": (tf.sin, lambda dy, x: tf.clip_by_value(dy, -1.0, 1.0) * tf.cos(x), [X], NOT_LINEAR),
    "not declared": (tf.sign, lambda dy, x: dy, [X], ON_PURPOSE),
    "not declared, at a step": (tf.round, lambda dy, x: dy, [STEPS], ON_PURPOSE),
    "unknown": (transpose, lambda dy, x: dy * Y, [X], ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gradient_is_found_and_named(name):
    """Two of them are checked in every mode."""
    value, grad_fn, args, hint = WRONG[name]
    modes, where = (MODES, ALL_MODES) if name in ("factor", "none") else (["eager"], "mode 'eager'")
    line = first_line(decorated(value, grad_fn), args, modes=modes)
    got = {"none": "None", "nan": "nan"}.get(name, NUMBER)
    found = re.fullmatch(
        rf"check_gradient: the gradient of 'faulty' with respect to 'args\[0\]' is wrong in {where}: for a random "
        rf"upstream gradient \(seed 0\) it must be ({NUMBER}) \(numeric differentiation\) at element \[(\d)\], got ({got}) "
        rf"\(ratio (?:{NUMBER}|nan|inf); 3 of 3 elements checked\)\.{' .*' * bool(hint)}{re.escape(hint)}",
        line,
    )
    assert found, line
    if name == "factor":  # The seed's upstream has sizes from 0.5 to 1.5.
        expected, element, got = float(found[1]), int(found[2]), float(found[3])
        assert 0.5 <= abs(expected / np.cos(X[element])) <= 1.5
        np.testing.assert_allclose(got, 2 * expected, rtol=1e-7)


def in_float32(x):
    return tf.cast(tf.exp(tf.cast(x, tf.float32)), tf.float64)


def of_tensorflow(change):
    return tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: change(dy * tf.cos(x))))


def sine(factor):
    """Its gradient has this factor at each element."""
    return decorated(tf.sin, lambda dy, x: dy * tf.cos(x) * (factor() if callable(factor) else factor))


def cosine_of_the_first(x):
    """Right for a single call, but always computed with the first arguments of a batch."""
    return tf.cos(x if tf.executing_eagerly() else tf.constant(X))


def wrong_in_a_loop():
    return -1.0 if not tf.executing_eagerly() and "while" in tf.compat.v1.get_default_graph().name else 1.0


def wrong_at(element, size):
    return np.where(np.arange(size) == element, -1.0, 1.0)


def slope(x):
    return 1 - tf.tanh(x) ** 2


def nonlinear(mode, factor, change):
    function = decorated(tf.sin, lambda dy, x: change(dy) * tf.cos(x))
    place = f"'args[0]' (for an upstream {factor} times as large) is wrong in mode '{mode}': for a random"
    return function, [X], {"modes": [mode, "function"]}, place, "(linear in the upstream)", NOT_LINEAR


def product_rule(change, **options):
    """`x * sin(y)` and `x**2`, with a rule of which `change` makes another."""

    def backward(residuals, dy, dz, needed):
        x, y = residuals
        dx = [dy * tf.sin(y)] if dy is not None else []
        dx += [2 * dz * x] if dz is not None else []
        return change(
            tf.add_n(dx) if needed[0] else None,
            None if dy is None else dy * x * tf.cos(y),
            needed,
            (dy is not None, dz is not None),
        )

    function = cg.custom_vjp(lambda x, y: ((x * tf.sin(y), x**2), (x, y)), backward, **options)
    return lambda x, y: function(x, y)


def alone(argument, case, mode, change):
    options = {"materialize_grads": False} if "used" in case else {}
    return product_rule(change, **options), [X, Y], {"modes": [mode]}, f"'{argument}", f"(if only {case})"


def in_the_last(modes, function, part):
    return function, [X + 4], {"modes": modes}, f" in mode '{modes[-1]}': ", part


def with_tangent_rule(rule):
    doubled = cg.custom_jvp(lambda x: 2.0 * x)
    doubled.defjvp(lambda primals, tangents: (2.0 * primals[0], rule(tangents[0])))
    return doubled


tiny = decorated(lambda x: 1e-12 * x, lambda dy, x: 2e-12 * dy)
first_order_only = decorated(tf.sin, lambda dy, x: dy * tf.stop_gradient(tf.cos(x)))
wrong_cosine = cg.custom_gradient(lambda x: (tf.cos(x), lambda dy: dy * tf.sin(x)))
wrong_second_order = decorated(tf.sin, lambda dy, x: dy * wrong_cosine(x))
in_graphs = in_python(decorated(tf.sin, lambda dy, x: dy * (tf.cos(x) if tf.executing_eagerly() else 1.0)))
in_a_batch = in_python(decorated(tf.sin, lambda dy, x: dy * cosine_of_the_first(x)))
ascent = of_tensorflow(lambda dx: -dx)
weighted = cg.custom_gradient(lambda x: (WEIGHT * x, lambda dy, variables: (dy * WEIGHT, [dy * x])))
with_a_dtype = cg.custom_gradient(lambda x: (x * x, lambda dy: 2 * tf.cast(dy, tf.float64) * x))
overflowing = cg.custom_gradient(lambda x: (tf.exp(x), lambda dy: dy * tf.exp(3 * x) / tf.exp(2 * x)))
untraceable = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: tf.constant(dy.numpy() * np.cos(x.numpy()))))
of_python = cg.numpy_function(lambda x: (np.sin(x), np.cos(x)))
other_value = in_python(lambda x: tf.sin(x) + (0.0 if tf.executing_eagerly() else 1.0))
other_integer = in_python(lambda x: (x, tf.argmax(x) + int(not tf.executing_eagerly())))
TINY, FLOAT32, TWO = {"intended_gradient": lambda dy, x: 1e-12 * dy}, {"step": 0.1, "rtol": 1e-3}, {"modes": MODES[:2]}
LOWER_PRECISION = "the function computes in a lower precision than float64. Pass other numbers, or step and rtol."
NOT_FINITE_AROUND = "The function itself is not finite near this argument. Pass other numbers."
SHAPE = "it must be float64 of shape [3], got {}. A gradient has the dtype and shape of its argument."
SECOND = {"second_order": True, "modes": MODES}
SECOND_ORDER = f"the second-order gradient of 'faulty' with respect to 'args[0]' is wrong in {ALL_MODES}: for a random"
DIRECTION = " along a random direction of all elements, got "
TANGENT = " (value) is wrong in mode 'function': for random tangents (seed 0) it must be "
IN_GRAPHS = " is wrong in mode 'function': it must be "
NO_TRANSPOSE = " It is not linear in the tangents, so it has no transpose. A rule of custom_jvp"
TIMES_LIKE = "It is the upstream times the value of like, not times its derivative."
TWICE, DERIVATIVE = "It is the derivative of like's derivative.", "; to pass a derivative itself, write derivative=."
# Other failures: a function, its arguments, options, and parts of the message. The last part is in each message.
FAILURES = {
    # The tolerance is relative to the largest element, however small that is.
    "tiny": (tiny, [X], TINY, "(intended_gradient)", FACTOR),
    "kink": (tf.nn.relu, [np.array([-1.0, 0.0, 2.0])], {}, "at element [1]", "Perhaps there is a kink nearby"),
    # An infinite gradient, and one that is nan like the value.
    "infinite": (tf.sqrt, [np.array([0.0, 1.0])], {}, "at element [0], got"),
    "nan": (tf.sqrt, [np.array([-1.0, 1.0])], {}, "at element [0], got"),
    "not finite": (decorated(tf.math.log, lambda dy, x: dy), [np.array([1.0, -1.0])], {}, NOT_FINITE_AROUND),
    "float32 inside": (in_float32, [X], {}, LOWER_PRECISION),
    "half in float32": (
        lambda x: in_float32(x) + tf.stop_gradient(tf.exp(x)),
        [X],
        FLOAT32,
        "ratio is 0.5 every",
    ),
    "shape": (of_tensorflow(lambda dx: dx[:2]), [X], {"modes": MODES}, ALL_MODES, SHAPE.format("float64 of shape [2]")),
    "dtype": (of_tensorflow(lambda dx: tf.cast(dx, tf.float32)), [X], {}, SHAPE.format("float32 of shape [3]")),
    "one of 50": (sine(wrong_at(16, 50)), [RNG.normal(size=50)], {}, "at element [16]", "50 of 50 elements checked"),
    "one of many": (sine(wrong_at(3333, 10_000)), [RNG.normal(size=10_000)], {}, DIRECTION, "64 of 10000 elements"),
    "second order": (wrong_second_order, [X], SECOND, SIGN, SECOND_ORDER),
    "first order only": (first_order_only, [X], SECOND, NONE, SECOND_ORDER),
    # Inside a tf.function, forward mode ignores tf.custom_gradient and differentiates its value.
    "tangent": (
        ascent,
        [X],
        {"like": lambda x: -tf.sin(x), "modes": ["function"], "forward_mode": True},
        SIGN,
        TANGENT,
    ),
    "in graphs": (in_graphs, [X], {"modes": MODES}, "the modes 'function', 'xla', 'vectorized'", "'vectorized': for a"),
    "in a batch": (
        in_a_batch,
        [X],
        {"modes": MODES},
        "'args[0]' (2 of 3",
        "(eager mode)",
        "in a batch) is wrong in mode 've",
    ),
    "a value": (other_value, [X], TWO, "(value)" + IN_GRAPHS, "(eager mode) at element"),
    "an integer": (other_integer, [X], TWO, "(value[1])" + IN_GRAPHS, "(eager mode), got"),
    # A gradient that is not linear in the upstream.
    "clipped": nonlinear("eager", 1000, lambda dy: tf.clip_by_value(dy, -1.6, 1.6)),
    "small ones left out": nonlinear("xla", 0.001, lambda dy: tf.where(tf.abs(dy) < 0.4, tf.zeros_like(dy), dy)),
    "clipped by norm": nonlinear("vectorized", 1000, lambda dy: tf.clip_by_norm(dy, 10.0)),
    # A surrogate taken for its derivative, and the other way round.
    "surrogate": (cg.straight_through(tf.sign, derivative=tf.tanh), [X], {"like": tf.tanh}, TIMES_LIKE, DERIVATIVE),
    "derivative": (cg.straight_through(tf.sign, surrogate=slope), [X], {"like": tf.tanh}, TWICE, DERIVATIVE),
    # A rule that is wrong for one argument or one output alone.
    "sign": alone("y", "'y' is needed", "eager", lambda dx, dy, needed, _: (dx, dy if needed[0] else -dy)),
    "missing": alone("x", "'x' is needed", "function", lambda dx, dy, needed, _: (dx if all(needed) else None, dy)),
    "exception": alone("y", "'y' is needed", "xla", lambda dx, dy, *_: (dx + 0, dy)),
    "factor": alone("x", "value[0] is used", "eager", lambda dx, dy, _, used: (dx if used[1] else 2 * dx, dy)),
    "none": alone("x", "value[1] is used", "function", lambda dx, dy, _, used: (dx if used[0] else None, dy)),
    "times none": alone("x", "value[1] is used", "xla", lambda dx, dy, *_: (dx, 1 * dy)),
    # Faults in the last of these modes alone.
    "reads a variable": in_the_last(["eager", "functional"], weighted, "functional"),
    "not of Keras": in_the_last(["eager", "functional"], lambda x: tf.sin(x), "ValueError: A KerasTensor"),
    "a dtype in the code": in_the_last(["eager", "mixed_float16"], with_a_dtype, "float16"),
    "overflow": in_the_last(["mixed_bfloat16", "mixed_float16"], overflowing, "The gradient is not finite"),
    "loop": in_the_last(["eager", "function", "while_loop"], sine(wrong_in_a_loop), "the sign is wrong"),
    "untraceable": in_the_last(["eager", "saved_model"], untraceable, "Runtime"),
    "Python": in_the_last(["function", "while_loop", "cond", "saved_model"], of_python, "saved"),
    # A tangent rule that is not linear.
    "square": (with_tangent_rule(lambda t: t**2), [X], {"modes": ["eager", "function"]}, NO_TRANSPOSE),
    "affine": (with_tangent_rule(lambda t: 2.0 * t + 1.0), [X], {"modes": ["eager", "xla"]}, NO_TRANSPOSE),
    "abs": (with_tangent_rule(tf.abs), [X], {"modes": ["eager", "vectorized"]}, NO_TRANSPOSE),
}


@pytest.mark.parametrize("name", FAILURES)
def test_other_failures_are_named(name):
    function, args, options, *parts = FAILURES[name]
    text = message_of_failure(function, args, **options)
    lines = [line for line in text.splitlines() if line.startswith("check_gradient: ")]
    assert [part for part in parts if part not in lines[0]] == []
    assert all(parts[-1] in line for line in lines)


def test_the_exception_of_a_gradient_is_the_cause():
    with pytest.raises(AssertionError, match="could not be computed in mode 'eager': KeyError") as failure:
        check_gradient(decorated(tf.sin, lambda dy, x: {}["mine"]), [X], modes=["eager"])
    assert isinstance(failure.value.__cause__, KeyError)


@pytest.mark.parametrize(("small", "function"), pairs([1.0, 1e-5, 1e-20], [tf.reduce_sum, tf.exp]))
def test_a_small_element_that_is_not_looked_at_moves_along_the_direction(small, function):
    sampled = np.random.default_rng(0).choice(2000, 64, replace=False)
    place = int(np.setdiff1d(np.arange(2000), sampled)[1000])
    x, wrong = RNG.uniform(0.5, 1.5, size=2000), np.ones(2000)
    x[place], wrong[place] = small, 0

    def grad_fn(dy, x):
        return dy * (tf.exp(x) if function is tf.exp else 1.0) * wrong

    assert " along a random direction of all elements" in first_line(decorated(function, grad_fn), [x])


def test_right_gradients_pass_at_any_magnitude():
    """Also in float32 with larger tolerances, and along a direction that leaves the domain."""
    for size in (1e-300, 1e-150, 1e150, 1e300):
        check_gradient(lambda x, size=size: size * tf.sin(x), [X], modes=["eager"])
    check_gradient(in_float32, [X], modes=["eager", "xla"], **FLOAT32)
    for small, function in ((1e-5, tf.nn.relu), (1e-9, tf.math.log), (1e-20, tf.sqrt)):
        x = RNG.uniform(0.5, 1.5, size=100)
        x[50] = small
        check_gradient(function, [x], modes=["eager"], forward_mode=True)


def test_no_kink_is_suspected_where_another_mode_agrees():
    """At the kink, the numeric derivative is the mean of the slopes, and eager mode happens to agree with it."""
    function = in_python(decorated(tf.nn.relu, lambda dy, x: dy * (0.5 if tf.executing_eagerly() else 1.0)))
    zeros = np.zeros(2)
    assert not check_gradient(function, [zeros], modes=["eager"]).failures
    assert "a kink nearby" in first_line(function, [zeros], modes=["function"])
    assert first_line(function, [zeros], modes=["eager", "function"]).endswith(FACTOR)
