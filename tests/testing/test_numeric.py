"""The accuracy of check_gradient's numeric derivatives: scales, magnitudes, sizes, and hard functions."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

from ..support.tensors import pairs

RNG = np.random.default_rng(3)
X10 = RNG.normal(size=[10])


def times(factor, value=tf.exp, derivative=tf.exp):
    """A function with this factor in its gradient."""
    factor = tf.constant(factor, tf.float64)
    return cg.custom_gradient(lambda x: (value(x), lambda dy: dy * factor * derivative(x)))


def assert_wrong(function, x, match="is wrong in mode 'eager'", **options):
    with pytest.raises(AssertionError, match=match):
        check_gradient(function, [x], modes=["eager"], **options)


SMOOTH = {
    "sin": tf.sin,
    "exp": lambda x: tf.exp(-tf.abs(x)),
    "log": lambda x: tf.math.log(tf.abs(x)),
    "sqrt": lambda x: tf.sqrt(tf.abs(x)),
    "inverse_square": lambda x: 1 / x**2,
    "softmax": tf.nn.softmax,
    "logsumexp": tf.reduce_logsumexp,
    "norm": tf.norm,
    "product": lambda x: x[:, None] * x,
    "standardize": lambda x: (x - tf.reduce_mean(x)) / tf.math.reduce_std(x),
    "offset": lambda x: 1e6 + x,
    "constant": lambda x: x / x,
    "relu": tf.nn.relu,
    "sorted": tf.sort,
}


@pytest.mark.parametrize(("name", "size"), pairs(SMOOTH, [1e-6, 1.0, 1e6], quick=2))
def test_right_gradients_pass_at_every_scale(name, size):
    x = size * np.array([0.3, -1.2, 0.7, -0.1, 1.9])
    report = check_gradient(SMOOTH[name], [x], modes=["eager"])
    gradient = report.comparisons[-1]
    assert gradient.checked == gradient.size == 5
    # Of the 16 digits of a number near a million, x affects only the last ones.
    known = {1e-6: 10.0, 1.0: 1e-5, 1e6: 1e-8}[size] if name == "offset" else 1e-8
    assert gradient.tolerance < (known + 2e-6) * max(abs(gradient.numeric), 1 / size)


def test_many_elements_are_sampled_reproducibly():
    x = RNG.normal(size=[300, 300])
    for function in (tf.nn.softmax, tf.nn.relu):
        assert "5 of 90000" in str(check_gradient(function, [x], modes=["eager"], max_elements=5))
    texts = [str(check_gradient(tf.sin, [X10], modes=["eager"], seed=seed, max_elements=9)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert "9 of 10" in texts[0]
    assert "10 of 10" in str(check_gradient(tf.sin, [X10], modes=["eager"], max_elements=10))


HARD = {
    # A peak that the first steps straddle, and waves with which they alias.
    "narrow_peak": (lambda x: tf.exp(-((x - 1e3) ** 2)), [1000.5]),
    "fast_wave": (lambda x: tf.sin(1e6 * x), [0.1257302210933933, 0.7]),
    **{f"phase_{f:g}": (lambda t, f=f: tf.sin(2 * np.pi * f * t), [30.3, 10.1]) for f in (1e4, 1e5, 1e6)},
    "phases_of_a_radio": (lambda t: tf.sin(2 * np.pi * 68e6 * t), [0.4444, 0.3]),
    "chirp": (lambda t: tf.cos(1e5 * t**2), [30.3, 20.1]),
    # Steps that leave the domain, or cross a kink.
    "edge_of_the_domain": (lambda x: tf.sqrt(1 - x**2), [0.9999]),
    "near_a_kink": (tf.nn.relu, [1e-3, -1e-4]),
    "near_a_limit": (lambda x: tf.clip_by_value(x, -1.0, 1.0), [0.9999, 1.0001]),
    "steps": (tf.round, [0.4999, 0.3, 7.4]),
    "overflow": (lambda x: tf.exp(x), [709.0]),
    "zero": (lambda x: x**2 + x, [0.0, 0.0]),
    "zeros_among_others": (lambda x: x**2 + 1e6 * x, [0.0, 1e-6]),
    "infinite_mask": (lambda x: tf.nn.softmax(tf.where([True, False, True], x, -np.inf)), [0.2, 1.0, -0.3]),
    "infinite_outputs": (lambda x: tf.where([True, False], x, np.inf), [0.2, 1.0]),
    "underflow": (lambda x: 1e-200 * x, [0.5, 2.0]),
    "tiny": (lambda x: tf.exp(x), [1e-12, -1e-13]),
}


@pytest.mark.parametrize("name", HARD)
def test_right_gradients_of_hard_functions_pass_and_wrong_ones_fail(name):
    function, x = HARD[name]
    assert not check_gradient(function, [np.array(x)], modes=["eager"]).failures
    factor = tf.constant([-1.0, 1.0, 1.0][: len(x)], tf.float64)

    @tf.custom_gradient
    def wrong(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)

        def grad_fn(dy):
            gradient = tape.gradient(y, x, output_gradients=dy)
            return factor if gradient is None else factor * gradient

        return y, grad_fn

    assert_wrong(wrong, np.array(x), r"is wrong in mode 'eager': .* be .* \(numeric diff.*\)( at element .*)?, got")


@pytest.mark.parametrize(("phase", "factor"), pairs([1e11, 1e14, 1e30], [1.0, 1.001, -1.0]))
def test_a_derivative_that_no_step_sees_cannot_be_checked(phase, factor):
    f = times(factor, lambda x: tf.sin(phase * x), lambda x: phase * tf.cos(phase * x))
    message = r"cannot be checked here in mode 'eager': .* the function changes faster than any step"
    assert_wrong(f, np.array([1.3, 0.7]), message)


def test_numeric_differentiation_is_done_once_for_all_modes():
    calls = []

    @tf.autograph.experimental.do_not_convert
    def counted(x):
        calls.append(1)
        return tf.sin(x)

    check_gradient(counted, [np.ones(20)], modes=["eager"])
    in_one_mode = len(calls)
    check_gradient(counted, [np.ones(20)])
    assert len(calls) - in_one_mode < in_one_mode + 10


def test_an_absolute_tolerance_is_added():
    function = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * tf.cos(x) + 1e-3))
    assert not check_gradient(function, [np.ones(3)], modes=["eager"], atol=2e-3).failures
    assert_wrong(function, np.ones(3), atol=5e-4)


def test_a_float32_gradient_is_computed_in_float64():
    seen = []

    def f(x, z, n):
        seen.append((x.dtype, z.dtype, n))
        return x * tf.cast(tf.abs(z), x.dtype)

    check_gradient(f, [tf.constant([1.0]), tf.constant([1 + 1j], tf.complex64), 3], modes=["eager"])
    assert set(seen) == {(tf.float64, tf.complex128, 3)}


# The derivative of the logarithm is a million times larger at one end than at the other.
AT_AN_END = times([1, 1, 1.001], tf.math.log, lambda x: 1 / x)
# Functions whose gradient is a little wrong, or wrong for a tiny argument.
SMALL = {
    "1.001": (AT_AN_END, [1e-3, 1.0, 1e3], r"at element \[2\], got .* \(ratio 1\.001"),
    **{f"{x}": (times(k), x, "is wrong") for x, k in ((1e-20, -7.0), (1e-16, 0.0), (1e-12, 1.05), (1e-8, 1.00001))},
    "one": (times([-3.0, 1.0, 1.0]), [1e-16, 1.0, 2.0], "is wrong"),
    "none": (lambda x: tf.stop_gradient(tf.sigmoid(x)), 1e-16, "got None"),
    "round": (cg.grad_pass_through(tf.round), 1e-20, "it must be 0 .* got"),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_wrong_gradient_is_found(name):
    function, x, message = SMALL[name]
    assert_wrong(function, np.array(x), message)
    for right in (tf.sigmoid, tf.math.log):
        assert not check_gradient(right, [np.array(x)], modes=["eager"]).failures


@pytest.mark.parametrize(("x", "offset"), pairs([1e-9, 1e-3, 1.0], [1e6, 1e9, 1e12]))
def test_no_more_than_a_tenth_of_the_derivative_drowns_in_a_large_value(x, offset):
    report = check_gradient(lambda x: offset + x, [x], modes=["eager"])
    assert report.comparisons[-1].tolerance < 0.11 * abs(report.comparisons[-1].numeric)
    assert_wrong(times(1.2, lambda x: offset + x, tf.ones_like), x)
