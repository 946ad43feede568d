"""Failures of strip and inspect (malformed folders, targets that exist, wrong inputs) leave nothing behind."""

import os
import pathlib
import re
import shutil
import signal

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal
from tf_cg_ops.saved_model import _changed_copy, _replace_ops

from ..support.processes import run_python
from ..support.saved_models import break_values, ops_of, proto_of, save_and_strip
from .test_strip_kinds import add_table


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def f(self, x):
        h = cg.custom_gradient(lambda x: (tf.sign(x) * 2.0, lambda dy: dy))(x)
        return {"y": cg.embed_gradient(h, x, x) + self.w}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    module = Model()
    tf.saved_model.save(module, folder, signatures=module.f)
    return folder


@pytest.fixture
def source(saved, tmp_path):
    """A copy of the model, alone in its folder."""
    return pathlib.Path(shutil.copytree(saved, tmp_path / "source"))


def tree(folder):
    """Everything in the folder, without opening special files; None if the folder is missing."""
    paths = folder.rglob("*") if folder.is_dir() else None
    return paths and {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in paths
    }


def assert_fails(error, message, source, target, **keywords):
    """Raises exactly this, and changes nothing next to the source and the target."""
    before = tree(target.parent)
    with pytest.raises(error) as caught:
        cg.saved_model.strip(source, target, **keywords)
    assert str(caught.value) == message
    assert tree(target.parent) == before


def refused(source, error, text, functions=("strip", "inspect")):
    """Each raises one line of ours, and leaves the process alive and all files unchanged."""
    before = tree(source.parent)
    for function in functions:
        with pytest.raises(error) as caught:
            getattr(cg.saved_model, function)(source, *[source.with_name("new")][: function == "strip"])
        message = str(caught.value)
        assert message.startswith(f"saved_model.{function}: "), message
        assert "\n" not in message
        assert text in message, message
    assert tree(source.parent) == before


# Places


EXISTS = "the target '{}' exists already. Name another path, or remove it first."
INSIDE = "the target '{}' lies inside the source. Name a path outside of it."
NO_PARENT = "'{}', the parent of the target, is not a folder. Make it first."
NOTHING = "'{}' must be a folder with saved_model.pb, got {}. Pass the folder that tf.saved_model.save wrote."
# The source and the target, the error and its message.
PLACES = [
    ("source", "a folder", FileExistsError, EXISTS.format("a folder")),
    ("source", "a file", FileExistsError, EXISTS.format("a file")),
    ("source", "to nowhere", FileExistsError, EXISTS.format("to nowhere")),
    ("source", "source", FileExistsError, EXISTS.format("source")),
    ("source", "source/assets/target", ValueError, INSIDE.format("source/assets/target")),
    ("source", "link/target", ValueError, INSIDE.format("link/target")),
    ("source", "no/target", FileNotFoundError, NO_PARENT.format("no")),
    ("no", "target", FileNotFoundError, NOTHING.format("no", "a path that does not exist")),
    ("a file", "target", NotADirectoryError, NOTHING.format("a file", "a file")),
    ("loop", "target", FileNotFoundError, NOTHING.format("loop", "a path that does not exist")),
]


