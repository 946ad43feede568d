"""strip and inspect on malformed folders and on targets in the way; and strip when it is killed."""

import contextlib
import os
import pathlib
import signal
import sys

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal

from ..support.processes import run_interpreter, run_python
from ..support.saved_models import contents


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([2], name="x")])
    def f(self, x):
        return {"y": cg.embed_gradient(tf.sign(x), x, x) + self.w}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("malformed") / "model"
    module = Model()
    tf.saved_model.save(module, folder, signatures=module.f)
    return folder


@pytest.fixture
def source(saved, tmp_path):
    """A copy of the model, alone in its folder."""
    for name, data in sorted(contents(saved).items()):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if data is None else path.write_bytes(data)
    return tmp_path / "source"


def tree(folder):
    """All that is there, without opening what is no file or no link to one."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def refused(action, error, text=""):
    """It raises one line of ours, and is not the end of the process."""
    with pytest.raises(error) as caught:
        action()
    message = str(caught.value)
    assert message.startswith(("saved_model.strip: ", "saved_model.inspect: ")), message
    assert "\n" not in message
    assert text in message, message


def both(source, tmp_path):
    return (lambda: cg.saved_model.strip(source, tmp_path / "target"), lambda: cg.saved_model.inspect(source))


def test_a_graph_that_is_cut_off_anywhere(source, tmp_path):
    """A message that ends early may be whole in itself: then it holds another model, which is stripped or refused."""
    file = source / "saved_model.pb"
    whole = file.read_bytes()
    messages, left = [], False
    for length in [*range(0, len(whole), 211), len(whole) - 1]:
        file.write_bytes(whole[:length])
        before = tree(source)
        for action in both(source, tmp_path):
            try:
                action()
            except (ValueError, FileNotFoundError) as error:
                messages.append(str(error))
                left |= (tmp_path / "target").exists()
        assert tree(source) == before
        assert [path.name for path in tmp_path.iterdir()] == ["source"], length
    assert not left
    assert all(message.startswith(("saved_model.strip: ", "saved_model.inspect: ")) for message in messages)
    assert len(messages) >= 2 * (len(whole) // 211)


@pytest.mark.parametrize("name", ["variables.index", "variables.data-00000-of-00001"])
def test_variables_that_are_cut_off(source, tmp_path, name):
    file = source / "variables" / name
    whole = file.read_bytes()
    for length in {0, 1, len(whole) // 2, len(whole) - 1}:
        file.write_bytes(whole[:length])
        before = tree(source)
        with contextlib.suppress(ValueError):  # Of the object graph at the end, TensorFlow may not read every byte.
            cg.saved_model.strip(source, tmp_path / f"target {length}")
        if length <= len(whole) // 2:
            refused(lambda: cg.saved_model.strip(source, tmp_path / "again"), ValueError, "cannot load the source '")
        assert tree(source) == before
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_function_that_tensorflow_makes_no_fingerprint_of(source, tmp_path):
    proto = saved_model_pb2.SavedModel.FromString((source / "saved_model.pb").read_bytes())
    functions = proto.meta_graphs[0].object_graph_def.concrete_functions
    functions["../.."].CopyFrom(functions[next(iter(functions))])
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())
    before = tree(source)
    refused(lambda: cg.saved_model.strip(source, tmp_path / "target"), ValueError, "`../..` does not end in an integer")
    assert tree(source) == before
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def change_functions(source, change):
    """Calls `change` with each function that holds an op of this library, and the node."""
    proto = saved_model_pb2.SavedModel.FromString((source / "saved_model.pb").read_bytes())
    for function in proto.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "CustomGradientEmbed":
                change(function, node)
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())


def call_itself(function, op):
    call = function.node_def.add(name="call", op=op, input=[function.signature.input_arg[0].name] * 2)
    if op == function.signature.name:
        return
    call.attr["f"].func.name = function.signature.name
    call.attr["Tin"].list.type.extend(argument.type for argument in function.signature.input_arg)
    call.attr["Tout"].list.type.extend(argument.type for argument in function.signature.output_arg)


@pytest.mark.parametrize("op", ["PartitionedCall", "StatefulPartitionedCall", None], ids=str)
def test_a_function_that_calls_itself(source, tmp_path, op):
    """TensorFlow would follow the calls without end, and overflow its stack."""
    change_functions(source, lambda function, _: call_itself(function, op or function.signature.name))
    for action in both(source, tmp_path):
        refused(action, ValueError, "calls itself")


def test_functions_that_call_each_other_in_a_row_are_none_that_call_themselves(tmp_path):
    module = tf.Module()
    spec = [tf.TensorSpec([2], name="x")]
    inner = tf.function(lambda x: cg.embed_gradient(tf.sign(x), x, x), input_signature=spec)
    module.f = tf.function(lambda x: inner(x) + inner(2.0 * x), input_signature=spec)
    tf.saved_model.save(module, tmp_path / "source", signatures=module.f)
    assert len(cg.saved_model.inspect(tmp_path / "source")) == 1
    assert cg.saved_model.strip(tmp_path / "source", tmp_path / "target").replaced == {"CustomGradientEmbed": 1}


@pytest.mark.parametrize("size", [4, 2**31 - 1, 2**63 - 1])
def test_a_list_that_is_longer_than_its_operation_has_inputs(source, tmp_path, size):
    """TensorFlow would take memory for each of them."""

    def lengthen(_, node):
        assert len(node.input) == 3
        node.attr["N"].i = size

    change_functions(source, lengthen)
    for action in both(source, tmp_path):
        refused(action, ValueError, f"(CustomGradientEmbed) with 3 inputs and an attribute 'N' of {size}")


def test_a_pipe_in_the_place_of_the_graph(source, tmp_path):
    """Opening it would wait for a writer that never comes."""
    (source / "saved_model.pb").unlink()
    os.mkfifo(source / "saved_model.pb")
    for action in both(source, tmp_path):
        refused(action, FileNotFoundError, "a folder without saved_model.pb")


@pytest.mark.parametrize("place", ["pipe", "variables/pipe", "variables/variables.index", "fingerprint.pb"])
def test_a_pipe_elsewhere_in_the_folder(source, tmp_path, place):
    path = source / place
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    before = tree(source)
    code = (
        "import sys\nimport tf_cg_ops as cg\ntry:\n    cg.saved_model.strip(*sys.argv[1:])\n"
        "except (OSError, ValueError) as error:\n    print(error)\n"
    )
    result = run_python(code, source, tmp_path / "target", cwd=tmp_path)
    assert f"'{path}'" in result.stdout
    assert tree(source) == before
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("kind", ["folder", "link to nowhere", "loop of links", "link to the folder"])
def test_a_folder_or_link_instead_of_the_graph_is_an_error(source, tmp_path, kind):
    file = source / "saved_model.pb"
    file.unlink()
    if kind == "folder":
        file.mkdir()
    else:
        file.symlink_to({"link to nowhere": "nowhere", "loop of links": file.name, "link to the folder": "."}[kind])
    for action in both(source, tmp_path):
        refused(action, FileNotFoundError, "a folder without saved_model.pb")


@pytest.mark.parametrize("kind", ["file", "link to nowhere", "loop of links"])
def test_a_file_or_link_instead_of_the_variables_is_an_error(source, tmp_path, kind):
    variables = source / "variables"
    for file in variables.iterdir():
        file.unlink()
    variables.rmdir()
    variables.touch() if kind == "file" else variables.symlink_to("nowhere" if kind != "loop of links" else "variables")
    refused(lambda: cg.saved_model.strip(source, tmp_path / "target"), FileNotFoundError, "variables.index")


def test_a_loop_of_links_in_the_place_of_the_source(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    for action in both(tmp_path / "one", tmp_path):
        refused(action, FileNotFoundError, "nothing there")


def test_a_folder_that_links_to_itself(source, tmp_path):
    """A copy of all that the source links to would have no end."""
    (source / "assets").mkdir(exist_ok=True)
    (source / "assets" / "loop").symlink_to("..")
    before = tree(source)
    with pytest.raises(OSError, match=r"[Ll]evels of symbolic links|File name too long|links") as caught:
        cg.saved_model.strip(source, tmp_path / "target")
    assert str(source) in str(caught.value)
    assert tree(source) == before
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_huge_file_with_nothing_in_it(source, tmp_path):
    """Larger than what a message of protobuf may be: refused without reading it into memory."""
    with open(source / "saved_model.pb", "r+b") as file:
        file.truncate(1 << 42)
    for action in both(source, tmp_path):
        refused(action, ValueError, "cannot be read")


@pytest.mark.parametrize(("size", "is_read"), [(2**31 - 1, True), (2**31, False)])
def test_the_largest_file_is_the_largest_message_of_protobuf(size, is_read, source, monkeypatch):
    with open(source / "saved_model.pb", "r+b") as file:
        file.truncate(size)
    paths = []
    monkeypatch.setattr(
        tf_internal, "parse_saved_model", lambda path: paths.append(path) or saved_model_pb2.SavedModel()
    )
    refused(lambda: cg.saved_model.inspect(source), ValueError, "cannot be read")
    assert paths == [str(source)] * is_read


def test_a_target_that_is_a_link_to_the_source_or_not_empty(source, tmp_path):
    (tmp_path / "link").symlink_to("source")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    before = tree(tmp_path)
    for name in ("link", "full"):
        refused(lambda name=name: cg.saved_model.strip(source, tmp_path / name), FileExistsError, "exists already")
    refused(lambda: cg.saved_model.strip(source, tmp_path / "link" / "target"), ValueError, "inside the source")
    assert tree(tmp_path) == before


LIMITED = """
import resource, signal, sys
import tf_cg_ops as cg
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    cg.saved_model.strip(*sys.argv[1:3])
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("room", [0, 100, 2000])
def test_no_room_to_write(source, tmp_path, room):
    before = tree(source)
    # It must print to a pipe: there is no room for a file, either.
    result = run_interpreter([sys.executable, "-c", LIMITED, source, tmp_path / "target", room], tmp_path)
    assert "File too large" in result.stdout
    assert tree(source) == before
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


