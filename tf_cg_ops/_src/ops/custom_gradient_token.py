"""CustomGradientToken: its batching rule. It has no inputs that have a gradient."""

from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal

tf.no_gradient("CustomGradientToken")


@tf_internal.RegisterPFor("CustomGradientToken")
def _convert_token(pfor_input: Any) -> Any:
    """One token for the whole batch, with a number for each member."""
    count = tf.cast(pfor_input.pfor.loop_len_vector, tf.int64)
    shape = tf.concat([count, pfor_input.unstacked_input(0)], 0)
    token, ids = library.custom_gradient_token(shape)
    return [tf_internal.wrap_for_pfor(token, False), tf_internal.wrap_for_pfor(ids, True)]
