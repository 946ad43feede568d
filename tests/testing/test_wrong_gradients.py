"""check_gradient finds wrong gradients: a test for each fault, with its message."""

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


SIGN, FACTOR = "The ratio is -1 everywhere, so the sign is wrong.", "The ratio is 2 everywhere, so a factor is wrong."
CONJUGATED = "It would be right with the derivative conjugated. TensorFlow's convention is dx = dy * conj(f')."
TRANSPOSED = "It is the Jacobian times the upstream. A gradient needs the transposed Jacobian."
NO_UPSTREAM = "It does not depend on the upstream. Multiply it by dy."
SWAPPED = "It equals the gradient with respect to 'args[1]'. Are the gradients in the right order?"
NONE = "The gradient is None: for TensorFlow, the value does not depend on the argument."
ZERO = "The gradient is zero everywhere."
UNIFORM_ONLY = "It is right only for a uniform upstream, so it is not a vector-Jacobian product."
NAN = "The gradient is not finite."
NOT_LINEAR = (
    "It is not linear in the upstream, so it is not a vector-Jacobian product. If you want that, as when you clip a "
    "gradient, pass intended_gradient=."
)
NUMERIC_ZERO = (
    "The numeric derivative is zero, or not known. If the gradient differs from it on purpose, as in a straight-through "
    "estimator, pass like= or intended_gradient=."
)


def transpose(x):
    return tf.linalg.matvec(MATRIX, x)


def squared_size(z):
    return tf.math.real(z * tf.math.conj(z))


# A value, its gradient, its arguments and the end of the message.
WRONG = {
    "sign": (tf.sin, lambda dy, x: -dy * tf.cos(x), [X], SIGN),
    "factor": (tf.sin, lambda dy, x: 2 * dy * tf.cos(x), [X], FACTOR),
    "conj": (lambda z: z**3, lambda dy, z: dy * 3 * z**2, [Z], CONJUGATED),
    "conj of a real output": (
        squared_size,
        lambda dy, z: 2 * tf.cast(dy, z.dtype) * tf.math.conj(z),
        [Z],
        CONJUGATED,
    ),
    "transposed": (transpose, lambda dy, x: transpose(dy), [X], TRANSPOSED),
    "no_upstream": (tf.sin, lambda dy, x: tf.cos(x), [X], NO_UPSTREAM),
    "swapped": (
        lambda x, y: x * tf.sin(y),
        lambda dy, x, y: (dy * x * tf.cos(y), dy * tf.sin(y)),
        [X, Y],
        SWAPPED,
    ),
    "none": (tf.sin, lambda dy, x: None, [X], NONE),
    "zero": (tf.sin, lambda dy, x: tf.zeros_like(x), [X], ZERO),
    "uniform_only": (lambda x: x**2, lambda dy, x: tf.reduce_mean(dy) * 2 * x, [X], UNIFORM_ONLY),
    "nan": (tf.sin, lambda dy, x: dy * tf.math.log(-tf.abs(x)), [X], NAN),
    "clipped at every upstream": (tf.sin, lambda dy, x: tf.clip_by_value(dy, -0.7, 0.7) * tf.cos(x), [X], NOT_LINEAR),
    "clipped, but not for ones": (tf.sin, lambda dy, x: tf.clip_by_value(dy, -1.0, 1.0) * tf.cos(x), [X], NOT_LINEAR),
    "not declared": (tf.sign, lambda dy, x: dy, [X], NUMERIC_ZERO),
    # Halfway between two integers.
    "not declared, at a step": (tf.round, lambda dy, x: dy, [np.array([0.5, -1.0, 3.0])], NUMERIC_ZERO),
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
        rf"upstream gradient \(seed 0\) it must be ({NUMBER}) \(numeric differentiation\) at element \[(\d)\], got ({got}) \(ratio (?:{NUMBER}|nan|inf); 3 of "
        rf"3 elements checked\)\.{re.escape(' ' * bool(hint) + hint)}",
        line,
    )
    assert found, line
    if name == "factor":  # The seed's upstream has sizes from 0.5 to 1.5.
        expected, element, got = float(found[1]), int(found[2]), float(found[3])
        assert 0.5 <= abs(expected / np.cos(X[element])) <= 1.5
        np.testing.assert_allclose(got, 2 * expected, rtol=1e-7)


