"""Writes graphs for the graph passes into a folder: python qa/sanitize/graphs.py FOLDER."""

import pathlib
import sys
import tempfile

import tensorflow as tf

import tf_cg_ops as cg

tf1 = tf.compat.v1


@cg.custom_gradient
def square(x):
    return x * x, lambda dy: 2.0 * x * dy


@cg.recompute_grad
def cube(x):
    return square(x) * x


def model(x):
    """A number for each row of x: with gradients in a loop, in a conditional, and around a recomputation."""
    x = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, square(x)), [0, x])[1]
    x = tf.cond(tf.reduce_sum(x) > 0.0, lambda: cube(x), lambda: x)
    others = list(range(1, x.shape.rank))
    return cg.embed_gradient(tf.reduce_sum(x, others), 2.0 * x, x, axis=others)


def in_one_graph(v2):
    """A graph with loops and conditionals as functions or as nodes, and an assignment that waits for the value."""
    (tf1.enable_control_flow_v2 if v2 else tf1.disable_control_flow_v2)()
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [3, 4])
        y = model(x)
        tf.gradients(y, x, tf.range(3.0))
        w = tf1.get_variable("w", [3])
        with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=w.handle, value=y)]):
            cg.embed_gradient(w.read_value(), y, y)
    return graph


def traced():
    function = tf.function(model, [tf.TensorSpec([None, 4])], autograph=False)
    return function.get_concrete_function().graph


def save(folder):
    module = tf.Module()
    module.serve = tf.function(lambda x: {"y": cube(square(x)) + 1.0}, [tf.TensorSpec([3])], autograph=False)
    tf.saved_model.save(module, folder, signatures=module.serve.get_concrete_function())


def loaded(session, folder):
    """The input of a saved function, and its gradient, made without Python."""
    signature = tf1.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
    x, y = (session.graph.get_tensor_by_name(info.name) for info in (signature.inputs["x"], signature.outputs["y"]))
    return x, tf1.gradients(y, x)[0]


def without_python(folder):
    save(folder)
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        loaded(session, folder)
    return graph


def main():
    folder = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        graphs = [traced(), without_python(temporary), in_one_graph(v2=True), in_one_graph(v2=False)]
    for number, graph in enumerate(graphs):
        (folder / f"{number}.pb").write_bytes(graph.as_graph_def().SerializeToString())


if __name__ == "__main__":
    main()
