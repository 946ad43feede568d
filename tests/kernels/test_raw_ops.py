"""Malformed calls of the ops themselves raise exceptions and never crash."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops._src.core import library

from ..support.tensors import ones

V = ones([3])

RAW = {
    "two_ways_to_say_the_axis": (
        lambda: library.custom_gradient_embed(V, [V], [V], axis=[0], all_axes=True),
        "embed_gradient: axis must be empty if all_axes is true, got [0]. Set only one of the two attributes.",
    ),
    "shape_of_rank_0": (
        lambda: library.custom_gradient_embed_grad(V, V, tf.constant(3), wrt="x"),
        "CustomGradientEmbedGrad: shape must be a vector, got a tensor of rank 0. Pass the result of tf.shape.",
    ),
    "negative_shape": (
        lambda: library.custom_gradient_embed_grad(V, V, tf.constant([-3]), wrt="x"),
        "Dimension -3 must be >= 0",
    ),
    "shape_that_overflows": (
        lambda: library.custom_gradient_embed_grad(V, V, tf.constant([2**62, 4], tf.int64), wrt="x"),
        "Shape [4611686018427387904,4] would have more than 2**63 - 1 elements",
    ),
    "shape_of_too_high_a_rank": (
        lambda: library.custom_gradient_embed_grad(V, V, tf.ones([300], tf.int64), wrt="x"),
        "Too many dimensions",
    ),
    "operands_that_do_not_fit": (
        lambda: library.custom_gradient_embed_grad(V, ones([4]), tf.constant([3]), wrt="x"),
        "CustomGradientEmbedGrad: the shapes must broadcast together, with sizes that are equal or 1",
    ),
    "huge_empty_operands": (
        lambda: library.custom_gradient_embed_grad(
            ones([0, 2**40, 1]), ones([0, 1, 2**40]), tf.constant([], tf.int64), wrt="x"
        ),
        "CustomGradientEmbedGrad: fx (or its upstream) must have shape [0,1099511627776,1099511627776] (the broadcast ",
    ),
    "more_products_than_can_be_counted": (
        lambda: library.custom_gradient_embed_grad(
            ones([2**20]), ones([]), tf.constant([2**43], tf.int64), wrt="x", all_axes=True
        ),
        "CustomGradientEmbedGrad: the shapes must broadcast to at most 9223372036854775807 elements, got fx",
    ),
    "zero_x_without_x": (
        lambda: library.custom_gradient_embed_grad(V, V, tf.constant([3]), wrt="x", zero_x=True),
        "CustomGradientEmbedGrad: wrt must be 'fx' or 'gx' if zero_x is true, got 'x'. Set zero_x to false.",
    ),
}


@pytest.mark.parametrize("case", RAW)
def test_raw_calls_of_the_ops(case):
    call, message = RAW[case]
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        call()


def test_huge_empty_operands_that_fit_are_allowed():
    """The product of the joint shape's sizes overflows 64 bits, but there is nothing to multiply."""
    out = library.custom_gradient_embed_grad(
        ones([0, 2**40]), ones([0, 2**40, 2**20]), tf.constant([2**20], tf.int64), wrt="x", all_axes=True
    )
    np.testing.assert_array_equal(out, np.zeros(2**20))
