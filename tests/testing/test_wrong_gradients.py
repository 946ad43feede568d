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


def message_of_failure(function, args, **options):
    with pytest.raises(AssertionError) as failure:
        check_gradient(function, args, **options)
    return str(failure.value)


def first_line(function, args, **options):
    return message_of_failure(function, args, **options).splitlines()[0]


def decorated(value, grad_fn):
    """A function of any arguments with this value and this gradient."""

    @cg.custom_gradient
    def f(*args):
        return value(*args), lambda dy: grad_fn(dy, *args)

    return lambda *args: f(*args)


def named(function):
    """The faulty function has one name in all messages."""

    def faulty(*args):
        return function(*args)

    return faulty


WRONG = {
    "sign": (decorated(tf.sin, lambda dy, x: -dy * tf.cos(x)), [X], "The ratio is -1 everywhere: the sign is wrong."),
    "factor": (
        decorated(tf.sin, lambda dy, x: 2 * dy * tf.cos(x)),
        [X],
        "The ratio is 2 everywhere: a factor is wrong.",
    ),
    "conj": (
        decorated(lambda z: z**3, lambda dy, z: dy * 3 * z**2),
        [Z],
        "It would be right with the derivative conjugated: TensorFlow's convention is dx = dy * conj(f').",
    ),
    "transposed": (
        decorated(lambda x: tf.linalg.matvec(MATRIX, x), lambda dy, x: tf.linalg.matvec(MATRIX, dy)),
        [X],
        "It is the Jacobian times the upstream: the Jacobian is transposed.",
    ),
    "no_upstream": (
        decorated(tf.sin, lambda dy, x: tf.cos(x)),
        [X],
        "It does not depend on the upstream: multiply by dy.",
    ),
    "swapped": (
        decorated(lambda x, y: x * tf.sin(y), lambda dy, x, y: (dy * x * tf.cos(y), dy * tf.sin(y))),
        [X, Y],
        "It is the gradient with respect to 'args[1]': the gradients may be in the wrong order.",
    ),
    "none": (
        decorated(tf.sin, lambda dy, x: None),
        [X],
        "The gradient is None: for TensorFlow, the value does not depend on the argument.",
    ),
    "zero": (decorated(tf.sin, lambda dy, x: tf.zeros_like(x)), [X], "The gradient is zero everywhere."),
    "uniform_only": (
        decorated(lambda x: x**2, lambda dy, x: tf.reduce_mean(dy) * 2 * x),
        [X],
        "It is right for a uniform upstream only: it is not a vector-Jacobian product.",
    ),
    "nan": (
        decorated(tf.sin, lambda dy, x: dy * tf.math.log(-tf.abs(x))),
        [X],
        "The gradient is not finite.",
    ),
}


# One message for them all.
ALL_MODES = "the modes 'eager', 'function', 'xla', 'vectorized'"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gradient_is_found_and_named(name):
    """In every mode, which two of them show."""
    function, args, hint = WRONG[name]
    options, modes = ({}, ALL_MODES) if name in ("factor", "none") else ({"modes": ["eager"]}, "mode 'eager'")
    line = first_line(named(function), args, **options)
    got = {"none": "None", "nan": "nan"}.get(name, NUMBER)
    found = re.fullmatch(
        rf"check_gradient: the gradient of 'faulty' with respect to 'args\[0\]' is wrong in {modes}; expected "
        rf"({NUMBER}) \(numeric differentiation\) at element \[(\d)\], got ({got}) \(ratio (?:{NUMBER}|nan); 3 of "
        rf"3 elements checked\)\. {re.escape(hint)}",
        line,
    )
    assert found, line
    if name == "factor":  # The numbers of the worst element, by hand: the upstream is that of the seed.
        expected, element, got = float(found[1]), int(found[2]), float(found[3])
        assert 0.5 <= abs(expected / np.cos(X[element])) <= 1.5
        np.testing.assert_allclose(got, 2 * expected, rtol=1e-7)


def test_a_wrong_factor_of_tiny_gradients_is_found():
    """The tolerance is relative to the largest element, however small that is."""
    function = decorated(lambda x: 1e-12 * x, lambda dy, x: 2e-12 * dy)
    message = message_of_failure(function, [X], intended_gradient=lambda dy, x: 1e-12 * dy)
    assert "The ratio is 2 everywhere: a factor is wrong." in message


