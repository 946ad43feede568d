"""The answer that a call must give: values for its outputs and gradients, or an exception."""

import dataclasses

import numpy as np
import tensorflow as tf

from tests.support.tensors import DTYPES, random_array

from . import node_defs
from .raw_calls import dtype_of, has_handles, is_differentiable
from .raw_inputs import NUMBERS
from .rules import ROLES, RefusedError, align, check_shape, gradient_of_form

# Exceptions with which any call may be refused; RefusedError.also names others.
USUAL = ("ValueError", "TypeError", "InvalidArgumentError")

# The functions that a rule may name, with the dtypes of their arguments and results.
RULES = {
    "product": (["float32"] * 2, ["float32"]),
    "two_outputs": (["float32"] * 2, ["float32"] * 2),
    "of_integers": (["int32"] * 2, ["int32"]),
    "of_nothing": ([], []),
}


@dataclasses.dataclass
class Expected:
    """A value. Without a scale it is forwarded, bit for bit; else it is computed, from terms of that size."""

    value: object
    dtype: tf.DType
    scale: float | None = None


@dataclasses.dataclass
class Verdict:
    outputs: list | None = None  # None: the call is refused.
    upstreams: list | None = None  # One for each differentiable output, if a gradient is wanted,
    gradients: list | None = None  # and one for each differentiable input; None among them: there is none.
    why: str = ""
    exceptions: tuple = USUAL
    is_open: bool = False  # TensorFlow decides: it has not everything for all dtypes.


def judge(call):
    if _needs_too_many_dimensions(call):
        return Verdict(why="NumPy has no array of so many dimensions", is_open=True)
    try:
        if node_defs.is_refused(call):
            raise RefusedError(call.mutation[0], "NotFoundError", "ResourceExhaustedError")
        members = [_OUTPUTS[call.op](call.grouped(inputs), call.attributes) for inputs in call.members()]
        outputs = _stack(members) if call.batch else members[0]
        verdict = Verdict(outputs, is_open=_is_open(call), exceptions=_exceptions(call))
    except RefusedError as refused:
        return _refusal(call, refused, is_open=_is_unchecked(call))
    if call.wants_gradient and any(map(is_differentiable, verdict.outputs)):
        upstreams = _upstreams(call, verdict.outputs)
        verdict.upstreams = [u for u in upstreams if u is not None]
        try:
            gradients = _GRADIENTS[call.op](call, call.grouped(call.inputs), upstreams)
        except RefusedError as refused:
            return _refusal(call, refused, upstreams=verdict.upstreams, is_open=verdict.is_open)
        verdict.gradients = [g for g, t in zip(gradients, call.inputs, strict=True) if is_differentiable(t)]
    return verdict


def _needs_too_many_dimensions(call):
    """Whether the operands laid side by side are more than NumPy can take."""
    if call.op not in ("CustomGradientEmbed", "CustomGradientEmbedGrad"):
        return False
    ranks = sorted(len(t.shape) for t in call.inputs)
    if call.op == "CustomGradientEmbedGrad":
        ranks = sorted([*ranks, call.inputs[-1].size])
    return sum(ranks[-2:]) > 64 >= ranks[-1]


def _refusal(call, refused, **about):
    return Verdict(why=str(refused), exceptions=(*_exceptions(call), *refused.also), **about)


def _exceptions(call):
    """Those of TensorFlow itself included."""
    exceptions = USUAL
    if _lacks_a_value(call):
        exceptions += ("FailedPreconditionError",)
    if has_handles(call) and call.mode in ("node_def", "function_def"):
        exceptions += ("InternalError",)  # A session cannot give them to NumPy.
    return exceptions


def _lacks_a_value(call):
    """Whether a variable among the inputs does; it need not be read, where only gradients or shapes would be."""
    return any(kind and kind.endswith("without a value") for kind in call.variables)


def _is_unchecked(call):
    """Whether TensorFlow need not look at what is wrong.

    In a graph without gradients, ops are replaced by their values before their attributes in a function are checked, or
    before shapes are compared at run time. A call without outputs is not made. XLA compares only shapes that it knows
    while it compiles. A placeholder for an attribute in a function cannot be checked.
    """
    is_dropped = call.mode != "eager" and not call.keeps_ops
    is_without_outputs = call.mode == "function_def" and not call.counts[0]
    is_unknown_to_xla = call.op == "CustomGradientCheckShape" and call.mode == "xla" and not call.constants[1]
    is_value_alone = is_dropped and (
        call.op == "CustomGradientEmbed" or (call.op == "CustomGradientRule" and call.mode == "function_def")
    )
    return (
        is_without_outputs or is_value_alone or is_unknown_to_xla or "a placeholder for an attribute" in call.mutation
    )


def _is_open(call):
    return call.mode != "eager" and (
        has_handles(call)
        or any(dtype_of(t) not in NUMBERS for t in call.inputs)
        or _is_shape_unknown_to_pfor(call)
        or (call.mode == "pfor" and any(size >= 2**31 for t in call.inputs for size in t.shape))  # It counts in int32.
        or _lacks_a_value(call)
    )


def _is_shape_unknown_to_pfor(call):
    """Then the rank of an operand is, and docs/limits.md says that it has to be known."""
    return call.op == "CustomGradientEmbedGrad" and call.batch and call.stacked[2] and call.known[2] == "rank"


def _stack(members):
    return [
        Expected(np.stack([e.value for e in same]), same[0].dtype, max(e.scale or 0.0 for e in same) or same[0].scale)
        for same in zip(*members, strict=True)
    ]


