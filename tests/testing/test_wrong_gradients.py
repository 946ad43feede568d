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


tiny = decorated(lambda x: 1e-12 * x, lambda dy, x: 2e-12 * dy)
TINY = {"intended_gradient": lambda dy, x: 1e-12 * dy}
FLOAT32 = {"step": 0.1, "rtol": 1e-3}
LOWER_PRECISION = "the function computes in a lower precision than float64. Pass other numbers, or step and rtol."
NOT_FINITE_AROUND = "The function itself is not finite near this argument. Pass other numbers."
SHAPE = "it must be float64 of shape [3], got {}. A gradient has the dtype and shape of its argument."
# Other failures: a function, its argument, options, and parts of the message.
FAILURES = {
    # The tolerance is relative to the largest element, however small that is.
    "tiny": (tiny, X, TINY, "(intended_gradient)", FACTOR),
    "kink": (tf.nn.relu, np.array([-1.0, 0.0, 2.0]), {}, "at element [1]", "Perhaps there is a kink nearby"),
    # An infinite gradient, and one that is nan like the value.
    "infinite": (tf.sqrt, np.array([0.0, 1.0]), {}, "at element [0], got"),
    "nan": (tf.sqrt, np.array([-1.0, 1.0]), {}, "at element [0], got"),
    "not finite": (decorated(tf.math.log, lambda dy, x: dy), np.array([1.0, -1.0]), {}, NOT_FINITE_AROUND),
    "float32 inside": (in_float32, X, {}, LOWER_PRECISION),
    "half of it in float32": (lambda x: in_float32(x) + tf.stop_gradient(tf.exp(x)), X, FLOAT32, "ratio is 0.5 every"),
    "shape": (of_tensorflow(lambda dx: dx[:2]), X, {"modes": MODES}, ALL_MODES, SHAPE.format("float64 of shape [2]")),
    "dtype": (of_tensorflow(lambda dx: tf.cast(dx, tf.float32)), X, {}, SHAPE.format("float32 of shape [3]")),
    "exception": (
        decorated(tf.sin, lambda dy, x: {}["mine"]),
        X,
        {},
        "could not be computed in mode 'eager': KeyError",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_other_failures_are_named(name):
    function, x, options, *parts = FAILURES[name]
    with pytest.raises(AssertionError) as failure:
        check_gradient(function, [x], **{"modes": ["eager"]} | options)
    assert all(part in str(failure.value).splitlines()[0] for part in parts)
    assert isinstance(failure.value.__cause__, KeyError) == (name == "exception")


@pytest.mark.parametrize("size", [50, 10_000])
def test_a_single_wrong_element_of_many_is_found(size):
    x, wrong = RNG.normal(size=[size]), np.ones(size)
    wrong[size // 3] = -1
    line = first_line(decorated(tf.sin, lambda dy, x: dy * tf.cos(x) * wrong), [x])
    assert (" at element [16]" if size == 50 else " along a random direction of all elements, got ") in line
    assert f"{min(size, 64)} of {size} elements checked" in line


def cosine_of_the_first(x):
    """Right for a single call, but always computed with the first arguments of a batch."""
    return tf.cos(x if tf.executing_eagerly() else tf.constant(X))


@pytest.mark.parametrize(
    ("cosine", "wrong"),
    [(lambda x: tf.cos(x) if tf.executing_eagerly() else 1.0, MODES[1:]), (cosine_of_the_first, ["vectorized"])],
)
def test_a_gradient_that_is_wrong_in_some_modes_is_found_there(cosine, wrong):
    faulty = in_python(decorated(tf.sin, lambda dy, x: dy * cosine(x)))
    text = message_of_failure(faulty, [X], modes=MODES)
    assert {line.split()[0] for line in text.splitlines() if "WRONG" in line} == set(wrong)
    if wrong == ["vectorized"]:
        assert "'args[0]' (2 of 3 in a batch) is wrong in mode 'vectorized': for a random upstream" in text
        assert "(eager mode)" in text


first_order_only = decorated(tf.sin, lambda dy, x: dy * tf.stop_gradient(tf.cos(x)))
wrong_cosine = cg.custom_gradient(lambda x: (tf.cos(x), lambda dy: dy * tf.sin(x)))
wrong_second_order = decorated(tf.sin, lambda dy, x: dy * wrong_cosine(x))


@pytest.mark.parametrize(("function", "hint"), [(wrong_second_order, SIGN), (first_order_only, NONE)])
def test_a_wrong_second_order_is_found_where_the_first_is_right(function, hint):
    assert not check_gradient(function, [X]).failures
    line = first_line(function, [X], modes=MODES, second_order=True)
    assert line.startswith(
        "check_gradient: the second-order gradient of 'faulty' with respect to 'args[0]' is wrong in "
        f"{ALL_MODES}: for a random upstream gradient (seed 0) it must be "
    )
    assert line.endswith(hint)


def test_a_wrong_tangent_is_found_where_the_gradient_is_right():
    """Inside a tf.function, forward mode ignores tf.custom_gradient and differentiates its value."""
    options = {"like": lambda x: -tf.sin(x), "modes": ["function"]}
    ascent, ours = (
        d(lambda x: (tf.sin(x), lambda dy: -dy * tf.cos(x))) for d in (tf.custom_gradient, cg.custom_gradient)
    )
    assert not check_gradient(ascent, [X], **options).failures
    assert not check_gradient(ours, [X], **options, forward_mode=True).failures
    line = first_line(ascent, [X], **options, forward_mode=True)
    assert re.fullmatch(
        rf"check_gradient: the tangent of '.*' \(value\) is wrong in mode 'function': for random tangents \(seed 0\) "
        rf"it must be {NUMBER} \(numeric differentiation\) at element \[\d\], got {NUMBER} \(ratio -1; 3 of 3 elements "
        rf"checked\)\. {SIGN}",
        line,
    ), line


AT = rf"be {NUMBER} \(eager mode\) at element \[\d\], got {NUMBER}"


@pytest.mark.parametrize(
    ("value", "name", "numbers"),
    [
        (lambda x, is_other: tf.sin(x) + is_other, "value", AT),
        (lambda x, is_other: (x, tf.argmax(x) + int(is_other)), r"value\[1\]", r"be \d \(eager mode\), got \d"),
    ],
)
def test_another_value_in_a_mode_is_found_also_of_an_integer(value, name, numbers):
    f = in_python(lambda x: value(x, 0.0 if tf.executing_eagerly() else 1.0))
    line = first_line(f, [X], modes=["eager", "function"])
    assert re.search(rf"of '.*' \({name}\) is wrong in mode 'function': it must {numbers} \(ratio {NUMBER}", line), line


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


UNUSED = {"materialize_grads": False}
ALONE = {
    "sign": (product_rule(lambda dx, dy, needed, used: (dx, dy if needed[0] else -dy)), "y", "'y' is needed"),
    "missing": (product_rule(lambda dx, dy, needed, used: (dx if all(needed) else None, dy)), "x", "'x' is needed"),
    "exception": (product_rule(lambda dx, dy, needed, used: (dx + 0, dy)), "y", "'y' is needed"),
    "factor": (
        product_rule(lambda dx, dy, needed, used: (dx if used[1] else 2 * dx, dy), **UNUSED),
        "x",
        "value[0] is used",
    ),
    "none": (
        product_rule(lambda dx, dy, needed, used: (dx if used[0] else None, dy), **UNUSED),
        "x",
        "value[1] is used",
    ),
    "times none": (product_rule(lambda dx, dy, needed, used: (dx, 1 * dy), **UNUSED), "x", "value[1] is used"),
}


@pytest.mark.parametrize(("name", "mode"), pairs(ALONE, ["eager", "function", "xla"]))
def test_a_rule_that_is_wrong_for_one_argument_or_one_output_alone_is_found(name, mode):
    function, argument, case = ALONE[name]
    text = message_of_failure(function, [X, Y], modes=[mode])
    (line,) = [line for line in text.splitlines() if line.startswith("check_gradient: ")]
    assert f"with respect to '{argument}" in line
    assert f"(if only {case})" in line


def test_a_rule_that_reads_what_is_needed_and_used_is_right():
    assert not check_gradient(product_rule(lambda dx, dy, *_: (dx, dy), **UNUSED), [X, Y], second_order=True).failures


TANGENT_RULES = {"square": lambda t: t**2, "constant": lambda t: 2.0 * t + 1.0, "abs": tf.abs}


@pytest.mark.parametrize(("rule", "mode"), pairs(TANGENT_RULES, ["function", "xla", "vectorized"]))
def test_a_tangent_rule_that_is_not_linear_is_called_so(rule, mode):
    doubled = cg.custom_jvp(lambda x: 2.0 * x)
    doubled.defjvp(lambda primals, tangents: (2.0 * primals[0], TANGENT_RULES[rule](tangents[0])))
    text = message_of_failure(doubled, [tf.constant([0.5, -1.0, 3.0])], modes=["eager", mode])
    lines = [line for line in text.splitlines() if line.startswith("check_gradient: ")]
    assert lines
    assert all(
        " It is not linear in the tangents, so it has no transpose. A rule of custom_jvp" in line for line in lines
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
    function = in_python(decorated(tf.nn.relu, lambda dy, x: dy * (0.5 if tf.executing_eagerly() else 1.0)))
    zeros = np.zeros(2)
    assert not check_gradient(function, [zeros], modes=["eager"]).failures
    assert "a kink nearby" in first_line(function, [zeros], modes=["function"])
    assert first_line(function, [zeros], modes=["eager", "function"]).endswith(FACTOR)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"derivative": tf.tanh}, "It is the upstream times the value of like, not times its derivative."),
        ({"surrogate": lambda x: 1 - tf.tanh(x) ** 2}, "It is the derivative of like's derivative."),
    ],
)
def test_a_surrogate_taken_for_its_derivative_and_the_other_way_round(options, message):
    line = first_line(cg.straight_through(tf.sign, **options), [np.array([0.3, -0.8, 1.7])], like=tf.tanh)
    assert message in line
    assert line.endswith("; to pass a derivative itself, write derivative=.")
