"""Importing the library does not change graphs without its ops, and does not make any graph fail."""

import json
import pathlib

import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.sources import ROOT

tf1 = tf.compat.v1


def built_in(a, b):
    return a * a + tf.gather(b, [0, 1, 2])


def with_dropout(a, b):
    return cg.embed_gradient(a * a, b, a) + tf.nn.dropout(b, 0.5)


def with_loop(a, b):
    """Without Python, TensorFlow can return zeros for its gradient."""

    @tf.function(autograph=False)
    def inner(a):
        return tf.while_loop(lambda i, _: i < 2, lambda i, v: (i + 1, cg.embed_gradient(v, b, v)), (0, a))[1]

    return inner(a) + b


def named(model):
    return tf.function(lambda a, b: {"y": model(a, b)}, [tf.TensorSpec([3])] * 2, autograph=False)


MODELS = [built_in, with_dropout, with_loop]


def answers(*paths):
    """For each model, what a TensorFlow 1 session fetches, in a graph that also has the gradient."""

    def answer(path):
        with tf1.Graph().as_default() as graph, tf1.Session() as session:
            signature = tf1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
            a, b = (graph.get_tensor_by_name(signature.inputs[name].name) for name in "ab")
            y = graph.get_tensor_by_name(signature.outputs["y"].name)

            def run(fetch):
                try:
                    return session.run(fetch, {a: [1.0, 2.0, 3.0], b: [4.0, 5.0, 6.0]}).tolist()
                except Exception as error:
                    return f"{type(error).__name__}: {error}"

            return {"doubled": run(a * 2.0), "gradient": run(tf.gradients(y, [a])[0]), "value": run(y)}

    return {pathlib.Path(path).name: answer(path) for path in paths}


@pytest.mark.parametrize("disable", ["0", "1"], ids=["with_passes", "without_passes"])
def test_only_fetching_a_lost_gradient_fails(disable, tmp_path):
    module = tf.Module()
    for model in MODELS:
        module.f = named(model)
        tf.saved_model.save(module, tmp_path / model.__name__, signatures=module.f)
    code = f"import json, sys; from {__name__} import answers; print(json.dumps(answers(*sys.argv[1:])))"
    environment = {"TF_CG_OPS_DISABLE_PASSES": disable, "PYTHONPATH": str(ROOT)}
    paths = (tmp_path / model.__name__ for model in MODELS)
    found = json.loads(run_python(code, *paths, cwd=tmp_path, environment=environment).stdout.splitlines()[-1])
    for answer in found.values():
        assert answer["doubled"] == [2.0, 4.0, 6.0]
        assert not isinstance(answer["value"], str)
    assert found["built_in"]["value"] == [5.0, 9.0, 15.0]
    assert "No gradient defined for op: GatherV2" in found["built_in"]["gradient"]
    of_the_library = "tf_cg_ops: TensorFlow cannot differentiate loops" if disable == "0" else "tf_cg_ops"
    assert (of_the_library in str(found["with_loop"]["gradient"])) == (disable == "0")


def test_no_function_is_copied_in_a_graph_without_our_ops():
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [3])
        traced = tf.function(lambda x: tf.cond(x[0] > 0.0, lambda: tf.sin(x), lambda: x))
        run_metadata = tf1.RunMetadata()
        session.run(traced(x), {x: [1.0, 2.0, 3.0]}, tf1.RunOptions(output_partition_graphs=True), run_metadata)
        names = [
            function.signature.name for graph in run_metadata.partition_graphs for function in graph.library.function
        ]
        assert not [name for name in names if "without_gradients" in name]
