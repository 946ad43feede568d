"""Random inputs and attributes for each op: most of them well formed, many nearly so."""

import dataclasses

import numpy as np
import tensorflow as tf

from tests.support.tensors import DTYPES, random_array

from . import rules, shapes

NUMBERS = [tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64, *DTYPES]
OTHERS = [
    tf.string,
    tf.resource,
    tf.variant,
    tf.qint8,
    tf.quint8,
    tf.qint32,
    tf.dtypes.experimental.float8_e5m2,
    tf.dtypes.experimental.int4,
]

# With tf.identity alone, XLA ends the process for an empty argument of text, and forwards other numbers of int4.
BAD_FOR_XLA = (tf.string, tf.dtypes.experimental.int4)

# TensorFlow stacks equal members of a batch by tf.tile, which takes none of these.
BAD_FOR_PFOR = (tf.uint16, tf.uint32, tf.uint64)

# Traces that are used again are made for these: few, since each of them takes a while.
REUSED_DTYPES = [tf.float32, tf.complex64]

# Only if all inputs are numbers: TensorFlow itself has no placeholders, batches or variables of the others.
OF_NUMBERS_ALONE = ("pfor", "infer", "session", "function", "reused")

TOO_BIG = ([2**50], [2**60], [2**61], [2**62], [2**63 - 1], [2**30, 2**30], [2**62, 1], [1, 2**61])
OVERFLOWING = ([2**62, 4], [2**63 - 1, 2], [2**32, 2**32], [-(2**63)])


@dataclasses.dataclass
class Handle:
    """An input that is no array: of dtype resource or variant."""

    dtype: tf.DType
    shape: tuple = ()


def array_of(rng, shape, dtype):
    if dtype in (tf.resource, tf.variant):
        return Handle(dtype)
    if dtype == tf.string:
        return np.full(shape[-32:], b"text", object)  # tf.constant ends the process where there are more dimensions.
    if dtype in DTYPES:
        array = random_array(rng, shape, dtype)
        if array.size and not dtype.is_complex and rng.random() < 0.03:
            array[(0,) * array.ndim] = rng.choice([np.inf, -np.inf, np.nan])
        return array
    return np.asarray(rng.integers(0, 2, shape)).astype(dtype.as_numpy_dtype)


def _shape(chance):
    return tuple(chance.choice(shapes.SIZES) for _ in range(chance.choice(shapes.RANKS)))


def _where_kernels_cut(chance):
    """Lengths at which the kernel's loops change."""
    n = chance.choice((255, 257, 513, 5003))
    return chance.choice(
        (
            ((n,), (n,), (n,), []),
            ((n,), (n, 3), (3,), None),
            ((3,), (3, n), (3, n), [1]),
        )
    )


def _alignment(chance, mode):
    """Shapes by role, most of which fit, and the attributes for their alignment."""
    fx, gx, x, axis = shapes.fitting_shapes(chance.choice)
    while mode == "reused" and axis not in (None, [], [-1], [0]):
        fx, gx, x, axis = shapes.fitting_shapes(chance.choice)
    if mode == "eager" and chance.random() < 0.02:
        fx, gx, x, axis = _where_kernels_cut(chance)
    by_role = {"fx": fx, "gx": gx, "x": x}
    attributes = {"axis": axis or [], "all_axes": axis is None}
    if chance.random() < 0.35:
        role = chance.choice(rules.ROLES)
        by_role[role] = shapes.altered(chance.choice, by_role[role])
    if mode != "reused" and chance.random() < 0.1:
        attributes["axis"] = shapes.altered_axis(chance.choice, len(by_role["x"]))
    if chance.random() < 0.05:
        attributes["all_axes"] = not attributes["all_axes"]
    return by_role, attributes


def _dtypes(chance, mode, count):
    """Mostly one that the op takes, for all inputs."""
    dtypes = [chance.choice(REUSED_DTYPES if mode == "reused" else DTYPES)] * count
    if mode != "reused" and chance.random() < 0.05:
        dtypes = [chance.choice(NUMBERS)] * count
    if mode not in ("reused", "pfor") and count and chance.random() < 0.05:
        others = [dtype for dtype in OTHERS if mode != "xla" or dtype not in BAD_FOR_XLA]
        dtypes[chance.randrange(count)] = chance.choice(NUMBERS + ([] if mode in OF_NUMBERS_ALONE else others))
    return dtypes


def _embed(chance, rng, mode):
    by_role, attributes = _alignment(chance, mode)
    num_gx = num_x = chance.choice((1, 1, 1, 2, 3) if mode != "reused" else (1, 2))
    if mode != "reused" and chance.random() < 0.05:
        num_gx, num_x = chance.choice(((0, 0), (0, 1), (1, 0), (2, 1), (1, 3), (num_gx, num_gx + 1)))
    wanted = [by_role["fx"]] + [by_role["gx"]] * num_gx + [by_role["x"]] * num_x
    attributes["fx_gx_manually_stopped"] = chance.random() < 0.5
    dtypes = _dtypes(chance, mode, len(wanted))
    inputs = [array_of(rng, shape, dtype) for shape, dtype in zip(wanted, dtypes, strict=True)]
    return inputs, [1, num_gx, num_x], attributes