def _upstreams(call, outputs):
    rng = np.random.default_rng(call.number + 1)
    return [random_array(rng, e.value.shape, e.dtype) if is_differentiable(e) else None for e in outputs]


def _check_dtypes(tensors):
    dtypes = {dtype_of(t) for t in tensors}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        raise RefusedError(f"dtypes {sorted(dtype.name for dtype in dtypes)}")


def _shape_of(tensor):
    """The shape that a shape tensor holds."""
    if dtype_of(tensor) not in (tf.int32, tf.int64) or tensor.ndim != 1:
        raise RefusedError("no shape tensor")
    sizes = tuple(tensor.tolist())
    check_shape(sizes)
    return sizes


def _embed(groups, attributes):
    (fx,), gx, x = groups
    _check_dtypes([fx, *gx, *x])
    if not x or len(gx) != len(x):
        raise RefusedError("lists of unequal length, or empty")
    for g, t in zip(gx, x, strict=True):
        align({"fx": fx.shape, "gx": g.shape, "x": t.shape}, attributes["axis"], attributes["all_axes"])
    return [_same(fx)]


def _same(value):
    return Expected(value, dtype_of(value))


def _form(wrt, operands, shape, attributes, zero_x=False):
    dtype = dtype_of(next(iter(operands.values())))
    value, size = gradient_of_form(wrt, operands, shape, attributes["axis"], attributes["all_axes"], zero_x)
    return Expected(value, dtype, 4.0 * max(size, 1.0))


def _embed_grad(groups, attributes):
    (lhs,), (rhs,), (shape,) = groups
    _check_dtypes([lhs, rhs])
    shape, wrt, zero_x = _shape_of(shape), attributes["wrt"], attributes["zero_x"]
    if wrt not in ROLES or (zero_x and wrt == "x"):
        raise RefusedError("wrt, or zero_x beside x")
    given = [role for role in ROLES if role != wrt]
    return [_form(wrt, dict(zip(given, (lhs, rhs), strict=True)), shape, attributes, zero_x)]


def _check_shape(groups, _):
    (gradient,), (shape,) = groups
    if _shape_of(shape) != tuple(gradient.shape):
        raise RefusedError("another shape")
    return [_same(gradient)]


def _hand_on(groups, _):
    if not groups[0]:
        raise RefusedError("there is nothing to hand on")
    return [_same(value) for value in groups[0]]


_OUTPUTS = {
    "CustomGradientEmbed": _embed,
    "CustomGradientEmbedGrad": _embed_grad,
    "CustomGradientCheckShape": _check_shape,
    "CustomGradientBarrier": _hand_on,
    "CustomGradientRule": _hand_on,
}


def _embed_gradients(call, groups, upstreams):
    (_,), gx, x = groups
    dy, attributes = upstreams[0], call.attributes
    dx = [_form("x", {"fx": dy, "gx": g}, t.shape, attributes) for g, t in zip(gx, x, strict=True)]
    if not attributes["fx_gx_manually_stopped"]:
        return [None, *[None] * len(gx), *dx]
    return [_same(dy), *[Expected(np.zeros(g.shape), dtype_of(g), 1.0) for g in gx], *dx]


def _embed_grad_gradients(call, groups, upstreams):
    attributes = call.attributes
    given = [role for role in ROLES if role != attributes["wrt"]]
    arrays = {role: array for role, (array,) in zip(given, groups, strict=False)}
    gradients = []
    for role in given:
        if role == "gx" and not attributes["fx_gx_manually_stopped"]:
            gradients.append(None)
            continue
        (other,) = set(given) - {role}
        operands = {attributes["wrt"]: upstreams[0], other: arrays[other]}
        operands = {name: operands[name] for name in ROLES if name in operands}
        zero_x = attributes["zero_x"] and role != "x"
        gradients.append(_form(role, operands, arrays[role].shape, attributes, zero_x))
    return [*gradients, None]


def _check_shape_gradients(call, groups, upstreams):
    return [_same(upstreams[0]), None]


def _barrier_gradients(call, groups, upstreams):
    return [*[None if u is None else _same(u) for u in upstreams], *[None] * len(groups[1])]


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
    signature = ([dtype_of(t).name for t in given], _returned(inputs, positions, sliced))
    if positions and (attributes["rule"] not in RULES or signature != RULES[attributes["rule"]]):
        raise RefusedError("a rule that is not there, or of another signature")
    gradients = [None] * len(inputs)
    for position in positions:
        dy = upstreams[attributes["differentiated_results"][0]]
        if not dy.shape == captures[0].shape == inputs[position].shape:
            raise RefusedError("a gradient of another shape")
        gradients[position] = _form("x", {"fx": dy, "gx": captures[0]}, dy.shape, {"axis": [], "all_axes": False})
    return [*[None] * len(results), *gradients, *[None] * len(captures)]


def _returned(inputs, positions, sliced):
    """The dtypes of what the rule returns."""
    dtypes = []
    for position in positions:
        dtypes += [dtype_of(inputs[position]).name, *(["int64"] * 2 if position in sliced else [])]
    return dtypes


_GRADIENTS = {
    "CustomGradientEmbed": _embed_gradients,
    "CustomGradientEmbedGrad": _embed_grad_gradients,
    "CustomGradientCheckShape": _check_shape_gradients,
    "CustomGradientBarrier": _barrier_gradients,
    "CustomGradientRule": _rule_gradients,
}
