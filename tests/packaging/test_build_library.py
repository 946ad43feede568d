"""The op library as a file: its symbols, its requirements, its hardening; and the commands that compile it."""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

import tf_cg_ops as cg
from build_ops import aarch64, compiler, cuda, sources

from ..support.processes import run_interpreter
from ..support.sources import ROOT

LIBRARY, WITH_CC = cg.sysconfig.get_library(), cg.sysconfig.get_library_with_cc()
# What both libraries need: TensorFlow's framework and the standard libraries.
NEEDED = {
    "libtensorflow_framework.so.2",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libc.so.6",
    "libm.so.6",
}
both_libraries = pytest.mark.parametrize("library", [LIBRARY, WITH_CC], ids=["library", "with_cc"])


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def symbols(kind, library=LIBRARY):
    """The names that the loader sees, with their versions."""
    return [line.split()[-1] for line in output_of("nm", "-D", kind, library).splitlines()]


def test_the_library_exports_only_what_python_calls():
    assert symbols("--defined-only") == [
        "tf_cg_ops_on_released_token",
        "tf_cg_ops_take_released_token",
        "tf_cg_ops_token_is_live",
        "tf_cg_ops_why_no_gpu_kernels",
    ]
    assert symbols("--defined-only", WITH_CC) == []


@both_libraries
def test_the_library_defines_no_name_reserved_by_glibc(library):
    assert b"__libc_single_threaded" not in pathlib.Path(library).read_bytes()


@both_libraries
def test_every_symbol_is_resolved_by_tensorflow_and_the_standard_libraries(library):
    """No rpath and no other library: the loader finds the one that TensorFlow has loaded by its name."""
    dynamic = output_of("readelf", "-dW", library)
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    # Thread-local variables in TensorFlow's headers need the loader, whose name depends on the machine.
    libraries = {library for library in libraries if not library.startswith("ld-linux")}
    assert libraries <= (NEEDED if library == LIBRARY else NEEDED | {"libtensorflow_cc.so.2"})
    assert "(RPATH)" not in dynamic
    assert "(RUNPATH)" not in dynamic


# The versions on the oldest systems with the tag manylinux_2_24, from PEP 600 and GCC's list of its library's versions.
OLDEST = {"GLIBC": (2, 24), "GLIBCXX": (3, 4, 22), "CXXABI": (1, 3, 10), "GCC": (7, 0, 0)}


@both_libraries
@pytest.mark.skipif(
    os.confstr("CS_GNU_LIBC_VERSION") > "glibc 2.36", reason="headers of newer C libraries ask for newer ones"
)
def test_the_library_runs_with_an_older_glibc_than_tensorflow(library):
    if library == LIBRARY and cg.sysconfig.gpu_kernels() != "the library was built without nvcc":
        pytest.skip("NVIDIA's runtime library needs a newer one")
    names = output_of("nm", "-D", "--undefined-only", library).split()
    versions = [re.fullmatch(r"(\w+?)_([\d.]+)", name.split("@")[-1]) for name in names]
    versions = {(match[1], tuple(map(int, match[2].split(".")))) for match in versions if match}
    assert {kind for kind, _ in versions} >= {"GLIBC", "GLIBCXX"}
    assert [(kind, version) for kind, version in versions if version > OLDEST[kind]] == []


LOAD_WITH_THE_FRAMEWORK_ALONE = """
import ctypes, pathlib, sys

library, framework = sys.argv[1:]
ctypes.CDLL(framework, ctypes.RTLD_GLOBAL)
ctypes.CDLL(library)
maps = pathlib.Path("/proc/self/maps").read_text()
assert "libtensorflow_framework" in maps and "libtensorflow_cc" not in maps
"""


def test_the_library_loads_with_the_framework_alone(tmp_path):
    """As TensorFlow's package for C has it."""
    framework = pathlib.Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    run_interpreter([sys.executable, "-c", LOAD_WITH_THE_FRAMEWORK_ALONE, LIBRARY, framework], tmp_path)


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/version"), reason="there is an NVIDIA driver")
def test_without_a_driver_it_says_so():
    toolkit, _ = cuda.find_toolkit()
    expected = "there is no NVIDIA driver" if toolkit else "the library was built without nvcc"
    assert cg.sysconfig.gpu_kernels() == expected


