"""Exceptions in check_gradient, and weights of a lower precision. Its messages are in tests/messages."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

X = np.array([0.5, -1.0, 2.0])


def test_an_exception_of_a_gradient_is_the_cause_of_the_failure():
    @cg.custom_gradient
    def broken(x):
        def grad_fn(dy):
            raise KeyError("mine")

        return tf.sin(x), grad_fn

    with pytest.raises(AssertionError) as failure:
        check_gradient(broken, [X], modes=["eager"], second_order=True)
    assert isinstance(failure.value.__cause__, KeyError)


WEIGHTS = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])


def test_a_cast_inside_is_enough_for_weights_of_float32():
    def multiplied(x):
        return tf.linalg.matvec(WEIGHTS, tf.sin(tf.cast(x, tf.float32)))

    assert not check_gradient(multiplied, [X], modes=["eager"], rtol=1e-3, step=0.1).failures
