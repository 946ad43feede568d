"""Every function of the library at the numbers where a dtype ends, against formulas in NumPy's widest numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.ready_made.straight_through import DERIVATIVES

from ..support.modes import RUNS, tape_vjp
from ..support.tensors import DTYPES, GRADIENT_RTOL, pairs

REAL = [dtype for dtype in DTYPES if not dtype.is_complex]
FACTOR = 0.5


def half(x):
    return x * tf.constant(FACTOR, x.dtype)


def shrink(dy, limit=1.0):
    """`dy`, scaled down to a norm of the limit."""
    norm = np.sqrt(np.sum(np.abs(dy) ** 2))
    return dy * np.where(norm > limit, limit / norm, 1)


class Row(NamedTuple):
    """A function of a Tensor, and in NumPy its value and its gradient for an upstream gradient.

    Attributes:
      dtypes: What it takes.
      alone: Whether each number is a call, because a call mixes its numbers.
      is_finite: Whether it refuses infinite numbers.
      has_infinite_upstream: Not if it multiplies by zero: TensorFlow returns nan for it, and XLA zero.
    """

    function: Callable[..., Any]
    gradient: Callable[..., Any] = lambda x, dy: dy
    value: Callable[..., Any] = lambda x: x
    dtypes: list[tf.DType] = DTYPES
    alone: bool = False
    is_finite: bool = False
    has_infinite_upstream: bool = True


def halved(function, **options):
    """A row for a function that computes half of x."""
    return Row(function, lambda x, dy: FACTOR * dy, lambda x: FACTOR * x, **options)


def surrogate(name, derivative):
    # In graphs, TensorFlow moves a slope to the upstream gradient, and twice the largest number is infinite.
    function = cg.straight_through(half, name, slope=FACTOR if name == "sigmoid" else 2.0)
    return Row(function, lambda x, dy: dy * derivative(x), lambda x: FACTOR * x, REAL, has_infinite_upstream=False)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rule(rule, gradient):
    function = cg.override_gradients(half, {"Mul": rule})
    return Row(function, lambda x, dy: gradient(dy), lambda x: FACTOR * x, REAL)


def ignore(gradient):
    """Watches and returns nothing."""


@cg.custom_jvp
def with_tangent(x):
    return half(x)


with_tangent.defjvp(lambda primals, tangents: (half(primals[0]), half(tangents[0])))


def residual(y, x):
    return y - half(x)


def step(y, x):
    return half(x) + half(half(x) - y)


def objective(y, x):
    return tf.reduce_sum((y - half(x)) ** 2)


def hidden(x):
    """Where x is not above 1, the derivative of the root is hidden."""
    return tf.where(x > 1, tf.sqrt(x), tf.zeros_like(x))


# The numbers are finite, so the last upstream gradients would be the ones before.
SOLVED = {"alone": True, "is_finite": True, "has_infinite_upstream": False}
# The solvers have all dtypes.
FEW_DTYPES = SOLVED | {"dtypes": [tf.bfloat16, tf.complex64]}
SURROGATES = {
    "identity": np.ones_like,
    "hard_tanh": lambda x: (np.abs(x) <= 0.5).astype(x.dtype),
    "sigmoid": lambda x: FACTOR * sigmoid(FACTOR * x) * sigmoid(-FACTOR * x),
    "fast_sigmoid": lambda x: 1 / (1 + 2 * np.abs(x)) ** 2,
}
ROWS = {
    "reverse_gradient": Row(lambda x: cg.reverse_gradient(x, 2.0), lambda x, dy: -2 * dy),
    "scale_gradient": Row(lambda x: cg.scale_gradient(x, 0.25), lambda x, dy: 0.25 * dy),
    "clip_gradient": Row(lambda x: cg.clip_gradient(x, value=2.0), lambda x, dy: np.clip(dy, -2, 2), dtypes=REAL),
    "clip_gradient by norm": Row(lambda x: cg.clip_gradient(x, norm=1.0), lambda x, dy: shrink(dy)),
    "clip_gradient by global_norm": Row(lambda x: cg.clip_gradient([x], global_norm=1.0)[0], lambda x, dy: shrink(dy)),
    "clip_gradient under loss_scale": Row(
        lambda x: cg.clip_gradient(x, norm=1.0, loss_scale=4.0), lambda x, dy: shrink(dy, 4.0)
    ),
    "watch_gradient": Row(lambda x: cg.watch_gradient(x, "x", callback=ignore)),
    "checkpoint_name": Row(lambda x: cg.checkpoint_name(x, "x")),
    "grad_pass_through": Row(cg.grad_pass_through(half), value=lambda x: FACTOR * x),
    "custom_gradient": halved(cg.custom_gradient(lambda x: (half(x), half))),
    "custom_vjp": halved(cg.custom_vjp(lambda x: (half(x), ()), lambda _, dy: half(dy))),
    "custom_jvp": halved(with_tangent),
    "embed_gradient": halved(lambda x: cg.embed_gradient(half(x), half(tf.ones_like(x)), x)),
    **{
        f"compat.{module}.custom_gradient": halved(
            lambda x, m=module: getattr(cg.compat, m).custom_gradient(half(x), half(tf.ones_like(x)), x)
        )
        for module in cg.compat.__all__
    },
    "numpy_function": halved(cg.numpy_function(lambda x: (x * x.dtype.type(0.5), np.full_like(x, 0.5)))),
    "override_gradients": halved(cg.override_gradients(half, {"Mul": lambda op, dy: [half(dy), None]})),
    "recompute_grad": halved(cg.recompute_grad(half)),
    "scan": halved(lambda x: cg.scan(lambda c, _: (half(c), None), x, None, length=1)[0]),
    "while_loop": halved(
        lambda x: cg.while_loop(lambda i, _: i < 1, lambda i, c: (i + 1, half(c)), (0, x), maximum_iterations=1)[1]
    ),
    "implicit_root": halved(cg.implicit_root(residual, half), dtypes=REAL, alone=True),
    "implicit_root by linear_solve": halved(cg.implicit_root(residual, half, linear_solve=cg.linear.cg), **FEW_DTYPES),
    "implicit_fixed_point": halved(cg.implicit_fixed_point(step, half), dtypes=REAL, alone=True),
    "implicit_fixed_point by linear_solve": halved(
        cg.implicit_fixed_point(step, half, linear_solve=cg.linear.gmres), **FEW_DTYPES
    ),
    "implicit_minimum": halved(cg.implicit_minimum(objective, half), dtypes=REAL, alone=True),
    **{
        f"linear.{name}": halved(lambda x, solve=solve: solve(lambda u: u / tf.constant(FACTOR, u.dtype), x), **SOLVED)
        for name, solve in {"cg": cg.linear.cg, "gmres": cg.linear.gmres}.items()
    },
    "fake_quant": Row(
        lambda x: cg.fake_quant(x, FACTOR),
        lambda x, dy: np.where((x >= -64) & (x <= 63.5), dy, 0),
        lambda x: np.clip(np.floor(2 * x + 0.5), -128, 127) / 2,
        REAL,
    ),
    **{f"straight_through {name}": surrogate(name, function) for name, function in SURROGATES.items()},
    "rules.built_in": rule(cg.rules.built_in, lambda dy: FACTOR * dy),
    "rules.clip": rule(cg.rules.clip(norm=1.0), lambda dy: shrink(FACTOR * dy)),
    "rules.deconvnet": rule(cg.rules.deconvnet, lambda dy: np.where(dy > 0, dy, 0)),
    "rules.dynamic_slice": Row(
        cg.override_gradients(
            lambda x: tf.slice(x, tf.zeros_like(tf.shape(x)), tf.shape(x)), {"Slice": cg.rules.dynamic_slice}
        )
    ),
    "rules.guided": rule(cg.rules.guided, lambda dy: FACTOR * np.where(dy > 0, dy, 0)),
    "rules.masked": Row(
        cg.override_gradients(hidden, {cg.rules.elementwise: cg.rules.masked}),
        lambda x, dy: np.where(x > 1, dy / 2 / np.sqrt(np.where(x > 1, x, 1)), 0),
        lambda x: np.sqrt(np.where(x > 1, x, 0)),
        REAL,
    ),
    "rules.pass_through": rule(cg.rules.pass_through, lambda dy: dy),
    "rules.zero": rule(cg.rules.zero, np.zeros_like),
}
# XLA cannot call Python.
NOT_UNDER_XLA = {"numpy_function", "watch_gradient"}
# They compute no numbers of their own: modules, predicates and tools.
NO_NUMBERS = {
    "capture",
    "compat",
    "layers",
    "linear",
    "rules",
    "rules.elementwise",
    "saved_model",
    "sysconfig",
    "testing",
}


def test_no_function_is_missing():
    parts = {"": cg, "linear.": cg.linear, "rules.": cg.rules}
    parts |= {f"compat.{name}.": getattr(cg.compat, name) for name in cg.compat.__all__}
    there = {prefix + name for prefix, module in parts.items() for name in module.__all__}
    assert there - NO_NUMBERS - {"__version__"} <= {name.partition(" ")[0] for name in ROWS}
    assert DERIVATIVES.keys() == SURROGATES.keys()


def numbers(dtype):
    """0.5 is where the derivative of hard_tanh ends here."""
    info = ml_dtypes.finfo(dtype.real_dtype.as_numpy_dtype)
    real = [0.0, info.smallest_subnormal, 0.5, 1.0, np.sqrt(np.longdouble(info.max)), info.max, np.inf]
    real = np.array([*real, -1.5, *(-number for number in real[1:])]).astype(np.longdouble)
    with np.errstate(all="ignore"):
        return real.astype(dtype.real_dtype.as_numpy_dtype)


def to_dtype(numbers, dtype):
    """As a number of the dtype: complex ones lie on a line through zero, and have no other part there."""
    numbers = np.asarray(numbers).astype(dtype.real_dtype.as_numpy_dtype)
    return numbers.astype(dtype.as_numpy_dtype)


def wide(array):
    array = np.asarray(array)
    if array.dtype.kind == "c":
        return array.astype(np.clongdouble)
    return array.astype(np.float64).astype(np.longdouble)


def assert_close(found, expected, dtype):
    """As far as rounding to the dtype allows. TensorFlow computes without denormals."""
    info = ml_dtypes.finfo(dtype.real_dtype.as_numpy_dtype)
    rounded = to_dtype(np.real(expected), dtype)
    np.testing.assert_allclose(
        wide(found), wide(rounded), rtol=2 * GRADIENT_RTOL[dtype], atol=8 * wide(info.tiny), equal_nan=True
    )


def calls(row, dtype):
    """The numbers and the upstream gradients of each call."""
    x = numbers(dtype)
    # A product with an infinite complex number is nan in NumPy, too.
    x = x[np.isfinite(x)] if row.is_finite or dtype.is_complex else x
    rolled = np.roll(x, 3)
    upstreams = [np.resize([1.0, -3.0, 0.5, 2.0, -0.25], x.shape), np.where(np.isfinite(rolled), rolled, 1), rolled]
    for dy in upstreams if row.has_infinite_upstream else upstreams[:2]:
        for part in [slice(i, i + 1) for i in range(len(x))] if row.alone else [slice(None)]:
            yield to_dtype(x[part], dtype), to_dtype(dy[part], dtype)


ITERATIVE = [name for name, row in ROWS.items() if row.is_finite]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *pairs([name for name in ROWS if name not in ITERATIVE], RUNS),
        *((name, "eager") for name in ITERATIVE),
        # A graph takes seconds for each dtype. test_linear.py has their numbers of any size in graphs and under XLA.
        *(pytest.param(name, mode, marks=pytest.mark.slow) for name in ITERATIVE for mode in ("traced", "jit")),
    ],
)
def test_at_the_ends_of_each_dtype(name, mode):
    row = ROWS[name]
    run = RUNS["traced" if mode == "jit" and name in NOT_UNDER_XLA else mode](
        lambda x, dy: tape_vjp(row.function, [x], dy)
    )
    for dtype in row.dtypes:
        for x, dy in calls(row, dtype):
            value, (dx,) = run(tf.constant(x), tf.constant(dy))
            with np.errstate(all="ignore"):
                assert_close(value, row.value(wide(x)), dtype)
                assert_close(dx, row.gradient(wide(x), wide(dy)), dtype)