@pytest.mark.parametrize("rows", [2, 3])
def test_an_unknown_kind_of_fault_gets_no_hint(rows):
    matrix, other = np.random.default_rng(rows).normal(size=[2, rows, 3])
    wrong = decorated(lambda x: tf.linalg.matvec(matrix, x), lambda dy, _: tf.linalg.matvec(other.T, dy))
    assert first_line(wrong, [X]).endswith("3 of 3 elements checked).")


@pytest.mark.parametrize("size", [50, 100_000])
def test_a_single_wrong_element_of_many_is_found(size):
    x = RNG.normal(size=[size])
    wrong = np.ones(size)
    wrong[size // 3] = -1

    line = first_line(decorated(tf.sin, lambda dy, x: dy * tf.cos(x) * wrong), [x], modes=["eager"])
    where = "element [16]" if size == 50 else "element all, along a random direction"
    assert where in line
    assert f"{min(size, 64)} of {size} elements checked" in line


def test_a_gradient_that_is_right_in_eager_mode_only_is_found():
    def f(dy, x):
        return dy * tf.cos(x) if tf.executing_eagerly() else dy

    text = message_of_failure(tf.autograph.experimental.do_not_convert(decorated(tf.sin, f)), [X])
    rows = [line.split() for line in text.splitlines() if " first " in line]
    assert {row[0]: row[-1] for row in rows if "batch" not in row} == {
        "eager": "ok",
        "function": "WRONG",
        "xla": "WRONG",
        "vectorized": "WRONG",
    }


def test_a_gradient_that_mixes_up_a_batch_is_found():
    """Right for every single call, but computed with the first arguments that came."""
    seen = []

    def grad_fn(dy, x):
        inside_a_batch = not tf.executing_eagerly()
        seen.append(x)
        return dy * tf.cos(tf.constant(X) if inside_a_batch else x)

    function = tf.autograph.experimental.do_not_convert(decorated(tf.sin, grad_fn))
    text = message_of_failure(function, [X])
    assert {line.split()[0] for line in text.splitlines() if "WRONG" in line} == {"vectorized"}
    assert "with respect to 'args[0], 2 of 3 in a batch' is wrong in mode 'vectorized'; expected" in text
    assert "(eager mode)" in text


def test_a_gradient_without_a_batch_is_a_failure_with_its_message():
    def f(x):
        tf.debugging.assert_equal(x.shape.rank, 1)
        return tf.numpy_function(np.sin, [x], tf.float64)

    like = tf.custom_gradient(lambda x: (tf.ensure_shape(f(x), [3]), lambda dy: dy * tf.cos(x)))
    text = message_of_failure(lambda x: like(x), [X])
    assert "could not be computed in mode 'xla'; expected numbers, got InvalidArgumentError: " in text
    assert "PyFunc" in text
    assert "eager       first  x" in text


@tf.custom_gradient
def first_order_only(x):
    derivative = tf.stop_gradient(tf.cos(x))
    return tf.sin(x), lambda dy: dy * derivative


@cg.custom_gradient
def wrong_second_order(x):
    @cg.custom_gradient
    def derivative(x):
        return tf.cos(x), lambda dy: dy * tf.sin(x)

    return tf.sin(x), lambda dy: dy * derivative(x)


def test_a_wrong_second_order_is_found_where_the_first_is_right():
    for function, hint in (
        (wrong_second_order, "The ratio is -1 everywhere: the sign is wrong."),
        (first_order_only, "The gradient is None: for TensorFlow, the value does not depend on the argument."),
    ):
        assert not check_gradient(function, [X]).failures
        lines = message_of_failure(function, [X], second_order=True).splitlines()
        assert lines[0].startswith(
            f"check_gradient: the second-order gradient of '{function.__name__}' with respect to 'x' is wrong in "
            f"{ALL_MODES}; expected "
        )
        assert lines[0].endswith(hint)


def test_a_wrong_tangent_is_found_where_the_gradient_is_right():
    """Inside a tf.function, forward mode ignores tf.custom_gradient and differentiates its value."""

    @tf.custom_gradient
    def ascent(x):
        return tf.sin(x), lambda dy: -dy * tf.cos(x)

    options = {"like": lambda x: -tf.sin(x), "modes": ["function"]}
    assert not check_gradient(ascent, [X], **options).failures
    line = first_line(ascent, [X], **options, forward_mode=True)
    assert re.fullmatch(
        rf"check_gradient: the tangent of 'ascent' \(value\) is wrong in mode 'function'; expected {NUMBER} \(numeric "
        rf"differentiation\) at element \[\d\], got {NUMBER} \(ratio -1; 3 of 3 elements checked\)\. The ratio is -1 "
        "everywhere: the sign is wrong.",
        line,
    ), line
    of_the_library = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: -dy * tf.cos(x)))
    assert not check_gradient(of_the_library, [X], **options, forward_mode=True).failures


