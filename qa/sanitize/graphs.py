"""Writes graphs for the graph passes into a folder: python qa/sanitize/graphs.py FOLDER."""

import pathlib
import sys
import tempfile

import tensorflow as tf

import tf_cg_ops as cg
from qa.sanitize.model import cube, model, square

tf1 = tf.compat.v1


def in_one_graph(v2):
    """With loops and conditionals as functions, or as nodes; and with an assignment that waits for the value."""
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


def without_python(folder):
    """The gradient of a saved function, which the passes make."""
    module = tf.Module()
    module.serve = tf.function(lambda x: {"y": cube(square(x)) + 1.0}, [tf.TensorSpec([3])], autograph=False)
    tf.saved_model.save(module, folder, signatures=module.serve.get_concrete_function())
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        signature = tf1.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        x, y = (graph.get_tensor_by_name(info.name) for info in (signature.inputs["x"], signature.outputs["y"]))
        tf1.gradients(y, x)
    return graph


def main():
    folder = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        graphs = [traced(), without_python(temporary), in_one_graph(v2=True), in_one_graph(v2=False)]
    for number, graph in enumerate(graphs):
        (folder / f"{number}.pb").write_bytes(graph.as_graph_def().SerializeToString())


if __name__ == "__main__":
    main()