def test_the_message_and_the_table_name_the_seed_of_the_upstream():
    text = message_of_failure(decorated(tf.sin, lambda dy, x: -dy), [X], seed=3)
    assert ": for a random upstream gradient (seed 3) it must be " in text
    assert "\ngradients of 'faulty' for random upstream gradients (seed 3)\n" in text


def in_float32(x):
    return tf.cast(tf.exp(tf.cast(x, tf.float32)), tf.float64)


tiny = decorated(lambda x: 1e-12 * x, lambda dy, x: 2e-12 * dy)
TINY = {"intended_gradient": lambda dy, x: 1e-12 * dy}
FLOAT32 = {"step": 0.1, "rtol": 1e-3}
HALF = "The ratio is 0.5 everywhere, so a factor is wrong."
LOWER_PRECISION = "the function computes in a lower precision than float64. Pass other numbers, or step and rtol."
NOT_FINITE_AROUND = "The function itself is not finite near this argument. Pass other numbers."
# Other failures: a function, its argument, options, and two parts of the message.
FAILURES = {
    # The tolerance is relative to the largest element, however small that is.
    "tiny": (tiny, X, TINY, ("(intended_gradient)", FACTOR)),
    "kink": (tf.nn.relu, np.array([-1.0, 0.0, 2.0]), {}, ("at element [1]", "Perhaps there is a kink nearby")),
    # An infinite gradient, and one that is nan like the value.
    "infinite": (tf.sqrt, np.array([0.0, 1.0]), {}, ("at element [0], got", "")),
    "nan": (tf.sqrt, np.array([-1.0, 1.0]), {}, ("at element [0], got", "")),
    "not finite": (decorated(tf.math.log, lambda dy, x: dy), np.array([1.0, -1.0]), {}, ("", NOT_FINITE_AROUND)),
    "float32 inside": (in_float32, X, {}, ("", LOWER_PRECISION)),
    "half of it in float32": (lambda x: in_float32(x) + tf.stop_gradient(tf.exp(x)), X, FLOAT32, ("", HALF)),
}


@pytest.mark.parametrize("name", FAILURES)
def test_other_failures_are_named(name):
    function, x, options, parts = FAILURES[name]
    line = first_line(function, [x], **options)
    for part in parts:
        assert part in line


