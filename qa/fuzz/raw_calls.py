"""Random calls of the ops, by hypothesis: most are valid, many nearly so."""

import dataclasses

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.support.reference import ROLES
from tests.support.tensors import DTYPES, random_array

from .shapes import altered, fitting_shapes, shapes

# Without uint16 and larger, which tf.vectorized_map cannot stack.
NUMBERS = [*DTYPES, tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8]

# Shapes too large for memory, shapes that overflow, with many dimensions, and empty ones.
ODD_SHAPES = (
    *([2**50], [2**60], [2**61], [2**62], [2**63 - 1], [2**30, 2**30], [2**62, 1], [1, 2**61]),
    *([2**62, 4], [2**63 - 1, 2], [2**32, 2**32], [-(2**63)], [-1], [-2, 3], [2, -(2**31)]),
    *([1] * rank for rank in (20, 30, 255, 300)),
    *([0, 0, 2**10], [2**40, 0, 2**10]),
)

# Slow modes trace or compile for each call. "infer" adds the op to a graph that does not run.
MODES = [*["eager"] * 40, *["infer"] * 8, "function", "session", "session", "xla", "vectorized_map"]
VARIABLES = *[None] * 9, "ref", "resource", "ref without a value", "resource without a value"


@dataclasses.dataclass(frozen=True)
class Input:
    dtype: tf.DType
    shape: tuple
    values: list | None = None  # For a shape tensor; other inputs are random.
    known: str = "shape"  # What is known while tracing: "shape", "rank" or "nothing".
    constant: bool = False  # Whether it is a constant in the graph.
    variable: str | None = None  # In a session: one of VARIABLES.

    def array(self, rng):
        if self.values is not None:
            return np.array(self.values, self.dtype.as_numpy_dtype).reshape(self.shape)
        if self.dtype not in DTYPES:
            return np.asarray(rng.integers(0, 2, self.shape)).astype(self.dtype.as_numpy_dtype)
        array = random_array(rng, self.shape, self.dtype)
        if array.size and not self.dtype.is_complex and rng.random() < 0.03:
            array[(0,) * array.ndim] = rng.choice([np.inf, -np.inf, np.nan])
        return array


@dataclasses.dataclass(frozen=True)
class Call:
    op: str
    mode: str
    inputs: tuple
    counts: tuple  # How many of the inputs go to each argument of the op.
    attributes: dict
    wants_gradient: bool = False
    seed: int = 0

    def arrays(self):
        rng = np.random.default_rng(self.seed)
        return [each.array(rng) for each in self.inputs]

    def grouped(self, values):
        """Values, one for each input, as the op's arguments."""
        values = iter(values)
        return [[next(values) for _ in range(count)] for count in self.counts]


def one_of(*options):
    return st.sampled_from(options)


def _rarely(draw, one_in):
    return draw(st.integers(1, one_in)) == one_in


def _alignment(draw):
    """Shapes by role, which mostly fit, and the attributes for their alignment."""
    of_fx_gx_x, axis = draw(fitting_shapes())
    if _rarely(draw, 50):  # Lengths at which the kernel takes other loops.
        n = draw(one_of(255, 257, 513, 5003))
        of_fx_gx_x, axis = draw(
            one_of((((n,), (n,), (n,)), []), (((n,), (n, 3), (3,)), None), (((3,), (3, n), (3, n)), [1]))
        )
    by_role = dict(zip(ROLES, of_fx_gx_x, strict=True))
    attributes = {"axis": axis or [], "all_axes": axis is None}
    if _rarely(draw, 3):
        role = draw(one_of(*ROLES))
        by_role[role] = draw(altered(by_role[role]))
    if _rarely(draw, 10):
        rank = len(by_role["x"])
        extremes = one_of([0, -rank], list(range(40)), [2**62], [-(2**63)], [2**63 - 1])
        attributes["axis"] = draw(st.lists(st.integers(-rank - 1, rank), max_size=3) | extremes)
    if _rarely(draw, 20):
        attributes["all_axes"] = not attributes["all_axes"]
    return by_role, attributes


def _dtypes(draw, count):
    """One dtype for all inputs, mostly one that the op takes."""
    dtypes = [draw(one_of(*DTYPES))] * count
    if count and _rarely(draw, 10):
        dtypes[draw(st.integers(0, count - 1))] = draw(one_of(*NUMBERS))
    return dtypes


def _embed(draw):
    by_role, attributes = _alignment(draw)
    count = draw(one_of(1, 1, 1, 2, 3))
    counts = (1, count, count)
    if _rarely(draw, 20):
        counts = (1, *draw(one_of((0, 0), (0, 1), (1, 0), (2, 1), (1, 3))))
    wanted = [by_role[role] for role, count in zip(ROLES, counts, strict=True) for _ in range(count)]
    attributes["fx_gx_manually_stopped"] = draw(st.booleans())
    return list(map(Input, _dtypes(draw, len(wanted)), wanted)), counts, attributes


