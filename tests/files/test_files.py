"""Files that each version wrote still have the values, gradients and second derivatives that NumPy computes.

A fresh process reads them. It does not have the saved functions, except the ones that Keras models find by name.
"""

import importlib
import json
import re
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tf_cg_ops._src.custom_gradient import rule_op, variable_reads
from tf_cg_ops._src.memory import checkpoint_name

from ..support.processes import run_python
from ..support.saved_models import gradient
from ..support.sources import ROOT
from ..support.without_python import registered_ops
from . import contents
from .write import HERE

VERSIONS = sorted((path.parent.name for path in HERE.glob("*/written_by.json")), key=lambda name: name.split("."))
FILES = ["saved_model", "graphs", "keras.keras", "tf_keras.keras", "tf_keras.h5"]
V = contents.upstream(contents.X.shape, 2)
TABLES = {"functions": contents.FUNCTIONS, "outputs": contents.OUTPUTS}
DYS = {
    kind: {name: contents.upstream(np.shape(row[1](contents.X)), 1) for name, row in table.items()}
    for kind, table in TABLES.items()
}

# They stand in no file: the first is made where a gradient is refused, the second belongs to a Python function.
NEVER_SAVED = {"CustomGradientRefusal", "CustomGradientToken"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where the files of each version are, with the inputs for the reader."""
    found = {version: tmp_path_factory.mktemp(version) for version in VERSIONS}
    dys = {kind: {name: dy.tolist() for name, dy in of_kind.items()} for kind, of_kind in DYS.items()}
    for version, folder in found.items():
        with tarfile.open(HERE / version / "files.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        (folder / "inputs.json").write_text(json.dumps([contents.X.tolist(), V.tolist(), dys, contents.HELD]))
    return found


def minor(version):
    return [int(part) for part in version.split(".")[:2]]


def skip_if_too_old(library, version):
    """An older Keras does not know some arguments that a newer one writes for its own layers."""
    wrote = json.loads((HERE / version / "written_by.json").read_text())[library]
    if minor(importlib.import_module(library).__version__) < minor(wrote):
        pytest.skip(f"{library} {wrote} wrote the files, and here is an older one")


def read(folder, file, cwd):
    code = (HERE / "read.py").read_text()
    return run_python(code, folder, file, cwd=cwd, environment={"PYTHONPATH": str(ROOT)})


def assert_right(result, kind):
    """What the reader printed, for each way of reading, is as close to NumPy as its dtype allows."""
    close = {"rtol": 1e-10, "atol": 1e-11} if kind == "functions" else {"rtol": 1e-5, "atol": 1e-5}
    for way, found in json.loads(result.stdout.splitlines()[-1]).items():
        assert found
        for name, (value, gradients, *second) in found.items():
            _, of_value, of_gradients, *of_second = TABLES[kind][name]
            expected = of_gradients(contents.X, DYS[kind][name])
            pairs = [(value, of_value(contents.X)), *zip(gradients, expected, strict=False)]
            if second and of_second[0]:
                pairs.append((second[0], of_second[0](contents.X, DYS[kind][name], V)))
            for i, (one, other) in enumerate(pairs):
                np.testing.assert_allclose(
                    np.reshape(one, np.shape(other)), other, **close, err_msg=f"{way}, {name}, {i}"
                )


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_has_the_values_and_derivatives_of_numpy(version, file, folders, tmp_path):
    if "keras" in file:
        skip_if_too_old(file.partition(".")[0], version)
    kind = "outputs" if "keras" in file else "functions"
    assert_right(read(folders[version], file, tmp_path), kind)


def test_a_gradient_that_could_not_be_traced_is_an_error(folders):
    model = tf.saved_model.load(folders[VERSIONS[-1]] / "saved_model")
    with pytest.raises(RuntimeError, match="the gradient of 'untraceable' is not in this file"):
        gradient(model.untraceable, contents.X, contents.X)


@pytest.fixture(scope="module")
def nodes(folders):
    """All nodes of the graphs and functions in the files of all versions."""
    found = []
    for folder in folders.values():
        saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model" / "saved_model.pb").read_bytes())
        meta_graph = meta_graph_pb2.MetaGraphDef.FromString((folder / "graph.meta").read_bytes())
        frozen = graph_pb2.GraphDef.FromString((folder / "frozen.pb").read_bytes())
        for graph_def in (*(each.graph_def for each in (*saved.meta_graphs, meta_graph)), frozen):
            for body in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
                found += body
    return found


def test_every_op_and_attribute_is_in_a_file(nodes):
    """So the other tests notice each name that changes. For a new one, write the files of the next version."""
    kept = {}
    for node in nodes:
        if node.op.startswith("CustomGradient"):
            kept.setdefault(node.op, set()).update(name for name in node.attr if not name.startswith("_"))
    definitions = {name: op for name, op in registered_ops().items() if name.startswith("CustomGradient")}
    registered = {name: {attribute.name for attribute in op.attr} for name, op in definitions.items()}
    assert kept == {name: attributes for name, attributes in registered.items() if name not in NEVER_SAVED}


def test_every_mark_of_the_library_is_in_a_file(nodes):
    """For the pass that prunes gradients, for what to keep of a recomputation, and for the audit."""
    ours = re.compile("_tf_cg_ops|_custom_gradient")
    kept = {name for node in nodes for name in node.attr if ours.match(name)}
    assert kept == {variable_reads._OF_RULE, checkpoint_name._ATTRIBUTE, rule_op._API}


def config_in(path):
    with zipfile.ZipFile(path) as archive:
        return archive.read("config.json").decode()


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_every_name_that_keras_saves_is_in_a_file(library, folders):
    custom_objects = contents.library_of(library)[0].saving.get_custom_objects()
    kept = [set(re.findall(r"tf_cg_ops>[\w.]+", config_in(each / f"{library}.keras"))) for each in folders.values()]
    assert set.union(*kept) == {name for name in custom_objects if name.startswith("tf_cg_ops>")}


def test_a_model_file_is_found_by_its_names_wherever_the_modules_are(folders, tmp_path):
    """Keras also saves the modules of the classes, which are private."""
    skip_if_too_old("keras", VERSIONS[-1])
    copy = shutil.copytree(folders[VERSIONS[-1]], tmp_path / "copy")
    moved = config_in(copy / "keras.keras").replace("tf_cg_ops._src.", "tf_cg_ops._moved.")
    assert moved != config_in(copy / "keras.keras")
    with zipfile.ZipFile(copy / "keras.keras") as old, zipfile.ZipFile(copy / "moved", "w") as new:
        for name in old.namelist():
            new.writestr(name, moved if name == "config.json" else old.read(name))
    (copy / "moved").rename(copy / "keras.keras")
    assert_right(read(copy, "keras.keras", tmp_path), "outputs")
