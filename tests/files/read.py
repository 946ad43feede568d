"""Prints the gradients that files of a version have, as JSON: read.py FOLDER FILE...

It runs in a process of its own, which knows nothing of the functions that were saved. What it prints has a value, the
gradients, and the second derivative if there is one, by the case and the way in which it was computed.
"""

import json
import pathlib
import sys
import warnings

import numpy as np
import tensorflow as tf

import tf_cg_ops  # noqa: F401

tf1 = tf.compat.v1


def first_and_second_order(function, x, dy, v, variables=()):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        dx, *others = inner.gradient(y, [x, *variables], output_gradients=dy, unconnected_gradients="zero")
        dx = tf.convert_to_tensor(dx)  # Of slices.
    second = outer.gradient(dx, x, output_gradients=v, unconnected_gradients="zero")
    return {"value": y, "gradients": [dx, *others], "second": second}


def constants(case):
    return [tf.constant(case[name], tf.float64) for name in ("x", "dy", "v")]


def of_functions(folder, cases):
    """Of the functions of a SavedModel."""
    model = tf.saved_model.load(folder / "saved_model")

    def compute(name, case):
        return first_and_second_order(getattr(model, name), *constants(case), [model.w])

    def compute_all(names):
        return {name: compute(name, cases[name]) for name in names}

    found = {name: {} for name in cases}
    for name, case in cases.items():
        if "error" in case:
            try:
                compute(name, case)
            except RuntimeError as error:
                found[name]["eager"] = {"error": str(error)}
    names = [name for name in cases if "error" not in cases[name]]
    compiled = [name for name in names if cases[name]["xla"]]
    traced = [name for name in names if not cases[name]["xla"]]
    ways = {
        "eager": compute_all(names),
        "traced": tf.function(lambda: compute_all(traced))(),
        "xla": tf.function(lambda: compute_all(compiled), jit_compile=True)(),
    }
    for way, answers in ways.items():
        for name, answer in answers.items():
            found[name][way] = answer
    return found


def of_signatures(folder, cases):
    """Of the signatures of a SavedModel in the loader of TensorFlow 1, where the gradients of functions need no Python."""
    found = {}
    for name, case in cases.items():
        with tf1.Graph().as_default() as graph, tf1.Session() as session:
            loaded = tf1.saved_model.load(session, ["serve"], str(folder / "saved_model")).signature_def[name]
            [x], [y] = (
                [graph.get_tensor_by_name(info.name) for info in part.values()]
                for part in (loaded.inputs, loaded.outputs)
            )
            gradients = tf.gradients(y, x, grad_ys=tf.constant(case["dy"], y.dtype))
            y, dx = session.run([y, *gradients], {x: case["x"]})
            found[name] = {"session": {"value": y, "gradients": [dx]}}
    return found


def of_graph(load):
    """Of a graph: `load()` puts it into the default graph."""

    def read(folder, cases):
        [(name, case)] = cases.items()
        with tf1.Graph().as_default() as graph, tf1.Session() as session:
            load(folder)
            x, y = (graph.get_tensor_by_name(tensor) for tensor in ("x:0", "y:0"))
            dx = tf.gradients(y, x, grad_ys=tf.constant(case["dy"], y.dtype))
            second = tf.gradients(dx, x, grad_ys=tf.constant(case["v"], y.dtype))
            y, dx, second = session.run([y, *dx, *second], {x: case["x"]})
        return {name: {"session": {"value": y, "gradients": [dx], "second": second}}}

    return read


def load_frozen_graph(folder):
    graph_def = tf1.GraphDef.FromString((folder / "frozen.pb").read_bytes())
    tf1.import_graph_def(graph_def, name="")


def load_meta_graph(folder):
    tf1.train.import_meta_graph(str(folder / "graph.meta"))


def of_keras(file):
    """Of a model file. The functions of the model are registered when this is called."""

    def read(folder, cases):
        import tests.files.models

        library = tests.files.models.library_of(file)
        model = library.models.load_model(folder / file, compile=False)
        found = {}
        for name, case in cases.items():
            x, dy = (tf.constant(case[key], tf.float32) for key in ("x", "dy"))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x)[name]
            gradients = tape.gradient(y, [x, *tests.files.models.weights_of(model)], dy, "zero")
            found[name] = {"eager": {"value": y, "gradients": gradients}}
        return found

    return read


READERS = {
    "saved_model": of_functions,
    "signatures": of_signatures,
    "frozen": of_graph(load_frozen_graph),
    "meta_graph": of_graph(load_meta_graph),
    "keras.keras": of_keras("keras.keras"),
    "tf_keras.keras": of_keras("tf_keras.keras"),
    "tf_keras.h5": of_keras("tf_keras.h5"),
}


def to_lists(found):
    """The Tensors in lists and dictionaries as lists of numbers."""
    if isinstance(found, dict):
        return {key: to_lists(value) for key, value in found.items()}
    if isinstance(found, list):
        return [to_lists(value) for value in found]
    return found if isinstance(found, str) else np.asarray(tf.convert_to_tensor(found)).tolist()


def main():
    warnings.simplefilter("error")
    folder, *files = sys.argv[1:]
    cases = json.loads(pathlib.Path(folder, "numbers.json").read_text())
    print(json.dumps({file: to_lists(READERS[file](pathlib.Path(folder), cases[file])) for file in files}))


if __name__ == "__main__":
    main()
