"""Damaged models and interruptions of strip. Refused models and calls are in tests/messages, the check in test_compare."""

import pathlib
import shutil
import signal

import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _replace_ops

from ..support.processes import run_python
from ..support.saved_models import Model, ops_of, proto_of


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


def test_a_model_as_text_is_read_and_written_as_bytes(source, tmp_path):
    text = str(proto_of(source))
    (source / "saved_model.pb").unlink()
    (source / "saved_model.pbtxt").write_text(text)
    cg.saved_model.strip(source, tmp_path / "target", check=False)
    assert not [op for op in ops_of(tmp_path / "target") if op.startswith("CustomGradient")]
    assert not (tmp_path / "target" / "saved_model.pbtxt").exists()


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


def test_a_model_that_does_not_load_any_more_is_an_error(source, tmp_path, monkeypatch):
    outputs = dict(_replace_ops.OUTPUT_NAMES, CustomGradientRule="nonsense")
    monkeypatch.setattr(_replace_ops, "OUTPUT_NAMES", outputs)
    with pytest.raises(RuntimeError, match=r"^saved_model\.strip: the new model must load like the source, got "):
        cg.saved_model.strip(source, tmp_path / "target")
    assert list(tmp_path.iterdir()) == [source]
