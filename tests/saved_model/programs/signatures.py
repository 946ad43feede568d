"""Calls a signature of each SavedModel in a folder: signatures.py FOLDER SIGNATURE. MODEL.npz has the inputs, MODEL_out.npz the outputs."""

import pathlib
import sys

import numpy as np
import tensorflow as tf

import tf_cg_ops  # noqa: F401

for file in sorted(pathlib.Path(sys.argv[1]).glob("*.npz")):
    model = tf.saved_model.load(file.with_suffix(""))
    with np.load(file) as inputs:
        outputs = model.signatures[sys.argv[2]](**{name: tf.constant(array) for name, array in inputs.items()})
    np.savez(f"{file.with_suffix('')}_out.npz", **{name: tensor.numpy() for name, tensor in outputs.items()})
