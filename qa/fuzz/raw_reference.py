"""What a raw call must return, by NumPy: outputs and gradients, or an exception."""

import dataclasses
import math
import os

import numpy as np
import tensorflow as tf

from tests.support import reference
from tests.support.reference import ROLES
from tests.support.tensors import DTYPES, random_array

# Any call can be refused with these exceptions. RefusedError.also has more.
USUAL = ("ValueError", "TypeError", "InvalidArgumentError")

# Too much for any machine; the fuzzer's other sizes are small.
HUGE = 2**47

# The functions that a rule may name, with the dtypes of their arguments and results.
RULES = {
    "product": (["float32"] * 2, ["float32"]),
    "two_outputs": (["float32"] * 2, ["float32"] * 2),
    "of_integers": (["int32"] * 2, ["int32"]),
    "of_nothing": ([], []),
}


class RefusedError(ValueError):
    """A call that must raise: the reason, and exceptions that are allowed besides the usual ones."""

    def __init__(self, why, *also):
        super().__init__(why)
        self.also = also


@dataclasses.dataclass
class Expected:
    """A value. Without a scale it is passed on, bit for bit; with one it is computed from terms of that size."""

    value: object
    dtype: tf.DType
    scale: float | None = None


@dataclasses.dataclass
class Verdict:
    outputs: list | None = None  # None: the call is refused.
    upstreams: list | None = None  # One for each differentiable output, if a gradient is wanted.
    gradients: list | None = None  # One for each differentiable input; None if it has no gradient.
    why: str = ""
    exceptions: tuple = USUAL
    is_open: bool = False  # Up to TensorFlow, which does not have everything for all dtypes.


def is_differentiable(array):
    return dtype_of(array).is_floating or dtype_of(array).is_complex


def dtype_of(array):
    return tf.as_dtype(array.dtype)


def judge(call):
    arrays, lacks_value = call.arrays(), any("without" in (each.variable or "") for each in call.inputs)
    exceptions = (*USUAL, "FailedPreconditionError") if lacks_value else USUAL
    is_open = call.mode != "eager" and (lacks_value or _is_left_to_tensorflow(call))
    upstreams, (outputs_of, gradients_of) = None, _OPS[call.op]
    try:
        outputs = outputs_of(call.grouped(arrays), call.attributes)
        if not call.wants_gradient or not any(map(is_differentiable, outputs)):
            return Verdict(outputs, is_open=is_open, exceptions=exceptions)
        rng = np.random.default_rng(call.seed + 1)
        dys = [random_array(rng, e.value.shape, e.dtype) if is_differentiable(e) else None for e in outputs]
        upstreams = [dy for dy in dys if dy is not None]
        gradients = gradients_of(call, call.grouped(arrays), dys)
        gradients = [g for g, array in zip(gradients, arrays, strict=True) if is_differentiable(array)]
        return Verdict(outputs, upstreams, gradients, is_open=is_open, exceptions=exceptions)
    except ValueError as refused:
        exceptions += getattr(refused, "also", ())
        is_open = is_open if upstreams else _is_unchecked(call)
        return Verdict(None, upstreams, why=str(refused), exceptions=exceptions, is_open=is_open)


def _is_left_to_tensorflow(call):
    """Whether tf.vectorized_map may fail by itself."""
    shape = call.inputs[-1] if call.op == "CustomGradientEmbedGrad" else None
    # Ranks must be known (docs/limits.md), and it counts in int32.
    is_unknown = shape and not shape.constant and shape.known != "shape"
    is_far = any(size >= 2**31 for each in call.inputs for size in each.shape)
    return call.mode == "vectorized_map" and (is_unknown or is_far)


def _is_unchecked(call):
    """Whether TensorFlow need not notice what is wrong.

    In a graph without gradients, ops are replaced by their values before shapes are compared at run time. XLA compares
    only shapes that it knows while it compiles.
    """
    is_dropped = call.mode != "eager" and os.environ.get("TF_CG_OPS_DISABLE_PASSES") != "1"
    is_unknown_to_xla = call.op == "CustomGradientCheckShape" and call.mode == "xla" and not call.inputs[1].constant
    return (is_dropped and call.op == "CustomGradientEmbed") or is_unknown_to_xla or call.mode == "infer"


def _check_dtypes(arrays):
    dtypes = {dtype_of(array) for array in arrays}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        raise RefusedError(f"dtypes {sorted(dtype.name for dtype in dtypes)}")


def _shape_of(array):
    """The shape that a shape tensor holds."""
    if dtype_of(array) not in (tf.int32, tf.int64) or array.ndim != 1:
        raise RefusedError("no shape tensor")
    sizes = tuple(array.tolist())
    if min(sizes, default=0) < 0 or math.prod(size or 1 for size in sizes) >= 2**63 or len(sizes) > 254:
        raise RefusedError(f"{sizes} is not a shape")
    return sizes


def _axis(attributes):
    if attributes["all_axes"] and attributes["axis"]:
        raise RefusedError("axis beside all_axes")
    return None if attributes["all_axes"] else attributes["axis"]


def _same(value):
    return Expected(value, dtype_of(value))