STEPS = """
import os, pathlib, shutil, signal, sys
import tf_cg_ops as cg
from tf_cg_ops.saved_model import _folder, _strip_meta_graph

step, number = sys.argv[3:5]

def stops(module, name, after):
    before = getattr(module, name)
    def stopped(*args, **keywords):
        result = before(*args, **keywords) if after else None
        os.kill(os.getpid(), getattr(signal, number))
        return result if after else before(*args, **keywords)
    setattr(module, name, stopped)

stops(*{
    "before rewriting": (_strip_meta_graph, "strip_meta_graph", False),
    "before the first file": (shutil, "copytree", False),
    "between the files": (shutil, "copyfile", True),
    "before the graph": (pathlib.Path, "write_bytes", False),
    "after the graph": (_folder.tf_internal, "write_fingerprint", False),
    "before it is moved": (pathlib.Path, "rename", False),
}[step])
sys.argv[1:] = ["strip", *sys.argv[1:3]]
import runpy
runpy.run_module("tf_cg_ops", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("before rewriting", "SIGKILL"),
        ("before the first file", "SIGKILL"),
        ("between the files", "SIGKILL"),
        ("between the files", "SIGTERM"),
        ("before the graph", "SIGKILL"),
        ("after the graph", "SIGKILL"),
        ("before it is moved", "SIGKILL"),
        ("before it is moved", "SIGTERM"),
    ],
)
def test_killed_at_any_step_there_is_no_target(source, tmp_path, step, number):
    before = tree(source)
    result = run_python(STEPS, source, tmp_path / "target", step, number, cwd=tmp_path, check=False)
    assert result.returncode == (1 if number == "SIGTERM" else -signal.SIGKILL), result.stderr
    assert not (tmp_path / "target").exists()
    assert tree(source) == before
    left = [path.name for path in tmp_path.iterdir() if path.name != "source"]
    if number == "SIGTERM":
        assert left == []
    else:  # Nobody can clean up then: what is left is hidden, and in nobody's way.
        assert all(name.startswith(".target.") for name in left)
        cg.saved_model.strip(source, tmp_path / "target")
        assert pathlib.Path(tmp_path / "target" / "saved_model.pb").is_file()
