"""Loads models in a process that has not made them: fresh.py LIBRARY FOLDER MODULE.

For each NAME.keras or NAME in the folder, a file or an exported model, it writes the value, the gradients of the inputs in
NAME.npz and of the weights, to NAME.found.npz. MODULE registers the functions of the models.
"""

import importlib
import pathlib
import sys

import numpy as np
import tensorflow as tf

import tf_cg_ops

name, folder, module = sys.argv[1:]
importlib.import_module(module)
if name == "tf_keras":
    import tf_cg_ops.layers.tf_keras  # noqa: F401
library = importlib.import_module(name)
for path in list(pathlib.Path(folder).glob("*.npz")):
    inputs = [tf.constant(array) for array in np.load(path).values()]
    file = path.with_suffix(".keras")
    loaded = library.models.load_model(file) if file.exists() else tf.saved_model.load(path.with_suffix(""))
    model = getattr(loaded, "serve", loaded)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = model(inputs if len(inputs) > 1 else inputs[0])
    dy = tf.sin(3.0 * y) + 1.5
    variables = [v if isinstance(v, tf.Variable) else v.value for v in getattr(loaded, "trainable_variables", [])]
    found = [y, *tape.gradient(y, [*inputs, *variables], output_gradients=dy)]
    np.savez(path.with_suffix(".found"), *found)
