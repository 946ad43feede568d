"""What a gradient function can return from the graph that it is traced into."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.modes import MODES, assert_orders
from ..support.tensors import pairs

CONSTANT = tf.constant([5.0, 7.0], tf.float64)
LARGE = tf.range(200, dtype=tf.float64)  # TensorFlow captures small constants by their values.


def what_the_value_was_computed_from(x):
    e = tf.exp(x)
    return 2.0 * x, lambda dy: e


# Each with the first derivative, and the second one, of sum(dx * dy), for x and dy.
RULES = {
    "upstream_itself": (lambda x: (2.0 * x, lambda dy: dy), lambda x, dy: (dy, 0 * x)),
    "a_constant": (lambda x: (2.0 * x, lambda dy: CONSTANT), lambda x, dy: (CONSTANT, 0 * x)),
    "a_part_of_a_large_constant": (lambda x: (2.0 * x, lambda dy: LARGE[5:8:2]), lambda x, dy: (CONSTANT, 0 * x)),
    "the_argument": (lambda x: (2.0 * x, lambda dy: x), lambda x, dy: (x, dy)),
    "the_value's": (what_the_value_was_computed_from, lambda x, dy: (np.exp(x), dy * np.exp(x))),
}


# Not with tapes around a tf.function, where TensorFlow also computes the gradient for an upstream of zeros, and not in a
# graph of TensorFlow 1, which cannot hold EagerTensors.
@pytest.mark.parametrize(("rule", "mode"), pairs(RULES, ["eager", "traced", "unknown_shape", "jit"], quick=2))
def test_rules_may_return_tensors_that_they_did_not_compute(rule, mode):
    x, dy = np.array([2.0, 3.0]), np.array([1.0, 10.0])
    function, by_hand = RULES[rule]
    assert_orders(MODES[mode](cg.custom_gradient(function), x, dy), [2.0 * x, *by_hand(x, dy)])


def gradient_of_an_op(**attributes):
    """The gradient of the op itself, whose rule is `product` unless the attributes say something else."""
    product = tf.function(lambda dy, c: dy * c).get_concrete_function(tf.TensorSpec([2]), tf.TensorSpec([2]))
    named = {
        "rule": product.name,
        "differentiated_results": [0],
        "differentiated_inputs": [0],
        "sliced_inputs": [],
        **attributes,
    }

    @tf.function
    def run(x):
        product.add_to_graph(tf.compat.v1.get_default_graph())
        with tf.GradientTape() as tape:
            tape.watch(x)
            (y,) = library.custom_gradient_rule([x], [x], [tf.constant([5.0, 7.0])], **named)
        return tape.gradient(y, x)

    return run(tf.ones([2]))


def test_a_rule_of_an_op_that_was_made_directly():
    np.testing.assert_array_equal(gradient_of_an_op(), [5.0, 7.0])


POSITIONS = "{} must hold positions from [0], each once, got {}"
MALFORMED = [
    ("rule", "nothing", "the graph lacks the function 'nothing', the gradient rule of this op"),
    ("differentiated_results", [], "must have 1 argument and 1 result, got 2 and 1"),
    ("differentiated_results", [1], POSITIONS),
    ("differentiated_results", [-1], POSITIONS),
    ("differentiated_inputs", [1], POSITIONS),
    ("differentiated_inputs", [0, 0], POSITIONS),
    ("sliced_inputs", [0], "must have 2 arguments and 3 results, got 2 and 1"),
    ("sliced_inputs", [1], POSITIONS),
]


@pytest.mark.parametrize(("attribute", "value", "message"), MALFORMED, ids=str)
def test_a_rule_of_an_op_that_is_malformed(attribute, value, message):
    with pytest.raises(ValueError, match=re.escape(message.format(attribute, value))):
        gradient_of_an_op(**{attribute: value})


def test_the_op_of_eager_mode_has_no_gradient():
    x = tf.ones([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = library.custom_gradient_rule(
            [x], [x], [], rule="product", differentiated_results=[0], differentiated_inputs=[0]
        )
    with pytest.raises(ValueError, match="CustomGradientRule: in eager mode this op has no gradient"):
        tape.gradient(y, x)
