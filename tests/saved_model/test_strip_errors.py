"""Files in the way and interruptions of strip. Refused models are in tests/messages, the check is in test_compare."""

import os
import signal

import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _replace_ops

from ..support.processes import run_python
from ..support.saved_models import Model, contents, ops_of, proto_of


@pytest.fixture
def source(tmp_path):
    """A model, alone in its folder."""
    module = Model()
    tf.saved_model.save(module, tmp_path / "source", signatures=module.f)
    return tmp_path / "source"


def test_a_model_as_text_is_read_and_written_as_bytes(source, tmp_path):
    text = str(proto_of(source))
    (source / "saved_model.pb").unlink()
    (source / "saved_model.pbtxt").write_text(text)
    cg.saved_model.strip(source, tmp_path / "target", check=False)
    assert not [op for op in ops_of(tmp_path / "target") if op.startswith("CustomGradient")]
    assert not (tmp_path / "target" / "saved_model.pbtxt").exists()


@pytest.mark.parametrize("place", ["pipe", "variables/pipe", "variables/variables.index", "fingerprint.pb"])
def test_a_pipe_elsewhere_in_the_folder(place, source, tmp_path):
    """It must not wait for one."""
    (source / place).unlink(missing_ok=True)
    os.mkfifo(source / place)
    with pytest.raises((OSError, ValueError), match=f"'{source / place}'"):
        cg.saved_model.strip(source, tmp_path / "target")
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
    before = contents(source)
    result = run_python(KILLED, source, tmp_path / "target", cwd=tmp_path, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert contents(source) == before
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
