"""Checks the gradient of a function of a SavedModel: gradient.py MODEL FUNCTION [X, DY, DX]."""

import json
import sys

import numpy as np
import tensorflow as tf

import tf_cg_ops  # noqa: F401

x, dy, dx = (np.array(numbers) for numbers in json.loads(sys.argv[3]))
x = tf.constant(x)
function = getattr(tf.saved_model.load(sys.argv[1]), sys.argv[2])
with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)
np.testing.assert_allclose(tape.gradient(y, x, output_gradients=tf.constant(dy)), dx)