def _shape_tensor(chance, shape):
    """The shape in int32 or int64, or what is no shape."""
    dtype = chance.choice((np.int32, np.int64))
    sizes = list(shape)
    if chance.random() < 0.25:
        kind = chance.choice(("negative", "overflow", "no memory", "rank 0", "rank 2", "dtype", "many", "empty"))
        place = chance.randrange(len(shape) + 1)
        if kind == "negative":
            sizes.insert(place, chance.choice((-1, -2, -(2**31))))
        elif kind == "overflow":
            sizes = [size or 1 for size in sizes]
            sizes[place:place] = chance.choice(OVERFLOWING)
        elif kind == "no memory":
            sizes = chance.choice(TOO_BIG)
        elif kind == "rank 0":
            return np.array(1, dtype)
        elif kind == "rank 2":
            return np.array([[2, 3]], dtype)
        elif kind == "dtype":
            return np.array([1], chance.choice((np.int16, np.float32, np.uint64, bool)))
        elif kind == "many":
            sizes = [1] * chance.choice((20, 40, 255, 300))
        else:
            sizes = [chance.choice((0, 2**40)), 0, 2**10]
    if min(sizes, default=0) < -(2**31) or max(sizes, default=0) >= 2**31:
        dtype = np.int64
    return np.array(sizes, dtype)


def _embed_grad(chance, rng, mode):
    by_role, attributes = _alignment(chance, mode)
    wrt = chance.choice(rules.ROLES)
    given = [by_role[role] for role in rules.ROLES if role != wrt]
    inputs = [array_of(rng, shape, dtype) for shape, dtype in zip(given, _dtypes(chance, mode, 2), strict=True)]
    inputs.append(_shape_tensor(chance, by_role[wrt]))
    attributes["wrt"] = wrt if chance.random() < 0.98 else chance.choice(("", "y", "gx "))
    attributes["zero_x"] = chance.random() < (0.03 if wrt == "x" else 0.3)
    attributes["fx_gx_manually_stopped"] = mode != "reused" and chance.random() < 0.5
    return inputs, [1, 1, 1], attributes


def _any_array(chance, rng, mode):
    dtypes = NUMBERS if mode in OF_NUMBERS_ALONE or chance.random() < 0.8 else OTHERS
    bad = {"xla": BAD_FOR_XLA, "pfor": BAD_FOR_PFOR}.get(mode, ())
    dtypes = [dtype for dtype in dtypes if dtype not in bad]
    dtype = chance.choice(REUSED_DTYPES if mode == "reused" else dtypes)
    return array_of(rng, _shape(chance), dtype)


def _check_shape(chance, rng, mode):
    array = _any_array(chance, rng, mode)
    shape = array.shape if chance.random() < 0.7 else shapes.altered(chance.choice, array.shape)
    messages = (
        ("", "{expected} and {got}") if mode == "reused" else ("", "{expected} and {got}", "{got}{got}", "{", "%s%n")
    )
    return [array, _shape_tensor(chance, shape)], [1, 1], {"message": chance.choice(messages)}


def _barrier(chance, rng, mode):
    counts = [chance.choice((1, 1, 2, 3, 0)), chance.choice((0, 1, 2))]
    counts[0] = max(counts[0], 1) if mode == "pfor" else counts[0]
    return [_any_array(chance, rng, mode) for _ in range(sum(counts))], counts, {}


def _rule(chance, rng, mode):
    if chance.random() < 0.6:  # As the rule "product" needs them.
        shape = _shape(chance)
        inputs, counts = [array_of(rng, shape, tf.float32) for _ in range(3)], [1, 1, 1]
    else:
        counts = [chance.choice((1, 2, 3, 0)), chance.choice((1, 0, 2)), chance.choice((1, 0, 2))]
        counts[0] = max(counts[0], 1) if mode == "pfor" else counts[0]
        inputs = [_any_array(chance, rng, mode) for _ in range(sum(counts))]
    attributes = {
        "rule": "product",
        "differentiated_results": [0],
        "differentiated_inputs": [0],
        "sliced_inputs": [],
        "function_name": "f",
        "error": "",
    }
    for _ in range(chance.choice((0, 0, 1, 2))):
        attributes |= chance.choice(
            (
                {"rule": chance.choice(("not_there", "two_outputs", "of_integers", "of_nothing"))},
                {"differentiated_results": chance.choice(([], [1], [-1], [0, 0], [2**62], [-(2**63)]))},
                {"differentiated_inputs": chance.choice(([], [1], [-1], [0, 0], [2**62], [-(2**63)]))},
                {"sliced_inputs": chance.choice(([0], [1], [-1], [0, 0], [2**62]))},
                {"error": "there is none"},
                {"function_name": chance.choice(("", "{", "%s"))},
            )
        )
    return inputs, counts, attributes


# For each op: the inputs, how many of them go to each of the op's arguments, and the attributes.
MAKERS = {
    "CustomGradientEmbed": _embed,
    "CustomGradientEmbedGrad": _embed_grad,
    "CustomGradientCheckShape": _check_shape,
    "CustomGradientBarrier": _barrier,
    "CustomGradientRule": _rule,
}
