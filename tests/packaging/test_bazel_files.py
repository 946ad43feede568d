"""The files of Bazel, without Bazel: they list what setup.py builds, and the scripts in bazel/ say what setup.py does."""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import zipfile

import pytest
import tensorflow as tf

from build_ops import compiler, sources

from ..support.processes import run_python, run_script
from ..support.sources import ROOT, is_ours, source_files

BUILD = (ROOT / "BUILD").read_text()


@pytest.mark.parametrize("name", ["SOURCES", "SOURCES_WITH_CC", "CUDA_SOURCES", "WITHOUT_CUDA"])
def test_bazel_builds_the_sources_that_setup_py_builds(name):
    # Lists of Starlark are lists of Python.
    assert runpy.run_path(ROOT / "bazel" / "sources.bzl")[name] == list(getattr(sources, name))


def test_bazel_compiles_the_sources_together_that_setup_py_compiles_together():
    units = runpy.run_path(ROOT / "bazel" / "sources.bzl")["UNITS"]
    assert units == {name: list(folders) for name, folders in sources.UNITS.items()}


def test_no_source_is_listed_anywhere_else():
    for path in source_files("BUILD", "WORKSPACE", "*/BUILD", "bazel/*.bzl"):
        if path.name != "sources.bzl":
            assert re.findall(r'"[\w/]+\.(?:cc|cu)"', path.read_text()) == [], path


def test_no_flag_of_the_compiler_is_written_down_for_bazel():
    """They come from build_ops through the scripts."""
    for path in source_files("BUILD", "WORKSPACE", "*/BUILD", "bazel/*.bzl", "bazel/*.py"):
        assert re.findall(r'"(-[fDOWU][^"]*|--?std[^"]*|-l:\w+framework[^"]*)"', path.read_text()) == [], path


def test_the_tests_that_bazel_runs_are_there():
    names = re.findall(r'"(\w+/test_\w+)"', BUILD)
    assert len(names) > 4
    assert [name for name in names if not (ROOT / "tests" / f"{name}.py").is_file()] == []


def test_the_script_says_how_setup_py_compiles_with_this_tensorflow(tmp_path):
    found = json.loads(run_script(ROOT / "bazel" / "find_tensorflow.py", cwd=tmp_path).stdout)
    assert found["python"] == sys.executable
    assert (ROOT / "tf_cg_ops" / "_build_info.py").read_text() == found["build_info"]
    assert pathlib.Path(found["headers"], "tensorflow", "core", "public", "version.h").is_file()
    flags = tf.sysconfig.get_compile_flags()
    assert [f"-I{found['headers']}"] == [flag for flag in flags if flag.startswith("-I")]
    assert found["folders"][0] == "include"
    assert [folder for folder in found["folders"] if not pathlib.Path(found["headers"], "..", folder).is_dir()] == []
    hardening = compiler.hardening_flags(compiler.find_compiler())
    assert found["compile_flags"] == [*compiler.COMPILE_FLAGS, *hardening, *flags[1:]]
    assert set(compiler.LINK_FLAGS) - set(found["link_flags"]) == {"-shared"}
    assert found["libraries"] == tf.sysconfig.get_link_flags()


def test_without_tensorflow_the_script_says_what_to_do(tmp_path):
    code = """
import importlib.metadata, runpy, sys
def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = missing
runpy.run_path(sys.argv[1])
"""
    result = run_python(code, ROOT / "bazel" / "find_tensorflow.py", cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("tf_cg_ops: the build found no TensorFlow; expected one of tensorflow, ")


def test_the_script_finds_no_nvcc_where_there_is_none(tmp_path):
    result = run_script(ROOT / "bazel" / "find_nvcc.py", cwd=tmp_path, environment={"CUDA_HOME": str(tmp_path)})
    (note,) = json.loads(result.stdout).values()
    assert note.startswith(f"tf_cg_ops: no nvcc in CUDA_HOME={tmp_path}: building for the CPU")


def test_the_wheel_holds_the_libraries_that_it_is_given(tmp_path):
    """And nothing is compiled: the sources of C++ are not there."""
    (tmp_path / "_ops.so").write_bytes(b"a library")
    (tmp_path / "_ops_with_cc.so").write_bytes(b"another")
    (tmp_path / "wheel").mkdir()
    files = source_files("setup.py", "pyproject.toml", "README.md", "LICENSE", "build_ops/*.py", "tf_cg_ops/**/*")
    command = [ROOT / "bazel" / "build_wheel.py", tmp_path / "_ops.so", tmp_path / "wheel"]
    run_script(*command, *(str(path.relative_to(ROOT)) for path in files), cwd=ROOT)
    (wheel,) = (tmp_path / "wheel").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("tf_cg_ops/_ops.so") == b"a library"
        assert archive.read("tf_cg_ops/_ops_with_cc.so") == b"another"
        about = archive.read("tf_cg_ops/_build_info.py").decode()
    assert about == (ROOT / "tf_cg_ops" / "_build_info.py").read_text()


def test_links_of_bazel_are_no_source_files():
    assert not is_ours(ROOT / "bazel-bin" / "setup.py")
    assert is_ours(ROOT / "bazel" / "sources.bzl")


@pytest.mark.parametrize("target", ["bazel-test", "install-bazel"])
def test_the_targets_of_make_exist(target):
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_without_bazel_and_without_apt_make_says_what_to_do(tmp_path):
    for name in ("find", "id", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name))
    result = subprocess.run(
        [shutil.which("make"), "--no-print-directory", "install-bazel"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stdout == (
        "make: found no Bazel and cannot install it; expected bazel on PATH, or apt-get and the rights of root. "
        "On Debian and Ubuntu: sudo apt-get install bazel-bootstrap\n"
    )
