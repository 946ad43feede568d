"""Writes the files of this version, which every later version must read: `python -m tests.files.write`.

Run it before a release. Until the release you can delete the folder of the version and run it again, but not afterwards.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import tf_cg_ops as cg

from ..support.sources import ROOT
from . import functions, models
from .archive import HERE, pack
from .read import READERS

tf1 = tf.compat.v1
WRITERS = (tf, keras, tf_keras)
# Without variables, whose handles TensorFlow's own C++ gradients add up.
SIGNATURES = ("embed_axis", "embed_unstopped", "custom_gradient", "custom_vjp", "override_gradients")


def upstream(shape, seed):
    return np.random.default_rng(seed).normal(scale=3, size=shape).round(2)


def inputs_of_case(value, x):
    """The input of a case, and what its gradients are asked for."""
    return {"x": x.tolist(), "dy": upstream(np.shape(value(x)), 1).tolist(), "v": upstream(x.shape, 2).tolist()}


def inputs():
    """The cases of each file, without numbers."""
    cases = {name: inputs_of_case(case.value, functions.X) for name, case in functions.CASES.items()}
    of_functions = {}
    for name, case in functions.CASES.items():
        of_functions[name] = cases[name] | {"xla": case.xla} | ({"error": True} if case.error else {})
    of_models = {name: inputs_of_case(each.value, models.X) for name, each in models.OUTPUTS.items()}
    return {
        "saved_model": of_functions,
        "signatures": {name: cases[name] for name in SIGNATURES},
        "frozen": {"custom_gradient_with_variable": cases["custom_gradient_with_variable"]},
        "meta_graph": {"graph": cases["graph"]},
        **{file: {name: of_models[name] for name in models.names_in(file)} for file in models.FILES},
    }


def write_saved_model(folder):
    module = functions.model()
    options = tf.saved_model.SaveOptions(experimental_debug_stripper=True)
    signatures = {name: getattr(module, name) for name in SIGNATURES}
    tf.saved_model.save(module, folder / "saved_model", signatures=signatures, options=options)
    (folder / "saved_model" / "fingerprint.pb").unlink(missing_ok=True)


def write_frozen_graph(folder):
    function = tf.function(
        functions.CASES["custom_gradient_with_variable"].function,
        input_signature=[tf.TensorSpec([2, 3], tf.float64, "x")],
        autograph=False,
    )
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    graph_def = frozen.graph.as_graph_def()
    output = graph_def.node.add(name="y", op="Identity", input=[frozen.outputs[0].name])
    output.attr["T"].type = tf.float64.as_datatype_enum
    (folder / "frozen.pb").write_bytes(graph_def.SerializeToString(deterministic=True))


def write_meta_graph(folder):
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf.float64, [None, 3], "x")
        tf.identity(functions.CASES["graph"].function(x), "y")
        # With the attributes that have their defaults, which a SavedModel leaves out.
        tf1.train.export_meta_graph(str(folder / "graph.meta"), clear_devices=True)


def as_text(cases):
    """As JSON, a line for each case."""
    lines = {
        file: [f'"{name}": {json.dumps(case)}' for name, case in of_file.items()] for file, of_file in cases.items()
    }
    files = [f'"{file}": {{\n' + ",\n".join(of_file) + "\n}" for file, of_file in lines.items()]
    return "{\n" + ",\n".join(files) + "\n}\n"


def write(folder):
    """Writes the files and their numbers into an empty folder."""
    write_saved_model(folder)
    write_frozen_graph(folder)
    write_meta_graph(folder)
    for file in models.FILES:
        models.model(file).save(folder / file)
    cases = inputs()
    numbers = folder / "numbers.json"
    numbers.write_text(json.dumps(cases))
    command = [sys.executable, str(HERE / "read.py"), str(folder), *READERS]
    answer = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.PIPE)
    for file, answers in json.loads(answer.stdout.splitlines()[-1]).items():
        for name, ways in answers.items():
            cases[file][name] |= next(iter(ways.values()))
    numbers.write_text(as_text(cases))
    (folder / "written_by.json").write_text(json.dumps({each.__name__: each.__version__ for each in WRITERS}) + "\n")


def main():
    version = cg.__version__
    if (HERE / version).exists():
        raise SystemExit(
            f"{HERE / version} is there already. The files of a released version are never written again. If {version} is "
            "not released yet, delete its folder first."
        )
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder))
        pack(pathlib.Path(folder), version)


if __name__ == "__main__":
    main()
