"""Calls a signature of a SavedModel: signature.py MODEL SIGNATURE. MODEL.npz has the inputs, MODEL_out.npz the outputs."""

import sys

import numpy as np
import tensorflow as tf

import tf_cg_ops  # noqa: F401

model = tf.saved_model.load(sys.argv[1])
with np.load(sys.argv[1] + ".npz") as inputs:
    outputs = model.signatures[sys.argv[2]](**{name: tf.constant(array) for name, array in inputs.items()})
np.savez(sys.argv[1] + "_out.npz", **{name: tensor.numpy() for name, tensor in outputs.items()})
