"""Saves a small model with custom gradients and prints how gradient.c computes them.

    python examples/c_api/save_model.py FOLDER

FOLDER gets stripped, a SavedModel of built-in ops with a signature that computes the gradient. For programs that load
the op library, it also gets a SavedModel without this signature, model, and a frozen TensorFlow 1 graph with the ops in
it, graph.pb. All gradients in them are custom ones that differ from the true derivative.
"""

import argparse
import pathlib
import shutil

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_cg_ops as cg


@cg.custom_gradient
def spike(v: tf.Tensor) -> tuple[tf.Tensor, object]:
    """One above the threshold, else zero, with a smooth bump as its derivative."""
    return tf.cast(v > 1.0, v.dtype), lambda dy: dy / (1.0 + 10.0 * tf.abs(v - 1.0)) ** 2


class Model(tf.Module):
    """Two signatures, one for each kind of custom gradient."""

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float64)])
    def embed(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """The square, with the derivative 5 and 7 instead of 2x."""
        weight = tf.constant([2.0, 3.0], tf.float64)
        return {"y": weight * cg.embed_gradient(x**2, tf.constant([5.0, 7.0], tf.float64), x)}

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
    def spike(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """Spikes."""
        return {"y": spike(3.0 * x)}


def graph_of_both() -> tf.compat.v1.GraphDef:
    """A graph with the ops themselves instead of functions: x, and a y for each."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float64, [2], name="x")
        tf.identity(cg.embed_gradient(x**2, tf.constant([5.0, 7.0], tf.float64), x), name="embed")
        tf.identity(spike(3.0 * x), name="spike")
    return graph.as_graph_def()


def main() -> None:
    """Saves both and prints the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    model = Model()
    tf.saved_model.save(model, folder / "model", signatures={"embed": model.embed, "spike": model.spike})
    (folder / "graph.pb").write_bytes(graph_of_both().SerializeToString())

    for name in ("with_gradient", "stripped"):
        shutil.rmtree(folder / name, ignore_errors=True)  # From an earlier run: they are not overwritten.
    added = cg.saved_model.add_gradients(folder / "model", folder / "with_gradient", signature="spike", of="y", wrt="x")
    cg.saved_model.strip(folder / "with_gradient", folder / "stripped")
    numbers = {"x": "0.5,0.25", "d_y": "1,10"}
    inputs = " ".join(f"{each.tensor}={numbers[each.name]}" for each in added.inputs)
    print(f"./gradient run {folder / 'stripped'} {inputs} {' '.join(each.tensor for each in added.outputs)}")

    # A SavedModel names the tensors of each signature.
    saved = saved_model_pb2.SavedModel.FromString((folder / "model" / "saved_model.pb").read_bytes())
    for name, signature in sorted(saved.meta_graphs[0].signature_def.items()):
        if name in ("embed", "spike"):
            tensors = f"{signature.inputs['x'].name} {signature.outputs['y'].name}"
            print(f"./gradient {cg.sysconfig.get_library()} {folder / 'model'} {tensors} {' '.join(numbers.values())}")
    libraries = f"{cg.sysconfig.get_library()},{cg.sysconfig.get_library_with_cc()}"
    for name in ("embed", "spike"):
        print(f"./gradient {libraries} {folder / 'graph.pb'} x {name} {' '.join(numbers.values())}")


if __name__ == "__main__":
    main()
