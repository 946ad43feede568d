"""Prints the values and derivatives that files of a version have, as JSON: read.py FOLDER FILE, or FOLDER graphs.

It runs in a process of its own, which knows nothing of the functions that were saved. The inputs are in inputs.json. It
prints the value, the gradients and perhaps the second derivative, by the way of reading and the name.
"""

import json
import pathlib
import sys
import warnings

import numpy as np
import tensorflow as tf

import tf_cg_ops  # noqa: F401

tf1 = tf.compat.v1


def of_saved_model(folder, x, v, dys):
    model = tf.saved_model.load(folder / "saved_model")

    def compute(name):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = getattr(model, name)(x)
            dx, dw = inner.gradient(y, [x, model.w], tf.constant(dys[name], x.dtype), "zero")
            dx = tf.convert_to_tensor(dx)  # Of slices.
        return [y, [dx, dw], outer.gradient(dx, x, v, "zero")]

    compiled = tf.function(lambda: {name: compute(name) for name in dys}, jit_compile=True)
    return {"eager": {name: compute(name) for name in dys}, "xla": compiled()}


def of_graph(load, x, v, dys, second=True):
    """`load(session, name)` puts the function into the default graph, and returns its input and output."""
    found = {}
    for name, dy in dys.items():
        with tf1.Graph().as_default(), tf1.Session() as session:
            source, y = load(session, name)
            dx = tf.gradients(y, source, grad_ys=tf.constant(dy, y.dtype))
            # The gradients of functions in a SavedModel need no Python only once.
            dv = tf.gradients(dx, source, grad_ys=tf.constant(v, y.dtype)) if second else []
            y, dx, *dv = session.run([y, dx, *dv], {source: x})
        found[name] = [y, dx, *dv]
    return found


def of_graphs(folder, x, v, dys, held):
    def signature(session, name):
        called = tf1.saved_model.load(session, ["serve"], str(folder / "saved_model")).signature_def[name]
        parts = [[info.name for info in part.values()] for part in (called.inputs, called.outputs)]
        return [session.graph.get_tensor_by_name(part) for (part,) in parts]

    def frozen(session, _):
        tf1.import_graph_def(tf1.GraphDef.FromString((folder / "frozen.pb").read_bytes()), name="")
        return [session.graph.get_tensor_by_name(name) for name in ("x:0", "y:0")]

    def meta_graph(session, _):
        tf1.train.import_meta_graph(str(folder / "graph.meta"))
        return [session.graph.get_tensor_by_name(name) for name in ("x:0", "y:0")]

    loaders = {"signatures": signature, "frozen": frozen, "meta_graph": meta_graph}
    return {
        file: of_graph(load, x, v, {name: dys[name] for name in held[file]}, file != "signatures")
        for file, load in loaders.items()
    }


def of_keras(folder, file, x, dys):
    from tests.files.contents import library_of

    model = library_of(file)[0].models.load_model(folder / file, compile=False)
    x = tf.constant(x, tf.float32)
    weights = [v if isinstance(v, tf.Variable) else v.value for v in model.trainable_variables]
    found = {}
    for name in model(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)[name]
        found[name] = [y, tape.gradient(y, [x, *weights], tf.constant(dys[name], tf.float32), "zero")]
    return {file: found}


def main():
    warnings.simplefilter("error")
    # The planned function there is small.
    warnings.filterwarnings("ignore", ".* recomputation saves less than a tenth")
    folder, file = pathlib.Path(sys.argv[1]), sys.argv[2]
    x, v, dys, held = json.loads((folder / "inputs.json").read_text())
    if file == "saved_model":
        found = of_saved_model(folder, tf.constant(x, tf.float64), tf.constant(v, tf.float64), dys["functions"])
    elif file == "graphs":
        found = of_graphs(folder, x, v, dys["functions"], held)
    else:
        found = of_keras(folder, file, x, dys["outputs"])
    print(json.dumps(tf.nest.map_structure(lambda tensor: np.asarray(tensor).tolist(), found)))


if __name__ == "__main__":
    main()
