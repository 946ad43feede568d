"""Writes the files of this version, which every later version must read: `python -m tests.files.write`.

Until its release you can delete the folder of a version and run it again, but not afterwards.
"""

import json
import pathlib
import tarfile
import tempfile

import keras
import tensorflow as tf
import tf_keras
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import tf_cg_ops as cg

from . import contents

HERE = pathlib.Path(__file__).parent
tf1 = tf.compat.v1


def traced(function, shape=contents.X.shape):
    return tf.function(function, input_signature=[tf.TensorSpec(shape, tf.float64, "x")], autograph=False)


def write_saved_model(folder):
    module = tf.Module()
    module.w = contents.w
    for name, (function, *_) in contents.FUNCTIONS.items():
        setattr(module, name, traced(function, (None, 3) if name == "graph" else contents.X.shape))
    module.untraceable = traced(contents.untraceable)
    options = tf.saved_model.SaveOptions(experimental_debug_stripper=True)
    signatures = {name: getattr(module, name) for name in contents.HELD["signatures"]}
    tf.saved_model.save(module, folder / "saved_model", signatures=signatures, options=options)
    (folder / "saved_model" / "fingerprint.pb").unlink(missing_ok=True)


def write_frozen_graph(folder):
    frozen = convert_variables_to_constants_v2(traced(contents.FUNCTIONS["with_variable"][0]).get_concrete_function())
    graph_def = frozen.graph.as_graph_def()
    output = graph_def.node.add(name="y", op="Identity", input=[frozen.outputs[0].name])
    output.attr["T"].type = tf.float64.as_datatype_enum
    (folder / "frozen.pb").write_bytes(graph_def.SerializeToString(deterministic=True))


def write_meta_graph(folder):
    with tf1.Graph().as_default():
        tf.identity(contents.FUNCTIONS["graph"][0](tf1.placeholder(tf.float64, [None, 3], "x")), "y")
        # With the attributes that have their defaults, which a SavedModel leaves out.
        tf1.train.export_meta_graph(str(folder / "graph.meta"), clear_devices=True)


def write_keras_model(folder, file):
    library, layers = contents.library_of(file)
    x = library.Input((3,), name="x")
    held = {name: make for name, (make, *_) in contents.OUTPUTS.items() if not ("activation" in name and "h5" in file)}
    outputs = {name: make(library, layers, x) for name, make in held.items()}
    library.Model(x, outputs).save(folder / file)


def anonymous(entry):
    """The same files give the same bytes."""
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main():
    target = HERE / cg.__version__
    if target.exists():
        raise SystemExit(
            f"{target} is there already. The files of a released version are never written again. If {cg.__version__} is not "
            "released yet, delete its folder first."
        )
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_saved_model(folder)
        write_frozen_graph(folder)
        write_meta_graph(folder)
        for file in ("keras.keras", "tf_keras.keras", "tf_keras.h5"):
            write_keras_model(folder, file)
        target.mkdir()
        with tarfile.open(target / "files.tar.xz", "w:xz") as archive:
            archive.add(folder, arcname=".", filter=anonymous)
    versions = {library.__name__: library.__version__ for library in (tf, keras, tf_keras)}
    (target / "written_by.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main()