def test_another_value_in_a_mode_is_found():
    def f(x):
        return tf.sin(x) if tf.executing_eagerly() else tf.sin(x) + 1.0

    line = first_line(tf.autograph.experimental.do_not_convert(f), [X], modes=["eager", "function"])
    assert re.fullmatch(
        rf"check_gradient: the value of '.*f' \(value\) is wrong in mode 'function'; expected {NUMBER} \(eager mode\) at "
        rf"element \[\d\], got {NUMBER} \(ratio {NUMBER}; 3 of 3 elements checked\)\.",
        line,
    ), line


def test_integers_have_to_be_the_same_in_every_mode():
    @tf.autograph.experimental.do_not_convert
    def f(x):
        return x, tf.argmax(x) + (0 if tf.executing_eagerly() else 1)

    assert "(value[1]) is wrong in mode 'function'; expected" in first_line(f, [X], modes=["eager", "function"])


def in_float32(x):
    return tf.cast(tf.exp(tf.cast(x, tf.float32)), tf.float64)


def test_rounding_to_float32_inside_is_found_unless_it_is_allowed():
    line = first_line(in_float32, [X], modes=["eager"])
    assert line.endswith(
        "or the function computes in a lower precision than float64. Pass other numbers, or step and rtol."
    )
    assert not check_gradient(in_float32, [X], step=0.1, rtol=1e-3).failures
    halved = first_line(lambda x: in_float32(x) + tf.stop_gradient(tf.exp(x)), [X], step=0.1, rtol=1e-3)
    assert "The ratio is 0.5 everywhere: a factor is wrong." in halved


def test_a_gradient_of_another_shape_or_dtype_is_found():
    @tf.custom_gradient
    def shorter(x):
        return tf.sin(x), lambda dy: (dy * tf.cos(x))[:2]

    @tf.custom_gradient
    def rounded(x):
        return tf.sin(x), lambda dy: tf.cast(dy * tf.cos(x), tf.float32)

    for function, got in ((shorter, "float64 of shape [2]"), (rounded, "float32 of shape [3]")):
        assert first_line(function, [X]).endswith(
            f"is wrong in {ALL_MODES}; expected float64 of shape [3], got {got}. Gradients have the dtype and the shape of "
            "the argument."
        )


def test_a_kink_is_named_as_a_possible_reason():
    line = first_line(tf.nn.relu, [np.array([-1.0, 0.0, 2.0])], modes=["eager"])
    assert "at element [1]" in line
    assert "there may be a kink nearby" in line


def test_a_function_that_is_not_finite_is_a_failure():
    for x in ([0.0, 1.0], [-1.0, 1.0]):  # An infinite gradient, and one that is nan as the value is.
        assert "at element [0], got" in first_line(tf.sqrt, [np.array(x)], modes=["eager"])
    line = first_line(decorated(tf.math.log, lambda dy, x: dy), [np.array([1.0, -1.0])], modes=["eager"])
    assert line.endswith("The function itself is not finite around the argument: pass other numbers.")


NOT_LINEAR = {
    "clipped": lambda dy, x: tf.clip_by_value(dy, -1.6, 1.6) * tf.cos(x),
    "without_small_ones": lambda dy, x: tf.where(tf.abs(dy) < 0.4, tf.zeros_like(dy), dy) * tf.cos(x),
    "clipped_by_norm": lambda dy, x: tf.clip_by_norm(dy, 10.0) * tf.cos(x),
}
NOT_LINEAR_HINT = (
    "It is not linear in the upstream, so it is no vector-Jacobian product: if that is intended, pass "
    "intended_gradient=."
)


