"""embed_gradient in every mode: first order against NumPy, higher orders against the formula in float64.

For order one, h is differentiated with the upstream w. For higher orders it is sum(w * sin(h)), and each order is the
gradient of the previous one, contracted with weights for each of fx, gx and x.
"""

import dataclasses

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

import tf_cg_ops as cg
from tests.support import reference
from tests.support.tensors import DTYPES, GRADIENT_RTOL, random_array

from . import shapes
from .modes import MODES, eager, spec

# Eager mode costs a fiftieth of the modes that trace.
_MODES = ("eager",) * 20 + tuple(MODES)

# For higher orders: other dtypes round sines and their products too coarsely, or are complex.
_DTYPES_OF_HIGHER_ORDERS = (tf.float64, tf.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    shapes: tuple  # The shapes of fx, gx and x.
    axis: list | None
    pairs: int = 1
    dtype: tf.DType = tf.float64
    order: int = 1
    manually_stopped: bool = False
    axis_is_a_tensor: bool = False
    mode: str = "eager"
    known: str = "shape"
    seed: int = 0

    def arrays(self):
        """fx, each gx and each x; the upstream gradient; and the weights for higher orders."""
        rng = np.random.default_rng(self.seed)
        fx, gx, x = self.shapes
        variables = [fx] + [gx] * self.pairs + [x] * self.pairs
        wanted = variables + [fx] + variables * (self.order - 1)
        return [random_array(rng, shape, self.dtype) for shape in wanted]


@st.composite
def cases(draw):
    of_fx_gx_x, axis = draw(shapes.fitting_shapes())
    order = draw(st.sampled_from((1, 2, 3)))
    mode = draw(st.sampled_from(_MODES))
    may_be_a_tensor = axis is not None and mode != "xla"  # See docs/limits.md, XLA.
    return Case(
        shapes=of_fx_gx_x,
        axis=axis,
        pairs=draw(st.sampled_from((1, 1, 1, 2))),
        dtype=draw(st.sampled_from(DTYPES[::-1] if order == 1 else _DTYPES_OF_HIGHER_ORDERS)),
        order=order,
        manually_stopped=draw(st.booleans()),
        axis_is_a_tensor=may_be_a_tensor and draw(st.sampled_from((False, False, True))),
        mode=mode,
        known=draw(st.sampled_from(("shape", "rank", "nothing"))),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def _embed(fx, gx, x, axis, fx_gx_manually_stopped):
    """The formula in built-in ops: fx + sum(gx * (x - stop(x)))."""
    if not fx_gx_manually_stopped:
        fx, gx = tf.stop_gradient(fx), [tf.stop_gradient(g) for g in gx]
    h = fx
    for g, t in zip(gx, x, strict=True):
        joint, (of_fx, of_gx, of_x) = reference.lay_out([fx.shape, g.shape, t.shape], axis)
        product = tf.reshape(g, of_gx) * tf.reshape(t - tf.stop_gradient(t), of_x)
        summed = [i for i, size in enumerate(of_fx) if size == 1]
        h += tf.reshape(tf.reduce_sum(tf.broadcast_to(product, joint), summed), fx.shape)
    return h


def derivatives(case, embed):
    """A function of tensors: the value, and for each order the gradients with respect to fx, each gx and each x."""

    def run(*tensors):
        count = 1 + 2 * case.pairs
        variables, upstream, weights = list(tensors[:count]), tensors[count], tensors[count + 1 :]
        tapes = [tf.GradientTape(persistent=True) for _ in range(case.order)]
        gradients = []
        for tape in tapes:
            tape.__enter__()
            tape.watch(variables)
        gx, x = variables[1 : 1 + case.pairs], variables[1 + case.pairs :]
        h = embed(variables[0], gx, x, fx_gx_manually_stopped=case.manually_stopped, tensors=tensors)
        target = h if case.order == 1 else tf.reduce_sum(upstream * tf.sin(h))
        for order, tape in enumerate(reversed(tapes)):
            tape.__exit__(None, None, None)
            upstreams = {"output_gradients": upstream} if case.order == 1 else {}
            of_order = tape.gradient(target, variables, unconnected_gradients="zero", **upstreams)
            gradients += of_order
            if order + 1 < case.order:
                terms = zip(of_order, weights[order * count : (order + 1) * count], strict=True)
                target = tf.add_n([tf.reduce_sum(gradient * weight) for gradient, weight in terms])
        return [h, *gradients]

    return run


def _by_tensorflow(case):
    def embed(fx, gx, x, fx_gx_manually_stopped, tensors):
        axis = case.axis
        if case.axis_is_a_tensor:  # Known only at run time.
            axis = tf.constant(axis, tf.int32, [len(axis)]) + tf.size(tensors[0], tf.int32) * 0
        if case.pairs == 1:
            (gx,), (x,) = gx, x
        return cg.embed_gradient(fx, gx, x, axis, fx_gx_manually_stopped=fx_gx_manually_stopped)

    return derivatives(case, embed)


def expected(case):
    """The same, as float64 or complex128 arrays."""
    arrays = [reference.widen(a) for a in case.arrays()]
    if case.order > 1:
        return eager(
            derivatives(case, lambda *args, tensors, **options: _embed(*args, case.axis, **options)), arrays, []
        )
    fx, *gx, dy = (*arrays[: 1 + case.pairs], arrays[1 + 2 * case.pairs])
    of_fx = dy if case.manually_stopped else np.zeros_like(dy)
    dx = [reference.vjp(dy, g, case.shapes[2], case.axis) for g in gx]
    return [fx, of_fx, *map(np.zeros_like, gx), *dx]


def check(case, folder=None):
    """Raises AssertionError unless value and gradients equal the reference, in eager mode and in the mode of the case."""
    arrays, run, right = case.arrays(), _by_tensorflow(case), expected(case)
    rtol = GRADIENT_RTOL[case.dtype] * (1 if case.order == 1 else 100)
    for mode in dict.fromkeys(("eager", case.mode)):
        value, *gradients = MODES[mode](run, arrays, [spec(a, case.known) for a in arrays])
        np.testing.assert_array_equal(value, arrays[0], err_msg=f"value, {mode}")
        for index, (actual, e) in enumerate(zip(gradients, right[1:], strict=True)):
            about = f"gradient {index}, {mode}"
            assert actual.shape == e.shape, about
            assert actual.dtype == case.dtype.as_numpy_dtype, about
            scale = max(4.0 * np.sqrt(1 + arrays[0].size * arrays[1].size), float(np.max(np.abs(e), initial=0.0)))
            np.testing.assert_allclose(reference.widen(actual), e, rtol=rtol, atol=rtol * scale, err_msg=about)
    return f"{case.mode}: order {case.order}"
