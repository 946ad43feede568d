"""Random shapes, axes, upstreams and dtypes against the NumPy reference."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from .support import reference
from .support.regimes import REGIMES
from .support.tensors import DTYPES, random_array
from .support.tolerances import assert_gradient_close

CASES_PER_SEED = 8


def random_case(rng):
    """Shapes of fx, gx and x with an axis, built forwards from the broadcast shape, so that they fit."""
    x_rank = int(rng.integers(0, 5))
    x_joint = rng.choice([0, 1, 2, 3, 5], size=x_rank, p=[0.05, 0.2, 0.25, 0.25, 0.25]).tolist()
    extra = rng.choice([1, 2, 3], size=int(rng.integers(0, 3))).tolist()
    domain = [i for i in range(x_rank) if rng.random() < 0.4]
    batch = [x_joint[i] for i in range(x_rank) if i not in domain]

    def some_ones(dims):
        return [1 if rng.random() < 0.2 else d for d in dims]

    if rng.random() < 0.5:
        gx = some_ones(extra[int(rng.integers(0, len(extra) + 1)) :] + x_joint)
    else:
        along_batch = some_ones(batch)
        gx = along_batch[int(rng.integers(0, len(along_batch) + 1)) :]
    x = some_ones(x_joint)
    fx = extra + batch
    if not extra and x == x_joint and rng.random() < 0.2:
        fx = []
    if len(domain) == x_rank and rng.random() < 0.5:
        axis = None
    else:
        axis = [d - x_rank if rng.random() < 0.5 else d for d in domain]
    return tuple(fx), tuple(gx), tuple(x), axis


@pytest.mark.parametrize("regime_name", list(REGIMES))
@pytest.mark.parametrize("seed", range(12))
def test_vjp_equals_the_reference(seed, regime_name):
    rng = np.random.default_rng(seed)
    for case in range(CASES_PER_SEED):
        fx_shape, gx_shape, x_shape, axis = random_case(rng)
        dtype = DTYPES[(seed + case) % len(DTYPES)]
        fx, gx, x, dy = (random_array(rng, shape, dtype) for shape in (fx_shape, gx_shape, x_shape, fx_shape))

        def embed(x, fx=fx, gx=gx, axis=axis):
            return cg.embed_gradient(fx, gx, x, axis)

        value, (dx,) = REGIMES[regime_name](embed, [x], dy)
        np.testing.assert_array_equal(value, fx)
        assert dx.dtype == dtype.as_numpy_dtype
        expected = reference.vjp(dy, gx, x_shape, axis)
        terms = max(1, np.size(dy) * max(np.size(gx), 1) // max(1, np.size(expected)))
        assert_gradient_close(dx, expected, dtype, scale=4.0 * np.sqrt(terms))


@pytest.mark.parametrize("seed", range(20))
def test_an_axis_known_only_at_run_time_gives_the_same(seed):
    rng = np.random.default_rng(1000 + seed)
    for _ in range(CASES_PER_SEED):
        fx_shape, gx_shape, x_shape, axis = random_case(rng)
        axis = list(range(len(x_shape))) if axis is None else axis
        fx, gx, x, dy = (random_array(rng, shape) for shape in (fx_shape, gx_shape, x_shape, fx_shape))

        for make_spec in (lambda t: tf.TensorSpec(t.shape, t.dtype), lambda t: tf.TensorSpec(None, t.dtype)):
            tensors = [tf.constant(t) for t in (fx, gx, x, dy)]

            @tf.function(input_signature=[*map(make_spec, tensors), tf.TensorSpec([None], tf.int32)])
            def run(fx, gx, x, dy, axis):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    h = cg.embed_gradient(fx, gx, x, axis)
                return h, tape.gradient(h, x, dy)

            value, dx = run(*tensors, tf.constant(axis, tf.int32))
            np.testing.assert_array_equal(value, fx)
            np.testing.assert_allclose(dx, reference.vjp(dy, gx, x_shape, axis), rtol=1e-12, atol=1e-12)