def test_places_in_the_way_or_missing(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a folder").mkdir()
    pathlib.Path("a file").touch()
    for link, place in (("to nowhere", "nowhere"), ("link", "source"), ("loop", "other"), ("other", "loop")):
        pathlib.Path(link).symlink_to(place)
    for model, target, error, message in PLACES:
        assert_fails(error, f"saved_model.strip: {message}", pathlib.Path(model), pathlib.Path(target))
    refused(tmp_path / "loop", FileNotFoundError, "got a path that does not exist", ["inspect"])


# The graph


def instead_of_the_graph(make):
    def change(source):
        (source / "saved_model.pb").unlink()
        make(source / "saved_model.pb")

    return change


def in_the_graph(make):
    """Calls `make` with the meta graph, the function with an op of `embed_gradient`, and its node."""

    def change(source):
        proto = proto_of(source)
        (meta_graph,) = proto.meta_graphs
        functions = meta_graph.graph_def.library.function
        for function, node in [(f, n) for f in functions for n in f.node_def if n.op == "CustomGradientEmbed"]:
            make(meta_graph, function, node)
        (source / "saved_model.pb").write_bytes(proto.SerializeToString())

    return change


def name_a_function_that_has_no_fingerprint(meta_graph, *_):
    functions = meta_graph.object_graph_def.concrete_functions
    functions["../.."].CopyFrom(functions[next(iter(functions))])


def call_itself(op):
    def change(_, function, __):
        signature = function.signature
        call = function.node_def.add(name="call", op=op or signature.name, input=[signature.input_arg[0].name] * 2)
        if op:
            call.attr["f"].func.name = signature.name
            call.attr["Tin"].list.type.extend(argument.type for argument in signature.input_arg)
            call.attr["Tout"].list.type.extend(argument.type for argument in signature.output_arg)

    return change


def lengthen(size):
    def change(_, __, node):
        assert len(node.input) == 3
        node.attr["N"].i = size

    return change


def rename_a_shard(source):
    (shard,) = (source / "variables").glob("variables.data-*")
    shard.rename(source / "variables" / "variables.data-00000-of-00002")


NO_GRAPH = "must be a folder with saved_model.pb, got a folder without saved_model.pb"
LIST_OF = "(CustomGradientEmbed) with 3 inputs and an attribute 'N' of "
# A change, and a part of the message. Without our checks, opening a pipe would wait for ever, TensorFlow would follow
# calls until its stack overflows, and it would allocate memory for each input of a list.
MALFORMED = {
    "no graph": (instead_of_the_graph(lambda file: None), NO_GRAPH),
    "pipe": (instead_of_the_graph(os.mkfifo), NO_GRAPH),
    "folder": (instead_of_the_graph(os.mkdir), NO_GRAPH),
    "link to nowhere": (instead_of_the_graph(lambda file: file.symlink_to("nowhere")), NO_GRAPH),
    "loop of links": (instead_of_the_graph(lambda file: file.symlink_to(file.name)), NO_GRAPH),
    "link to the folder": (instead_of_the_graph(lambda file: file.symlink_to(".")), NO_GRAPH),
    "no fingerprint": (in_the_graph(name_a_function_that_has_no_fingerprint), "`../..` does not end in an integer"),
    "missing shard": (
        rename_a_shard,
        "variables' must contain the values of the variables, but variables.data-00001-of-00002 is missing",
    ),
    "list": (in_the_graph(lengthen(4)), f"{LIST_OF}4"),
    "list of 32 bits": (in_the_graph(lengthen(2**31 - 1)), f"{LIST_OF}{2**31 - 1}"),
    "list of 64 bits": (in_the_graph(lengthen(2**63 - 1)), f"{LIST_OF}{2**63 - 1}"),
    "call": (in_the_graph(call_itself(None)), "calls itself"),
    "PartitionedCall": (in_the_graph(call_itself("PartitionedCall")), "calls itself"),
    "StatefulPartitionedCall": (in_the_graph(call_itself("StatefulPartitionedCall")), "calls itself"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_model_is_refused(source, name):
    change, text = MALFORMED[name]
    change(source)
    error = FileNotFoundError if text == NO_GRAPH or name == "missing shard" else ValueError
    refused(source, error, text, ["strip"] if name in ("no fingerprint", "missing shard") else ["strip", "inspect"])


def test_a_graph_that_is_cut_off_anywhere(source, tmp_path):
    """If the part is a complete message, it has another model, which is stripped or refused."""
    file = source / "saved_model.pb"
    whole = file.read_bytes()
    incomplete = f"saved_model.strip: '{file}' must be a complete SavedModel, got "
    messages = []
    for length in [*range(0, len(whole), 601), len(whole) - 1]:
        file.write_bytes(whole[:length])
        before = tree(tmp_path)
        for function, target in ((cg.saved_model.strip, [tmp_path / "target"]), (cg.saved_model.inspect, [])):
            try:
                function(source, *target)
            except (ValueError, FileNotFoundError) as error:
                messages.append(str(error))
        assert tree(tmp_path) == before, length
    assert messages[0] == f"{incomplete}one without graphs. Perhaps it is damaged: save or copy the model again."
    assert messages[-2].startswith(f"{incomplete}Error parsing message with type 'tensorflow.SavedModel'")
    assert messages[-2].endswith(". Perhaps it is damaged: save or copy the model again.")
    assert all(message.startswith(("saved_model.strip: ", "saved_model.inspect: ")) for message in messages)
    assert len(messages) >= 2 * (len(whole) // 601)


def test_a_chain_of_calls_is_not_taken_for_a_cycle(tmp_path):
    module = tf.Module()
    spec = [tf.TensorSpec([2], name="x")]
    inner = tf.function(lambda x: cg.embed_gradient(tf.sign(x), x, x), input_signature=spec)
    module.f = tf.function(lambda x: inner(x) + inner(2.0 * x), input_signature=spec)
    assert save_and_strip(module, tmp_path, signatures=module.f).replaced == {"CustomGradientEmbed": 1}
    assert len(cg.saved_model.inspect(tmp_path / "source")) == 1


@pytest.mark.parametrize(("size", "is_read"), [(2**31 - 1, True), (2**31, False), (2**42, False)])
def test_the_largest_file_is_the_largest_message_of_protobuf(size, is_read, source, monkeypatch):
    """Larger files are refused before they are read into memory."""
    with open(source / "saved_model.pb", "r+b") as file:
        file.truncate(size)
    paths, nothing = [], saved_model_pb2.SavedModel()
    monkeypatch.setattr(tf_internal, "parse_saved_model", lambda path: paths.append(path) or nothing)
    refused(source, ValueError, "must be a complete SavedModel, got ")
    assert paths == [str(source)] * 2 * is_read


def test_a_model_as_text_is_read_and_written_as_bytes(source, tmp_path):
    text = str(proto_of(source))
    (source / "saved_model.pb").unlink()
    (source / "saved_model.pbtxt").write_text(text)
    cg.saved_model.strip(source, tmp_path / "target", check=False)
    assert not [op for op in ops_of(tmp_path / "target") if op.startswith("CustomGradient")]
    assert not (tmp_path / "target" / "saved_model.pbtxt").exists()


# Variables and other files


MISSING = (
    "saved_model.strip: '{1}' must contain the values of the variables, but {0} is missing. Copy the whole folder of the "
    "SavedModel."
)


def test_variables_that_are_missing(source, tmp_path):
    """One file, all files, or the folder is missing; or something else has the name of the folder."""
    folder = source / "variables"
    for file in list(folder.iterdir()):
        file.rename(source / file.name)
        assert_fails(FileNotFoundError, MISSING.format(file.name, folder), source, tmp_path / "target")
        (source / file.name).rename(file)
    for file in folder.iterdir():
        file.unlink()
    message = MISSING.format("variables.index", folder)
    assert_fails(FileNotFoundError, message, source, tmp_path / "target")
    folder.rmdir()
    to_nowhere, to_itself = (lambda: folder.symlink_to("nowhere")), (lambda: folder.symlink_to(folder.name))
    for make in (lambda: None, folder.touch, to_nowhere, to_itself):
        folder.unlink(missing_ok=True)
        make()
        assert_fails(FileNotFoundError, message, source, tmp_path / "target")


CANNOT_LOAD = (
    r"saved_model\.strip: TensorFlow cannot load '{}': [^\n]+\. First import the packages that register missing ops; if the "
    r"file was changed, save or copy the model again\."
)


@pytest.mark.parametrize("name", ["variables.index", "variables.data-00000-of-00001"])
def test_variables_that_are_cut_off(source, tmp_path, name):
    """Only running the model shows it."""
    file = source / "variables" / name
    whole = file.read_bytes()
    for length in (0, len(whole) // 2):
        file.write_bytes(whole[:length])
        before = tree(source)
        with pytest.raises(ValueError, match=f"^{CANNOT_LOAD.format(re.escape(str(source)))}$"):
            cg.saved_model.strip(source, tmp_path / "target")
        assert list(tmp_path.iterdir()) == [source]
        assert tree(source) == before
    assert cg.saved_model.strip(source, tmp_path / "unchecked", check=False).comparisons is None


def test_an_asset_that_is_missing(tmp_path):
    module = Model()
    add_table(module, tmp_path)
    module.g = tf.function(module.table.lookup, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, tmp_path / "source")
    (tmp_path / "source" / "assets" / "words.txt").unlink()
    with pytest.raises(ValueError, match=r"^saved_model\.strip: TensorFlow cannot load .*words\.txt"):
        cg.saved_model.strip(tmp_path / "source", tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "words.txt"]


PIPES = """
import os, pathlib, sys
import tf_cg_ops as cg
source, target = map(pathlib.Path, sys.argv[1:])
for place in ("pipe", "variables/pipe", "variables/variables.index", "fingerprint.pb"):
    before = (source / place).read_bytes() if (source / place).exists() else None
    (source / place).unlink(missing_ok=True)
    os.mkfifo(source / place)
    try:
        cg.saved_model.strip(source, target)
    except (OSError, ValueError) as error:
        assert f"'{source / place}'" in str(error), error
    else:
        raise AssertionError(place)
    (source / place).unlink()
    if before is not None:
        (source / place).write_bytes(before)
"""


def test_a_pipe_elsewhere_in_the_folder(source, tmp_path):
    run_python(PIPES, source, tmp_path / "target", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == [source]


def test_a_folder_that_links_to_itself(source, tmp_path):
    """Copying everything that the source links to would never end."""
    (source / "assets").mkdir(exist_ok=True)
    (source / "assets" / "loop").symlink_to("..")
    before = tree(tmp_path)
    with pytest.raises(OSError, match=r"[Ll]evels of symbolic links|File name too long|links") as caught:
        cg.saved_model.strip(source, tmp_path / "target")
    assert str(source) in str(caught.value)
    assert tree(tmp_path) == before


def test_the_copy_of_a_read_only_model_is_writable_by_its_owner(source, tmp_path):
    """The copy is moved to the target, and only the superuser can move a read-only folder."""
    source.chmod(0o755)
    cg.saved_model.strip(source, tmp_path / "once", check=False)
    assert (tmp_path / "once").stat().st_mode == source.stat().st_mode
    for model, target in ((source, "of a model"), (tmp_path / "once", "of a copy")):
        for path in (*model.rglob("*"), model):
            path.chmod(path.stat().st_mode & 0o555)
        cg.saved_model.strip(model, tmp_path / target, check=False)
        assert (tmp_path / target).stat().st_mode & 0o700 == 0o700
        model.chmod(0o755)


# Interruptions

KILLED = """
import os, pathlib, signal, sys
import tf_cg_ops as cg
pathlib.Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cg.saved_model.strip(*sys.argv[1:])
"""


def test_killed_before_it_is_moved_there_is_no_target(source, tmp_path):
    before = tree(source)
    result = run_python(KILLED, source, tmp_path / "target", cwd=tmp_path, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert tree(source) == before
    (left,) = [path.name for path in tmp_path.iterdir() if path.name != "source"]
    assert left.startswith(".target.")  # A killed process cannot clean up. What it leaves is hidden and blocks nothing.
    cg.saved_model.strip(source, tmp_path / "target", check=False)
    assert (tmp_path / "target" / "saved_model.pb").is_file()


def test_an_interrupted_strip_leaves_nothing_behind(source, tmp_path, monkeypatch):
    def copy_half(api, source, target, proto):
        target.mkdir()
        (target / "half").touch()
        raise error

    monkeypatch.setattr(_changed_copy, "_copy", copy_half)
    for error in (KeyboardInterrupt, MemoryError, OSError):
        with pytest.raises(error):
            cg.saved_model.strip(source, tmp_path / "target")
        assert list(tmp_path.iterdir()) == [source]


# The check


def test_other_outputs_are_an_error_and_leave_no_target(source, tmp_path, monkeypatch):
    break_values(monkeypatch)
    message = (
        r"^saved_model\.strip: the new model must have the same values, got values of serving_default: different by "
    )
    before = tree(tmp_path)
    with pytest.raises(RuntimeError, match=message):
        cg.saved_model.strip(source, tmp_path / "target")
    assert tree(tmp_path) == before
    report = cg.saved_model.strip(source, tmp_path / "unchecked", check=False)
    assert report.comparisons is None
    assert (tmp_path / "unchecked").is_dir()


def test_wrong_variables_are_seen(tmp_path, monkeypatch):
    """A step without outputs, whose effect alone differs."""
    module = tf.Module()
    module.w = tf.Variable([0.0, 0.0])

    def step(x):
        module.w.assign_add(cg.embed_gradient(tf.sign(x), x, x * 3.0))

    module.step = tf.function(step, input_signature=[tf.TensorSpec([2])])
    break_values(monkeypatch)
    with pytest.raises(RuntimeError, match=r"^saved_model\.strip: .* got values of \.step: different .*\(variable 0\)"):
        save_and_strip(module, tmp_path)
    assert not (tmp_path / "target").exists()


def test_a_model_that_does_not_load_any_more_is_an_error(source, tmp_path, monkeypatch):
    outputs = dict(_replace_ops.OUTPUT_NAMES, CustomGradientRule="nonsense")
    monkeypatch.setattr(_replace_ops, "OUTPUT_NAMES", outputs)
    with pytest.raises(RuntimeError, match=r"^saved_model\.strip: the new model must load like the source, got "):
        cg.saved_model.strip(source, tmp_path / "target")
    assert list(tmp_path.iterdir()) == [source]