def _form(wrt, operands, shape, axis=(), zero_x=False):
    dtype = dtype_of(next(iter(operands.values())))
    shapes = {role: np.shape(array) for role, array in operands.items()} | {wrt: shape}
    joint, _ = reference.lay_out([shapes[role] for role in ROLES], axis)
    if math.prod(shape) >= HUGE:
        raise RefusedError("no memory holds it", "ResourceExhaustedError")
    if zero_x or 0 in joint:
        return Expected(np.zeros(shape), dtype, 4.0)
    products, laid = reference.products(wrt, operands, shape, axis)
    size = np.max(np.abs(products), where=np.isfinite(products), initial=0.0)
    terms = max(1, math.prod(joint) // max(1, math.prod(shape)))
    with np.errstate(all="ignore"):
        value = np.reshape(reference.sum_to_shape(products, laid), shape)
    return Expected(value, dtype, 4.0 * max(float(size) * math.sqrt(terms), 1.0))


def _embed(groups, attributes):
    (fx,), gx, x = groups
    _check_dtypes([fx, *gx, *x])
    if not x or len(gx) != len(x):
        raise RefusedError("lists of unequal length, or empty")
    for g, t in zip(gx, x, strict=True):
        reference.lay_out([fx.shape, g.shape, t.shape], _axis(attributes))
    return [_same(fx)]


def _embed_grad(groups, attributes):
    (lhs,), (rhs,), (shape,) = groups
    _check_dtypes([lhs, rhs])
    shape, wrt, zero_x = _shape_of(shape), attributes["wrt"], attributes["zero_x"]
    if wrt not in ROLES or (zero_x and wrt == "x"):
        raise RefusedError("wrt, or zero_x beside x")
    given = [role for role in ROLES if role != wrt]
    return [_form(wrt, dict(zip(given, (lhs, rhs), strict=True)), shape, _axis(attributes), zero_x)]


def _check_shape(groups, _):
    (gradient,), (shape,) = groups
    if _shape_of(shape) != tuple(gradient.shape):
        raise RefusedError("another shape")
    return [_same(gradient)]


def _forward(groups, _):
    if not groups[0]:
        raise RefusedError("there is nothing to forward")
    return [_same(value) for value in groups[0]]


def _embed_gradients(call, groups, upstreams):
    (_,), gx, x = groups
    dy, axis = upstreams[0], _axis(call.attributes)
    dx = [_form("x", {"fx": dy, "gx": g}, t.shape, axis) for g, t in zip(gx, x, strict=True)]
    if not call.attributes["fx_gx_manually_stopped"]:
        return [None, *[None] * len(gx), *dx]
    return [_same(dy), *[Expected(np.zeros(g.shape), dtype_of(g), 1.0) for g in gx], *dx]


def _embed_grad_gradients(call, groups, upstreams):
    attributes = call.attributes
    given = [role for role in ROLES if role != attributes["wrt"]]
    arrays = {role: array for role, (array,) in zip(given, groups, strict=False)}
    gradients = []
    for role, other in zip(given, reversed(given), strict=True):
        operands = {attributes["wrt"]: upstreams[0], other: arrays[other]}
        zero_x = attributes["zero_x"] and role != "x"
        is_stopped = role == "gx" and not attributes["fx_gx_manually_stopped"]
        form = None if is_stopped else _form(role, operands, arrays[role].shape, _axis(attributes), zero_x)
        gradients.append(form)
    return [*gradients, None]


def _rule_gradients(call, groups, upstreams):
    results, inputs, captures = groups
    attributes = call.attributes
    if attributes["error"]:
        raise RefusedError("a rule that is an error", "RuntimeError")
    if call.mode == "eager":
        raise RefusedError("a rule outside of a graph")
    positions, sliced = attributes["differentiated_inputs"], attributes["sliced_inputs"]
    if not all(0 <= i < len(results) for i in attributes["differentiated_results"]):
        raise RefusedError("a position among the results")
    if not all(0 <= i < len(inputs) for i in positions) or len(set(positions)) < len(positions):
        raise RefusedError("a position among the inputs")
    if not set(sliced) <= set(positions) or len(set(sliced)) < len(sliced):
        raise RefusedError("a position among the slices")
    given = [results[i] for i in attributes["differentiated_results"]] + captures
    returned = [name for i in positions for name in (dtype_of(inputs[i]).name, *["int64"] * 2 * (i in sliced))]
    signature = [dtype_of(t).name for t in given], returned
    if positions and signature != RULES.get(attributes["rule"]):
        raise RefusedError("a rule that is not there, or of another signature")
    gradients = [None] * len(inputs)
    for position in positions:
        dy = upstreams[attributes["differentiated_results"][0]]
        if not dy.shape == captures[0].shape == inputs[position].shape:
            raise RefusedError("a gradient of another shape")
        gradients[position] = _form("x", {"fx": dy, "gx": captures[0]}, dy.shape)
    return [*[None] * len(results), *gradients, *[None] * len(captures)]


_OPS = {
    "CustomGradientEmbed": (_embed, _embed_gradients),
    "CustomGradientEmbedGrad": (_embed_grad, _embed_grad_gradients),
    "CustomGradientCheckShape": (_check_shape, lambda call, groups, dys: [_same(dys[0]), None]),
    "CustomGradientBarrier": (
        _forward,
        lambda call, groups, dys: [dy if dy is None else _same(dy) for dy in dys] + [None] * len(groups[1]),
    ),
    "CustomGradientRule": (_forward, _rule_gradients),
}