def test_the_library_is_hardened():
    """Relocated data is read-only before any code runs, nothing can be both written and executed, the stack is guarded."""
    assert "BIND_NOW" in output_of("readelf", "-dW", LIBRARY)
    segments = output_of("readelf", "-lW", LIBRARY)
    assert "GNU_RELRO" in segments
    flags = re.findall(r"^  (LOAD|GNU_STACK) +(?:0x\w+ +){5}([RWE ]{3})", segments, re.M)
    assert {kind for kind, _ in flags} == {"LOAD", "GNU_STACK"}
    assert [flag for _, flag in flags if "W" in flag and "E" in flag] == []
    assert "__stack_chk_fail" in {name.split("@")[0] for name in symbols("--undefined-only")}


def test_without_a_compiler_the_build_says_what_to_do(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -g")
    message = "the build found no C\\+\\+ compiler: 'no-such-compiler' is not on PATH\\. Install g\\+\\+ .* CXX=clang"
    with pytest.raises(SystemExit, match=message):
        compiler.find_compiler()
    monkeypatch.setenv("CXX", "sh -g")
    assert compiler.find_compiler()[-2:] == ["sh", "-g"]


@pytest.mark.parametrize(
    "written", ["{object}: {source} \\\n {header}\n", "{object} : {source} \\\n {header}\n"], ids=["gcc", "nvcc"]
)
def test_an_object_is_up_to_date_until_what_it_includes_changes(tmp_path, written):
    paths = {name: tmp_path / name for name in ("source", "header", "object")}
    for path in paths.values():
        path.touch()
    dependencies = tmp_path / "object.d"
    dependencies.write_text(written.format(**paths))
    assert compiler.is_up_to_date(paths["object"])
    later = paths["object"].stat().st_mtime + 10
    os.utime(paths["header"], (later, later))
    assert not compiler.is_up_to_date(paths["object"])


def test_only_flags_that_the_compiler_knows_are_passed(tmp_path):
    script = tmp_path / "compiler"
    script.write_text('#!/bin/sh\ncase "$*" in *clash*) exit 1;; esac\n')
    script.chmod(0o755)
    flags = compiler.hardening_flags([str(script)])
    assert "-fstack-protector-strong" in flags
    assert "-D_FORTIFY_SOURCE=2" in flags
    assert "-fstack-clash-protection" not in flags


@pytest.mark.slow
@pytest.mark.parametrize("unit", sources.UNITS)
def test_each_source_includes_what_it_uses(unit):
    """The build compiles the sources of a unit together, where one could rely on another's includes."""
    flags, _ = compiler.tensorflow_flags()
    for source in sources.units([*sources.SOURCES, *sources.SOURCES_WITH_CC])[unit]:
        command = [*compiler.find_compiler(), *flags, "-I.", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source]
        subprocess.run(command, cwd=ROOT, check=True)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which(aarch64.COMPILER) and shutil.which(aarch64.EMULATOR)), reason="make aarch64 says what is missing"
)
def test_both_libraries_build_for_another_kind_of_processor(capfd):
    aarch64.main()
    assert "both libraries compile, link and open for aarch64" in capfd.readouterr().out


def test_bazel_compiles_as_setup_py_does(monkeypatch, capsys):
    """As a script tells Bazel. It runs here, so that the compiler is asked only once which flags it knows."""
    hardening = compiler.hardening_flags(compiler.find_compiler())
    monkeypatch.setattr(compiler, "hardening_flags", lambda _: hardening)
    monkeypatch.setattr(sys, "path", [*sys.path])
    runpy.run_path(ROOT / "bazel" / "find_tensorflow.py")
    found = json.loads(capsys.readouterr().out)
    flags = tf.sysconfig.get_compile_flags()
    assert found["compile_flags"] == [*compiler.COMPILE_FLAGS, *hardening, *flags[1:]]
    assert [f"-I{found['headers']}"] == [flag for flag in flags if flag.startswith("-I")]
    assert [folder for folder in found["folders"] if not pathlib.Path(found["headers"], "..", folder).is_dir()] == []
    assert set(compiler.LINK_FLAGS) - set(found["link_flags"]) == {"-shared"}
    assert found["libraries"] == tf.sysconfig.get_link_flags()
    assert found["python"] == sys.executable
    assert found["build_info"] == (ROOT / "tf_cg_ops" / "_build_info.py").read_text()