def _shape_tensor(draw, shape):
    """The shape in int32 or int64, or an invalid one."""
    sizes, odd = list(shape), draw(st.integers(0, 19))
    if odd == 0:
        return Input(tf.int32, *draw(one_of(((), [1]), ((1, 2), [2, 3]))))
    if odd == 1:
        return Input(draw(one_of(tf.int16, tf.float32, tf.uint64, tf.bool)), (1,), [1])
    if odd == 2:
        sizes = [*(size or 1 for size in shape), *draw(one_of(*ODD_SHAPES))]
    elif odd < 6:
        sizes = draw(one_of(*ODD_SHAPES))
    is_long = min(sizes, default=0) < -(2**31) or max(sizes, default=0) >= 2**31
    return Input(tf.int64 if is_long else draw(one_of(tf.int32, tf.int64)), (len(sizes),), sizes)


def _embed_grad(draw):
    by_role, attributes = _alignment(draw)
    wrt = draw(one_of(*ROLES))
    given = [by_role[role] for role in ROLES if role != wrt]
    inputs = [*map(Input, _dtypes(draw, 2), given), _shape_tensor(draw, by_role[wrt])]
    attributes["wrt"] = draw(one_of("", "y", "gx ")) if _rarely(draw, 50) else wrt
    attributes["zero_x"] = _rarely(draw, 30 if wrt == "x" else 3)
    attributes["fx_gx_manually_stopped"] = draw(st.booleans())
    return inputs, (1, 1, 1), attributes


def _any_input(draw):
    return Input(draw(one_of(*NUMBERS)), draw(shapes))


def _check_shape(draw):
    gradient = _any_input(draw)
    shape = draw(altered(gradient.shape)) if _rarely(draw, 3) else gradient.shape
    message = draw(one_of("", "{expected} and {got}", "{got}{got}", "{", "%s%n"))
    return [gradient, _shape_tensor(draw, shape)], (1, 1), {"message": message}


def _barrier(draw):
    counts = draw(one_of(1, 1, 2, 3, 0)), draw(one_of(0, 1, 2))
    return [_any_input(draw) for _ in range(sum(counts))], counts, {}


def _rule(draw):
    if draw(st.booleans()):  # What the rule "product" needs.
        inputs, counts = [Input(tf.float32, draw(shapes))] * 3, (1, 1, 1)
    else:
        counts = draw(one_of(1, 2, 3, 0)), draw(one_of(1, 0, 2)), draw(one_of(1, 0, 2))
        inputs = [_any_input(draw) for _ in range(sum(counts))]
    attributes = {
        "rule": "product",
        "differentiated_results": [0],
        "differentiated_inputs": [0],
        "sliced_inputs": [],
        "function_name": "f",
        "error": "",
    }
    wrong = {
        "rule": one_of("not_there", "two_outputs", "of_integers", "of_nothing"),
        "differentiated_results": one_of([], [1], [-1], [0, 0], [2**62], [-(2**63)]),
        "differentiated_inputs": one_of([], [1], [-1], [0, 0], [2**62], [-(2**63)]),
        "sliced_inputs": one_of([0], [1], [-1], [0, 0], [2**62]),
        "error": st.just("there is none"),
        "function_name": one_of("", "{", "%s"),
    }
    for name in draw(st.lists(one_of(*wrong), max_size=2)):
        attributes[name] = draw(wrong[name])
    return inputs, counts, attributes


_MAKERS = {
    "CustomGradientEmbedGrad": _embed_grad,
    "CustomGradientEmbed": _embed,
    "CustomGradientCheckShape": _check_shape,
    "CustomGradientBarrier": _barrier,
    "CustomGradientRule": _rule,
}
_OPS = [*list(_MAKERS)[:2] * 4, *_MAKERS]


@st.composite
def calls(draw):
    op, mode = draw(one_of(*_OPS)), draw(one_of(*MODES))
    inputs, counts, attributes = _MAKERS[op](draw)
    if not counts[0] and mode == "vectorized_map":
        mode = "eager"
    if mode != "eager":
        traced = {"known": one_of("shape", "shape", "rank", "nothing"), "constant": one_of(False, False, True)}
        if mode == "session":
            traced["variable"] = one_of(*VARIABLES)
        inputs = [dataclasses.replace(each, **draw(st.fixed_dictionaries(traced))) for each in inputs]
    if mode == "vectorized_map" and all(each.constant for each in inputs):
        inputs[0] = dataclasses.replace(inputs[0], constant=False)
    return Call(
        op=op,
        mode=mode,
        inputs=tuple(inputs),
        counts=counts,
        attributes=attributes,
        wants_gradient=mode not in ("infer", "vectorized_map") and draw(one_of(False, False, True)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )
