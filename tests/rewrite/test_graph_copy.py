"""The copy of a traced graph, op by op."""

import tensorflow as tf

from tf_cg_ops._src.rewrite.graph_copy import GraphCopy


def test_a_copied_op_waits_for_the_copy_of_an_op_without_outputs():
    with tf.Graph().as_default():
        x = tf.constant(1.0)
        with tf.control_dependencies([tf.no_op(name="before")]):
            y = tf.sin(x)
    for pure, waits_for in ((False, ["NoOp"]), (True, [])):
        with tf.Graph().as_default() as graph:
            (copied,) = GraphCopy([], pure=pure).tensors([y])
        assert copied.graph is graph
        assert [op.type for op in copied.op.control_inputs] == waits_for
