"""Files that each version wrote: their values, gradients and second derivatives are those of that version, and of NumPy.

A fresh process reads them, which has none of the functions that were saved, but for those of Keras models that are found
by their names.
"""

import importlib.metadata
import json
import re
import shutil
import zipfile

import numpy as np
import pytest
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tf_cg_ops._src.custom_gradient import rule_op, variable_reads
from tf_cg_ops._src.memory import checkpoint_name

from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.without_python import registered_ops
from . import functions, models
from .archive import HERE, unpack

VERSIONS = sorted(
    (path.parent.name for path in HERE.glob("*/numbers.json")), key=lambda name: [*map(int, name.split("."))]
)
READ = (HERE / "read.py").read_text()

GROUPS = {
    "tensorflow": ["saved_model", "signatures", "frozen", "meta_graph"],
    "keras": ["keras.keras"],
    "tf_keras": ["tf_keras.keras", "tf_keras.h5"],
}
# How close the numbers must be, of float64 and of the float32 of the models.
CLOSE = {
    "tensorflow": {"rtol": 1e-10, "atol": 1e-12},
    "keras": {"rtol": 1e-5, "atol": 1e-6},
    "tf_keras": {"rtol": 1e-5, "atol": 1e-6},
}

# They stand in no file: the first is made where a gradient is refused, the second belongs to a Python function.
NEVER_SAVED = {"CustomGradientRefusal", "CustomGradientToken"}


def numbers_of(version):
    return json.loads((HERE / version / "numbers.json").read_text())


def read(folder, files, cwd, **keywords):
    """The process that reads files: its last line has what they hold, by file, case and way."""
    return run_python(READ, folder, *files, cwd=cwd, environment={"PYTHONPATH": str(ROOT)}, **keywords)


def skip_if_too_old(group, version):
    """An older Keras does not know some arguments that a newer one writes for its own layers."""
    if group != "tensorflow":
        wrote = json.loads((HERE / version / "written_by.json").read_text())[group]
        here = importlib.metadata.version(group)
        if minor(here) < minor(wrote):
            pytest.skip(f"{group} {wrote} wrote the files, and here is the older {here}")


def minor(version):
    return [int(part) for part in version.split(".")[:2]]


