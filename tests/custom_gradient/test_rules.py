"""What a gradient function can return from the graph that it is traced into."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.modes import MODES, assert_orders, in_a_while_loop
from ..support.tensors import pairs

CONSTANT = tf.constant([5.0, 7.0], tf.float64)
LARGE = tf.range(200, dtype=tf.float64)  # TensorFlow captures small constants by their values.


def exponential(x):
    e = tf.exp(x)
    return 2.0 * x, lambda dy: e


def reversed_slices(x):
    slices = tf.IndexedSlices(2.0 * x, tf.constant([1, 0]), tf.shape(x))
    return 2.0 * x, lambda dy: slices


def in_a_loop(function):
    return in_a_while_loop(cg.custom_gradient(function))


def constant(x):
    return 2.0 * x, lambda dy: CONSTANT


# Each with the first derivative, and the second one, of sum(dx * dy), for x and dy.
RULES = {
    "upstream_itself": (cg.custom_gradient(lambda x: (2.0 * x, lambda dy: dy)), lambda x, dy: (dy, 0 * x)),
    "a_part_of_a_large_constant": (
        cg.custom_gradient(lambda x: (2.0 * x, lambda dy: LARGE[5:8:2])),
        lambda x, dy: (CONSTANT, 0 * x),
    ),
    "the_argument": (cg.custom_gradient(lambda x: (2.0 * x, lambda dy: x)), lambda x, dy: (x, dy)),
    **{
        f"{function.__name__}{name}": (place(function), by_hand)
        for function, by_hand in [
            (constant, lambda x, dy: (CONSTANT, 0 * x)),
            (exponential, lambda x, dy: (np.exp(x), dy * np.exp(x))),
            (reversed_slices, lambda x, dy: (2.0 * x[::-1], 2.0 * dy[::-1])),
        ]
        for name, place in (("", cg.custom_gradient), ("_in_a_loop", in_a_loop))
    },
}


# Not with tapes around a tf.function, and in a loop one order, because there TensorFlow also computes the gradient for an
# upstream of zeros; and not in a graph of TensorFlow 1, which cannot hold EagerTensors.
@pytest.mark.parametrize(("rule", "mode"), pairs(RULES, ["eager", "traced", "unknown_shape", "jit"], quick=2))
def test_rules_may_return_tensors_that_they_did_not_compute(rule, mode):
    x, dy = np.array([2.0, 3.0]), np.array([1.0, 10.0])
    function, by_hand = RULES[rule]
    count = 2 if "in_a_loop" in rule else 3
    assert_orders(MODES[mode](function, x, dy)[:count], [2.0 * x, *by_hand(x, dy)][:count])


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
