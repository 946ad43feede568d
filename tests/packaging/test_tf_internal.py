"""What the package needs from TensorFlow's private names, if no test of a public function shows it."""

import gc

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

from ..support.tensors import address


def test_a_tensor_with_the_same_buffer_is_on_no_tape_and_recording_goes_on():
    x = tf.random.uniform([1000])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        unseen = tf_internal.same_buffer(x)
        seen = 2.0 * unseen + x
    assert unseen is not x
    assert address(unseen) == address(x)
    assert unseen.device == x.device
    assert tape.gradient(seen, unseen) is None
    np.testing.assert_array_equal(tape.gradient(seen, x), np.ones(1000))


def test_python_functions_are_found_by_the_name_that_they_got():
    with tf.Graph().as_default() as graph:
        tf_internal.add_python_function(graph, "a name", lambda x: 2 * x)
        (doubled,) = tf.raw_ops.PyFunc(input=[tf.constant(21.0)], token="a name", Tout=[tf.float32])
        with tf.compat.v1.Session() as session:
            assert session.run(doubled) == 42.0
    assert tf_internal.python_function(b"a name")(3) == 6
    del graph, doubled, session
    gc.collect()
    assert tf_internal.python_function(b"a name") is None