def answers_in(result):
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where the files of each version are."""
    return {version: unpack(version, tmp_path_factory.mktemp(version)) for version in VERSIONS}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="module", params=GROUPS)
def group(request):
    return request.param


@pytest.fixture(scope="module")
def answers(version, group, folders, tmp_path_factory):
    skip_if_too_old(group, version)
    return answers_in(read(folders[version], GROUPS[group], tmp_path_factory.mktemp("read")))


@pytest.fixture
def copy(tmp_path, folders):
    """A copy of the newest files, to change."""
    return shutil.copytree(folders[VERSIONS[-1]], tmp_path / "copy")


def assert_close(found, expected, group):
    """Of one way: the text of the error, or value, gradients and second derivative as far as they were computed."""
    assert "error" in found or {"value", "gradients"} <= found.keys() <= {"value", "gradients", "second"}
    for key, actual in found.items():
        if key == "error":
            assert expected[key] in actual
        elif key == "gradients":
            for one, other in zip(actual, expected[key], strict=False):
                np.testing.assert_allclose(one, other, **CLOSE[group])
        else:
            np.testing.assert_allclose(actual, expected[key], **CLOSE[group])


def assert_all_close(answers, expected, group):
    for file, cases in answers.items():
        assert cases.keys() == expected[file].keys()
        for name, ways in cases.items():
            assert ways
            for way, found in ways.items():
                try:
                    assert_close(found, expected[file][name], group)
                except AssertionError as error:
                    raise AssertionError(f"{file}, {name}, {way}: {error}") from None


def test_the_numbers_are_those_of_the_version_that_wrote_the_files(answers, version, group):
    assert_all_close(answers, numbers_of(version), group)


def by_numpy(group, name, case):
    x, dy, v = (np.array(case[key]) for key in ("x", "dy", "v"))
    if group != "tensorflow":
        output = models.OUTPUTS[name]
        return {"value": output.value(x), "gradients": [output.gradient(x, dy), *output.of_weights(x, dy)]}
    of = functions.CASES[name]
    if of.error:
        return {"error": of.error}
    gradients = [of.gradient(x, dy), of.of_variable(x, dy)]
    return {"value": of.value(x), "gradients": gradients, "second": of.second(x, dy, v)}


def test_the_numbers_are_those_of_numpy(answers, version, group):
    numbers = numbers_of(version)
    expected = {
        file: {name: by_numpy(group, name, numbers[file][name]) for name in cases} for file, cases in answers.items()
    }
    assert_all_close(answers, expected, group)


def test_a_number_in_a_file_that_changed_is_noticed(copy, tmp_path):
    graph_def = graph_pb2.GraphDef.FromString((copy / "frozen.pb").read_bytes())
    bodies = [function.node_def for function in graph_def.library.function]
    constants = [node.attr["value"].tensor for body in bodies for node in body if node.op == "Const"]
    changed = [tensor for tensor in constants if list(tensor.double_val) == [3.0]]
    assert len(changed) == 1
    changed[0].double_val[:] = [3.001]
    (copy / "frozen.pb").write_bytes(graph_def.SerializeToString())
    answers = answers_in(read(copy, ["frozen", "meta_graph"], tmp_path))
    with pytest.raises(AssertionError, match=r"^frozen, custom_gradient_with_variable, session: "):
        assert_all_close(answers, numbers_of(VERSIONS[-1]), "tensorflow")


def test_a_name_that_changed_is_noticed(copy, tmp_path):
    """As if the library had another name for what the file holds."""
    data = (copy / "graph.meta").read_bytes()
    (copy / "graph.meta").write_bytes(data.replace(b"differentiated_inputs", b"differentiated_places"))
    result = read(copy, ["meta_graph"], tmp_path, check=False)
    assert result.returncode != 0
    assert "NodeDef missing attr 'differentiated_inputs' from Op<name=CustomGradientRule" in result.stderr


def bodies_in(folder):
    """The nodes of each graph and function in the files of a version."""
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model" / "saved_model.pb").read_bytes())
    meta_graph = meta_graph_pb2.MetaGraphDef.FromString((folder / "graph.meta").read_bytes())
    graph_defs = [each.graph_def for each in (*saved.meta_graphs, meta_graph)]
    for graph_def in (*graph_defs, graph_pb2.GraphDef.FromString((folder / "frozen.pb").read_bytes())):
        yield graph_def.node
        for function in graph_def.library.function:
            yield function.node_def


@pytest.fixture(scope="module")
def nodes(folders):
    return [node for folder in folders.values() for body in bodies_in(folder) for node in body]


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


@pytest.mark.parametrize("file", ["keras.keras", "tf_keras.keras"])
def test_every_name_that_keras_saves_is_in_a_file(file, folders):
    registered = {name for name in models.library_of(file).saving.get_custom_objects() if name.startswith("tf_cg_ops>")}
    kept = [set(re.findall(r"tf_cg_ops>[\w.]+", config_in(folder / file))) for folder in folders.values()]
    assert set.union(*kept) == registered


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_model_file_is_found_by_its_names_wherever_the_modules_are(library, copy, tmp_path):
    """Keras also saves the modules of the classes, which are private."""
    skip_if_too_old(library, VERSIONS[-1])
    file = f"{library}.keras"
    moved = config_in(copy / file).replace("tf_cg_ops._src.", "tf_cg_ops._moved.")
    assert moved != config_in(copy / file)
    with zipfile.ZipFile(copy / file) as old, zipfile.ZipFile(copy / "moved", "w") as new:
        for name in old.namelist():
            new.writestr(name, moved if name == "config.json" else old.read(name))
    (copy / "moved").rename(copy / file)
    assert_all_close(answers_in(read(copy, [file], tmp_path)), numbers_of(VERSIONS[-1]), library)