@pytest.mark.parametrize("size", [50, 10_000])
def test_a_single_wrong_element_of_many_is_found(size):
    x, wrong = RNG.normal(size=[size]), np.ones(size)
    wrong[size // 3] = -1
    line = first_line(decorated(tf.sin, lambda dy, x: dy * tf.cos(x) * wrong), [x])
    assert (" at element [16]" if size == 50 else " along a random direction of all elements, got ") in line
    assert f"{min(size, 64)} of {size} elements checked" in line


def test_a_gradient_that_is_right_in_eager_mode_only_is_found():
    def f(dy, x):
        return dy * tf.cos(x) if tf.executing_eagerly() else dy

    text = message_of_failure(in_python(decorated(tf.sin, f)), [X], modes=MODES)
    rows = [line.split() for line in text.splitlines() if " first " in line and "batch" not in line]
    assert {row[0]: row[-1] for row in rows} == {"eager": "ok"} | dict.fromkeys(MODES[1:], "WRONG")


def test_a_gradient_that_mixes_up_a_batch_is_found():
    """Right for a single call, but always computed with the first arguments."""

    def grad_fn(dy, x):
        return dy * tf.cos(x if tf.executing_eagerly() else tf.constant(X))

    text = message_of_failure(in_python(decorated(tf.sin, grad_fn)), [X], modes=["eager", "function", "vectorized"])
    assert {line.split()[0] for line in text.splitlines() if "WRONG" in line} == {"vectorized"}
    assert "with respect to 'args[0]' (2 of 3 in a batch) is wrong in mode 'vectorized': for a random upstream" in text
    assert "(eager mode)" in text


@tf.custom_gradient
def first_order_only(x):
    derivative = tf.stop_gradient(tf.cos(x))
    return tf.sin(x), lambda dy: dy * derivative


@cg.custom_gradient
def wrong_second_order(x):
    derivative = cg.custom_gradient(lambda x: (tf.cos(x), lambda dy: dy * tf.sin(x)))
    return tf.sin(x), lambda dy: dy * derivative(x)


@pytest.mark.parametrize(("function", "hint"), [(wrong_second_order, SIGN), (first_order_only, NONE)])
def test_a_wrong_second_order_is_found_where_the_first_is_right(function, hint):
    assert not check_gradient(function, [X]).failures
    line = first_line(function, [X], modes=MODES, second_order=True)
    assert line.startswith(
        f"check_gradient: the second-order gradient of '{function.__name__}' with respect to 'x' is wrong in "
        f"{ALL_MODES}: for a random upstream gradient (seed 0) it must be "
    )
    assert line.endswith(hint)


def test_a_wrong_tangent_is_found_where_the_gradient_is_right():
    """Inside a tf.function, forward mode ignores tf.custom_gradient and differentiates its value."""

    @tf.custom_gradient
    def ascent(x):
        return tf.sin(x), lambda dy: -dy * tf.cos(x)

    options = {"like": lambda x: -tf.sin(x), "modes": ["function"]}
    assert not check_gradient(ascent, [X], **options).failures
    line = first_line(ascent, [X], **options, forward_mode=True)
    assert re.fullmatch(
        rf"check_gradient: the tangent of 'ascent' \(value\) is wrong in mode 'function': for random tangents \(seed 0\) "
        rf"it must be {NUMBER} \(numeric differentiation\) at element \[\d\], got {NUMBER} \(ratio -1; 3 of 3 elements "
        rf"checked\)\. {SIGN}",
        line,
    ), line
    of_the_library = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: -dy * tf.cos(x)))
    assert not check_gradient(of_the_library, [X], **options, forward_mode=True).failures


def test_another_value_in_a_mode_is_found_also_of_an_integer():
    @in_python
    def f(x):
        return tf.sin(x) if tf.executing_eagerly() else tf.sin(x) + 1.0

    @in_python
    def with_integer(x):
        return x, tf.argmax(x) + (0 if tf.executing_eagerly() else 1)

    line = first_line(f, [X], modes=["eager", "function"])
    assert re.fullmatch(
        rf"check_gradient: the value of '.*f' \(value\) is wrong in mode 'function': it must be {NUMBER} \(eager mode\) at "
        rf"element \[\d\], got {NUMBER} \(ratio {NUMBER}; 3 of 3 elements checked\)\.",
        line,
    ), line
    line = first_line(with_integer, [X], modes=["eager", "function"])
    assert re.search(r"\(value\[1\]\) is wrong in mode 'function': it must be \d \(eager mode\), got \d \(", line), line


def test_a_gradient_of_another_shape_or_dtype_is_found():
    shorter = tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: (dy * tf.cos(x))[:2]))
    rounded = tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: tf.cast(dy * tf.cos(x), tf.float32)))
    for function, got in ((shorter, "float64 of shape [2]"), (rounded, "float32 of shape [3]")):
        assert first_line(function, [X], modes=MODES).endswith(
            f"is wrong in {ALL_MODES}: it must be float64 of shape [3], got {got}. A gradient has the dtype and shape of "
            "its argument."
        )


NONLINEAR = {
    "clipped": lambda dy, x: tf.clip_by_value(dy, -1.6, 1.6) * tf.cos(x),
    "without_small_ones": lambda dy, x: tf.where(tf.abs(dy) < 0.4, tf.zeros_like(dy), dy) * tf.cos(x),
    "clipped_by_norm": lambda dy, x: tf.clip_by_norm(dy, 10.0) * tf.cos(x),
}


