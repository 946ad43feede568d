"""Differentiates SavedModels with only the op library: gradients_of_a_model.py FOLDER LIBRARY TASKS.

TASKS is JSON: the inputs and the upstream gradients of each model. Prints outputs and gradients, or errors.
"""

import json
import sys

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
folder, library, tasks = sys.argv[1:]
tf.load_op_library(library)
assert not any(name.split(".")[0] == "tf_cg_ops" for name in sys.modules)


def answer(path, inputs, upstream):
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        xs, ys = (
            [graph.get_tensor_by_name(info.name) for _, info in sorted(part.items())]
            for part in (signature.inputs, signature.outputs)
        )
        try:
            dxs = tf.gradients(ys, xs, [tf.constant(dy, tf.float64) for dy in upstream[: len(ys)]])
            return [t.tolist() for t in session.run(ys + dxs, dict(zip(xs, map(np.array, inputs), strict=True)))]
        except Exception as error:
            return f"{type(error).__name__}: {error}"


print(json.dumps({name: answer(f"{folder}/{name}", *task) for name, task in json.loads(tasks).items()}))