@pytest.mark.parametrize(("name", "mode"), pairs(NOT_LINEAR, ["eager", "xla", "vectorized"]))
def test_a_gradient_that_is_not_linear_in_the_upstream_is_found(name, mode):
    function = named(decorated(tf.sin, NOT_LINEAR[name]))
    text = message_of_failure(function, [X], modes=[mode, "function"])
    (line,) = [line for line in text.splitlines() if "check_" in line]
    factor = "0.001" if name == "without_small_ones" else "1000"
    assert line.startswith(
        f"check_gradient: the gradient of 'faulty' with respect to 'args[0], for an upstream {factor} times as large' is "
        f"wrong in mode '{mode}'; expected "
    )
    assert "(linear in the upstream)" in line
    assert line.endswith(NOT_LINEAR_HINT)


def test_a_gradient_that_is_clipped_at_every_upstream_is_named():
    clipped = decorated(tf.sin, lambda dy, x: tf.clip_by_value(dy, -0.7, 0.7) * tf.cos(x))
    assert first_line(clipped, [X], modes=["eager"]).endswith(NOT_LINEAR_HINT)


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1e150, 1e300])
def test_a_linear_gradient_passes_at_every_magnitude(size):
    assert not check_gradient(lambda x: size * tf.sin(x), [X], modes=["eager"]).failures


def test_a_missing_conj_is_named_where_the_output_is_real():
    square = decorated(
        lambda z: tf.math.real(z * tf.math.conj(z)),
        lambda dy, z: 2 * tf.cast(dy, z.dtype) * tf.math.conj(z),
    )
    assert first_line(square, [Z], modes=["eager"]).endswith(
        "It would be right with the derivative conjugated: TensorFlow's convention is dx = dy * conj(f')."
    )


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (cg.straight_through(tf.sign), X),
        (cg.grad_pass_through(tf.round), np.array([0.5, -1.0, 3.0, 0.2])),  # Halfway between two integers.
    ],
)
def test_a_straight_through_estimator_has_to_be_declared(function, x):
    assert first_line(function, [x], modes=["eager"]).endswith(
        "The numeric derivative is zero wherever it is known: if the gradient deliberately differs from it, as in a "
        "straight-through estimator, pass like= or intended_gradient=."
    )


@pytest.mark.parametrize(("small", "function"), pairs([1.0, 1e-3, 1e-5, 1e-9, 1e-20], [tf.reduce_sum, tf.exp]))
def test_a_small_element_that_is_not_looked_at_moves_along_the_direction(small, function):
    sampled = np.random.default_rng(0).choice(2000, 64, replace=False)
    place = int(np.setdiff1d(np.arange(2000), sampled)[1000])
    x = RNG.uniform(0.5, 1.5, size=2000)
    x[place] = small
    wrong = np.ones(2000)
    wrong[place] = 0

    def grad_fn(dy, x):
        return dy * (tf.exp(x) if function is tf.exp else 1.0) * wrong

    line = first_line(decorated(function, grad_fn), [x], modes=["eager"])
    assert "at element all, along a random direction" in line


def test_a_direction_that_leaves_the_domain_is_no_fault():
    for small in (1e-5, 1e-9, 1e-20):
        x = RNG.uniform(0.5, 1.5, size=100)
        x[50] = small
        for function in (tf.math.log, tf.sqrt, tf.nn.relu if small > 1e-20 else tf.identity):
            assert not check_gradient(function, [x], modes=["eager"], forward_mode=True).failures


def test_no_kink_is_suspected_where_another_mode_agrees():
    """At the kink the numeric derivative is a mean, which eager mode happens to agree with."""

    def f(dy, x):
        return dy * (0.5 if tf.executing_eagerly() else 1.0)

    function = tf.autograph.experimental.do_not_convert(decorated(tf.nn.relu, f))
    zeros = np.zeros(2)
    assert not check_gradient(function, [zeros], modes=["eager"]).failures
    assert "a kink nearby" in first_line(function, [zeros], modes=["function"])
    assert first_line(function, [zeros], modes=["eager", "function"]).endswith(
        "The ratio is 2 everywhere: a factor is wrong."
    )


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
            " It is not linear in the tangents, so it has no transpose: a rule of custom_jvp multiplies the tangents by "
            "the Jacobian."
        )