@pytest.mark.parametrize(("name", "mode"), pairs(NONLINEAR, ["eager", "xla", "vectorized"]))
def test_a_gradient_that_is_not_linear_in_the_upstream_is_found(name, mode):
    text = message_of_failure(decorated(tf.sin, NONLINEAR[name]), [X], modes=[mode, "function"])
    (line,) = [line for line in text.splitlines() if "check_" in line]
    factor = "0.001" if name == "without_small_ones" else "1000"
    assert line.startswith(
        f"check_gradient: the gradient of 'faulty' with respect to 'args[0]' (for an upstream {factor} times as large) is "
        f"wrong in mode '{mode}': for a random upstream gradient (seed 0) it must be "
    )
    assert "(linear in the upstream)" in line
    assert line.endswith(NOT_LINEAR)


TANGENT_RULES = {"square": lambda t: t**2, "constant": lambda t: 2.0 * t + 1.0, "abs": tf.abs}


@pytest.mark.parametrize(("rule", "mode"), pairs(TANGENT_RULES, ["function", "xla", "vectorized"]))
def test_a_tangent_rule_that_is_not_linear_is_called_so(rule, mode):
    doubled = cg.custom_jvp(lambda x: 2.0 * x)
    doubled.defjvp(lambda primals, tangents: (2.0 * primals[0], TANGENT_RULES[rule](tangents[0])))
    text = message_of_failure(doubled, [tf.constant([0.5, -1.0, 3.0])], modes=["eager", mode])
    messages = [line for line in text.splitlines() if line.startswith("check_gradient: ")]
    assert messages
    for line in messages:
        assert line.endswith(
            " It is not linear in the tangents, so it has no transpose. A rule of custom_jvp must multiply the tangents by "
            "the Jacobian."
        )


@pytest.mark.parametrize(("small", "function"), pairs([1.0, 1e-3, 1e-5, 1e-9, 1e-20], ["reduce_sum", "exp"]))
def test_a_small_element_that_is_not_looked_at_moves_along_the_direction(small, function):
    sampled = np.random.default_rng(0).choice(2000, 64, replace=False)
    place = int(np.setdiff1d(np.arange(2000), sampled)[1000])
    x, wrong = RNG.uniform(0.5, 1.5, size=2000), np.ones(2000)
    x[place], wrong[place] = small, 0

    def grad_fn(dy, x):
        return dy * (tf.exp(x) if function == "exp" else 1.0) * wrong

    assert " along a random direction of all elements" in first_line(decorated(getattr(tf, function), grad_fn), [x])


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

    def f(dy, x):
        return dy * (0.5 if tf.executing_eagerly() else 1.0)

    function, zeros = in_python(decorated(tf.nn.relu, f)), np.zeros(2)
    assert not check_gradient(function, [zeros], modes=["eager"]).failures
    assert "a kink nearby" in first_line(function, [zeros], modes=["function"])
    assert first_line(function, [zeros], modes=["eager", "function"]).endswith(FACTOR)


def test_a_surrogate_taken_for_its_derivative_and_the_other_way_round():
    x = tf.constant([0.3, -0.8, 1.7])
    with pytest.raises(
        AssertionError,
        match=r"It is the upstream times the value of like, not times its derivative\. .* derivative=\.",
    ):
        cg.testing.check_gradient(cg.straight_through(tf.sign, derivative=tf.tanh), [x], like=tf.tanh)
    with pytest.raises(
        AssertionError,
        match=r"It is the derivative of like's derivative\. .*; to pass a derivative itself, write derivat",
    ):
        cg.testing.check_gradient(
            cg.straight_through(tf.sign, lambda x: 1 - tf.tanh(x) ** 2), [x], like=tf.tanh, modes=["eager", "xla"]
        )
    assert cg.testing.check_gradient(cg.straight_through(tf.sign, tf.tanh), [x], like=tf.tanh, second_order=True)
