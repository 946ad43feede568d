"""tf.vectorized_map and jacobians without a fallback, each against a Python loop."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from .support.tensors import random_array

N = 3

# fx, gx (each one shape for each x), x and axis, as in the table of embed_gradient.
SHAPES = {
    "elementwise": ([4], [[4]], [[4]], ()),
    "scalars": ([], [[]], [[]], ()),
    "scalar_gx": ([4], [[]], [[4]], ()),
    "scalar_x": ([4], [[4]], [[]], ()),
    "summed_over_a_batch": ([2, 4], [[2, 4]], [[4]], ()),
    "scalar_fx": ([], [[4]], [[4]], ()),
    "scalar_fx_and_a_smaller_gx": ([], [[4]], [[2, 4]], ()),
    "scalar_fx_and_scalar_gx": ([], [[]], [[2, 4]], None),
    "axis": ([2], [[2, 4]], [[2, 4]], -1),
    "axis_from_the_left": ([4], [[2, 4]], [[2, 4]], 0),
    "axis_and_gx_along_the_batch": ([2], [[2]], [[2, 4]], 1),
    "two_axes": ([2, 3], [[2, 5, 3, 4]], [[2, 5, 3, 4]], [1, 3]),
    "jacobian": ([5], [[5, 4]], [[4]], None),
    "jacobian_of_a_matrix": ([5], [[5, 2, 4]], [[2, 4]], None),
    "jacobian_for_each_example": ([2, 5], [[2, 5, 4]], [[2, 1, 4]], -1),
    "two_pairs": ([4], [[4], []], [[4], [4]], ()),
    "two_pairs_of_other_ranks": ([2, 4], [[2, 4], [4]], [[4], [2, 4]], ()),
    "axis_from_the_left_of_two_ranks": ([2, 4], [[2, 5, 4], [5, 4]], [[2, 5, 4], [5, 4]], -2),
    "axis_at_two_places_from_the_right": ([4], [[5, 4], [4, 3]], [[5, 4], [3]], 0),
    "all_axes_of_two_ranks": ([5], [[5, 4], [5, 2, 3]], [[4], [2, 3]], None),
}


def arrays(rng, shapes, is_stacked):
    return [
        random_array(rng, [N, *shape] if stacked else shape) for shape, stacked in zip(shapes, is_stacked, strict=True)
    ]


def value_and_gradients(stopped, axis, pairs, fx, gx, x, dy):
    """The value, and first and second order by everything that has a gradient."""
    with tf.GradientTape() as outer:
        outer.watch([fx, gx, x, dy])
        with tf.GradientTape() as inner:
            inner.watch([fx, gx, x])
            h = cg.embed_gradient(fx, list(gx), list(x), axis=axis, fx_gx_manually_stopped=stopped)
        first = inner.gradient(h, [fx, gx, x], output_gradients=dy, unconnected_gradients="zero")
        weighted = sum(tf.reduce_sum(g * tf.cos(tf.cast(i, g.dtype) + g)) for i, g in enumerate(tf.nest.flatten(first)))
    second = outer.gradient(weighted, [fx, gx, x, dy], unconnected_gradients="zero")
    return h, first, second


def member(array, stacked, i):
    return tf.constant(array[i] if stacked else array)


@pytest.mark.parametrize("stopped", [False, True], ids=["", "manually_stopped"])
@pytest.mark.parametrize("name", SHAPES)
def test_vectorized_map_equals_a_loop_for_every_mix_of_stacked_inputs(name, stopped, rng):
    fx, gx, x, axis = SHAPES[name]
    shapes, pairs = [fx, *gx, *x, fx], len(x)
    for is_stacked in itertools.product([False, True], repeat=len(shapes)):
        if not any(is_stacked):
            continue
        values = arrays(rng, shapes, is_stacked)

        def compute(tensors, stopped=stopped, axis=axis, pairs=pairs):
            fx, gx, x, dy = tensors[0], tensors[1 : 1 + pairs], tensors[1 + pairs : -1], tensors[-1]
            return tf.nest.flatten(value_and_gradients(stopped, axis, pairs, fx, gx, x, dy))

        def one(stacked, values=values, is_stacked=is_stacked, compute=compute):
            own = iter(stacked)
            return compute([next(own) if s else tf.constant(v) for v, s in zip(values, is_stacked, strict=True)])

        stacked = [tf.constant(v) for v, s in zip(values, is_stacked, strict=True) if s]
        batch = tf.function(lambda s, one=one: tf.vectorized_map(one, s, fallback_to_while_loop=False))(stacked)
        loop = [compute([member(v, s, i) for v, s in zip(values, is_stacked, strict=True)]) for i in range(N)]
        for k, got in enumerate(batch):
            np.testing.assert_allclose(got, [np.asarray(one[k]) for one in loop], rtol=1e-12, atol=1e-12)
