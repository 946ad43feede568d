"""The command line where the operating system, the reader of its output or a signal stops it."""

import os
import signal
import subprocess
import sys

import pytest
import tensorflow as tf

import tf_cg_ops as cg
import tf_cg_ops_cli
from tf_cg_ops._src import command_line


def heed_ctrl_c():
    """In the child, because a program that a shell starts in the background ignores the signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def model(tmp_path):
    module = tf.Module()
    module.f = tf.function(lambda x: cg.embed_gradient(tf.sign(x), x, x), input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(module, tmp_path / "model")
    return tmp_path / "model"


def test_a_link_to_nowhere_in_the_source_is_one_line(model, tmp_path, capsys):
    (model / "link").symlink_to(tmp_path / "nowhere")
    assert command_line.run(tf_cg_ops_cli.parse(["strip", str(model), str(tmp_path / "target")])) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == (
        f"tf_cg_ops strip: the operating system reports: No such file or directory: '{model / 'link'}'. Check that path, "
        "its permissions and the space on the disk."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_output_of_demo_is_a_file(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert command_line.run(tf_cg_ops_cli.parse(["demo", "--output", str(tmp_path / "file")])) == 1
    assert capsys.readouterr().err == (
        f"tf_cg_ops demo: the operating system reports: File exists: '{tmp_path / 'file'}'. Check that path, its "
        "permissions and the space on the disk.\n"
    )


COMMANDS = """
import sys, tf_cg_ops_cli
from tf_cg_ops._src import command_line
statuses = [command_line.run(tf_cg_ops_cli.parse(arguments.split())) for arguments in sys.argv[1:]]
sys.exit(statuses[0] if len(set(statuses)) == 1 else 99)
"""


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [("strip model target", "'target' is written"), ("inspect model", "the model is as it was")],
    ids=["strip", "inspect"],
)
def test_a_full_standard_output_is_told_from_a_failure(model, tmp_path, arguments, rest):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", COMMANDS, arguments]
        result = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"tf_cg_ops {arguments.split()[0]}: the output cannot be printed: No space left on device. Redirect it to another "
        f"place; {rest}."
    )
    assert (tmp_path / "target").is_dir() == (arguments.split()[0] == "strip")


def test_readers_that_have_enough_are_no_failure(model, tmp_path):
    """Of the output, and of the steps that are told beside it."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-c", COMMANDS, "inspect model", "strip model target"]
        result = subprocess.run(command, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        steps = subprocess.run(
            [*command[:3], "strip model second"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=write, check=False
        )
    finally:
        os.close(write)
    assert result.returncode == 0
    assert result.stderr.splitlines()[-1].startswith("checking: target")
    assert steps.returncode == 0
    assert steps.stdout.splitlines()[-1] == b"written    second"


def test_ctrl_c_while_tensorflow_is_imported_is_one_line(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tf_cg_ops_cli", "strip", "a", "b"]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=heed_ctrl_c,
    )
    assert (result.returncode, result.stdout, result.stderr) == (
        1,
        "",
        "tf_cg_ops strip: interrupted by Ctrl-C. Run it again; no command leaves a half-written target.\n",
    )


SIGNALLED = """
import os, runpy, signal, sys
from tf_cg_ops.saved_model import _compare_models
_compare_models.compare_models = lambda *_: os.kill(os.getpid(), getattr(signal, number))
number = sys.argv.pop(1)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("program", ["tf_cg_ops_cli", "tf_cg_ops"])
@pytest.mark.parametrize(("number", "name"), [("SIGTERM", "SIGTERM"), ("SIGINT", "Ctrl-C")])
def test_signals_that_end_the_program_leave_nothing_behind(model, tmp_path, number, name, program):
    command = [sys.executable, "-c", SIGNALLED, number, program, "strip", model, "target"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, preexec_fn=heed_ctrl_c)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        f"tf_cg_ops strip: interrupted by {name}. Run it again; no command leaves a half-written target."
    )
    assert list(tmp_path.iterdir()) == [model]
