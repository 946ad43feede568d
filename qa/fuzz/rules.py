"""The answers that the ops must give, decided independently: fitting shapes, and the numbers in float64.

Written from the ops' documentation, by another method than cc/lib: every size stands at its distance from the right end.
"""

import math

import numpy as np

from tests.support.reference import sum_to_shape, widen

ROLES = ("fx", "gx", "x")

# No machine can allocate this; other sizes of the fuzzer are small.
HUGE = 2**47


class RefusedError(Exception):
    """A call that must raise: the reason, and exceptions allowed beside the usual ones."""

    def __init__(self, why, *also):
        super().__init__(why)
        self.also = also


def check_shape(sizes):
    """Whether a TensorShape can have these sizes."""
    elements = 1
    for size in sizes:
        elements *= size
        if size < 0 or elements >= 2**63:
            raise RefusedError(f"{sizes} is no shape")
    if len(sizes) > 254:
        raise RefusedError(f"{len(sizes)} dimensions")


def _domain(rank, axis, all_axes):
    if all_axes and axis:
        raise RefusedError("axis beside all_axes")
    if all_axes:
        return set(range(1, rank + 1))
    for number in axis:
        if not -rank <= number < rank:
            raise RefusedError("axis out of range")
    places = {rank - number if number >= 0 else -number for number in axis}
    if len(places) < len(axis):
        raise RefusedError("axis given twice")
    return places


def align(shapes, axis=(), all_axes=False):
    """The iteration space of shapes by role, and each shape in its rank. Raises RefusedError for a shape error."""
    fx, gx, x = (tuple(shapes[role]) for role in ROLES)
    rank = len(x)
    domain = _domain(rank, list(axis), all_axes)
    # Distances from the right end, from 1, that what lies along S takes up, one after the other.
    along_s = [place for place in range(1, rank + 1) if place not in domain]
    longest = max(len(fx), len(gx)) + rank
    along_s += range(rank + 1, rank + 1 + longest)
    along_x = range(1, longest + rank + 1)
    laid = {
        "fx": dict(zip(along_s, reversed(fx), strict=False)),
        "gx": dict(zip(along_x if len(gx) >= rank else along_s, reversed(gx), strict=False)),
        "x": dict(zip(along_x, reversed(x), strict=False)),
    }
    joint_rank = max([rank, *(place for sizes in laid.values() for place in sizes)])
    joint = {}
    for place in range(joint_rank, 0, -1):
        sizes = {laid[role].get(place, 1) for role in ROLES} - {1}
        if len(sizes) > 1:
            raise RefusedError("the shapes do not broadcast")
        joint[place] = sizes.pop() if sizes else 1
    batch = tuple(size for place, size in joint.items() if place not in domain)
    if fx != batch and not (fx == () and tuple(joint.values()) == x):
        raise RefusedError(f"fx of {fx} is not of {batch}")
    return tuple(joint.values()), {role: tuple(laid[role].get(place, 1) for place in joint) for role in ROLES}


def gradient_of_form(wrt, operands, shape, axis=(), all_axes=False, zero_x=False):
    """The result of CustomGradientEmbedGrad for arrays by role, and the sum of absolute products (for tolerances)."""
    shapes = {role: np.shape(array) for role, array in operands.items()} | {wrt: tuple(shape)}
    joint, laid = align(shapes, axis, all_axes)
    if math.prod(shape) >= HUGE:
        raise RefusedError("no memory holds it", "ResourceExhaustedError")
    if zero_x or 0 in joint:
        return np.zeros(shape), 0.0
    first, second = (np.reshape(widen(operands[role]), laid[role]) for role in ROLES if role != wrt)
    with np.errstate(all="ignore"):  # The numbers may be infinite.
        product = np.broadcast_to(first * (second if wrt == "fx" else np.conj(second)), joint)
        size = np.max(np.abs(product), where=np.isfinite(product), initial=0.0)
        terms = max(1, math.prod(joint) // max(1, math.prod(shape)))
        return np.reshape(sum_to_shape(product, laid[wrt]), shape), float(size) * math.sqrt(terms)
