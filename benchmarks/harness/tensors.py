"""Inputs: nonuniform numbers, the same in every run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def array(shape: Sequence[int], seed: int = 1) -> np.ndarray:
    """float32 numbers between 0.5 and 1.5, so that products are neither denormal nor zero."""
    return np.random.default_rng(seed).random(shape, np.float32) + np.float32(0.5)


def tensors(*shapes: Sequence[int], dtype: tf.DType = tf.float32) -> list[tf.Tensor]:
    """One tensor for each shape, each with its own memory."""
    return [tf.cast(tf.constant(array(shape, seed)), dtype) for seed, shape in enumerate(shapes)]


def raw_gradient(dy: tf.Tensor, gx: tf.Tensor, shape: Sequence[int], **attributes: Any) -> Any:
    """A call of the gradient op as the registered gradient makes it: almost only the kernel."""
    from tf_cg_ops._src.core import library

    target = tf.constant(shape, tf.int64, [len(shape)])
    return lambda: library.custom_gradient_embed_grad(dy, gx, target, wrt="x", **attributes)


def memory(tensor: tf.Tensor) -> np.ndarray:
    """The tensor's own memory for a yardstick: other memory might have larger pages."""
    return np.asarray(memoryview(tensor))
