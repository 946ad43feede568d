"""Random uses of embed_gradient, by hypothesis: shapes, axis, dtypes, stopping, orders and modes."""

import dataclasses

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.support.tensors import DTYPES, random_array

from . import shapes
from .modes import MODES

# Eager mode costs a fiftieth of the others, which trace.
_MODES = ("eager",) * 4 * len(MODES) + tuple(MODES)

# Sines and products of them are rounded too coarsely in other dtypes, and are no derivatives in complex ones.
_DTYPES_OF_HIGHER_ORDERS = (tf.float64, tf.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    fx: tuple
    gx: tuple
    x: tuple
    axis: list | None
    pairs: int
    dtype: tf.DType
    order: int
    manually_stopped: bool
    axis_is_a_tensor: bool
    mode: str
    seed: int

    def arrays(self):
        """Those of fx, each gx, each x; of the upstream; and of the weights for the orders after the first."""
        rng = np.random.default_rng(self.seed)
        variables = [self.fx] + [self.gx] * self.pairs + [self.x] * self.pairs
        wanted = variables + [self.fx] + variables * (self.order - 1)
        return [random_array(rng, shape, self.dtype) for shape in wanted]


@st.composite
def cases(draw):
    fx, gx, x, axis = shapes.fitting_shapes(lambda options: draw(st.sampled_from(options)))
    order = draw(st.sampled_from((1, 2, 3)))
    mode = draw(st.sampled_from(_MODES))
    may_be_a_tensor = axis is not None and not mode.startswith("xla")  # As docs/limits.md says.
    return Case(
        fx=fx,
        gx=gx,
        x=x,
        axis=axis,
        pairs=draw(st.sampled_from((1, 1, 1, 2))),
        dtype=draw(st.sampled_from(DTYPES[::-1] if order == 1 else _DTYPES_OF_HIGHER_ORDERS)),
        order=order,
        manually_stopped=draw(st.booleans()),
        axis_is_a_tensor=may_be_a_tensor and draw(st.sampled_from((False, False, True))),
        mode=mode,
        seed=draw(st.integers(0, 2**32 - 1)),
    )
