"""The op library as a file: its symbols, its requirements, its hardening, and that every build gives the same bytes."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

import tf_cg_ops as cg
from build_ops import compiler, cuda, sources

from ..support.sources import ROOT, copy_sources

LIBRARY, WITH_CC = cg.sysconfig.get_lib(), cg.sysconfig.get_lib_with_cc()
# The libraries that both need: TensorFlow's framework and the standard libraries.
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


def test_the_library_with_cc_shows_no_symbol():
    assert symbols("--defined-only", WITH_CC) == []


@both_libraries
def test_the_library_defines_no_name_reserved_by_glibc(library):
    names = {name.split("@")[0] for name in symbols("--undefined-only", library)}
    assert "__libc_single_threaded" not in names
    assert b"__libc_single_threaded" not in pathlib.Path(library).read_bytes()


def test_no_symbol_of_cuda_is_left_to_the_loader():
    undefined = symbols("--undefined-only")
    assert [name for name in undefined if re.match(r"(__)?cu(da)?[A-Z]|__cuda|nv", name)] == []
    assert any(name.startswith("_ZN10tensorflow") for name in undefined)


@both_libraries
def test_every_symbol_is_resolved_by_tensorflow_and_the_standard_libraries(library):
    """No rpath and no other library: the one that TensorFlow has loaded already is found by its name."""
    dynamic = output_of("readelf", "-dW", library)
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    # The loader has what thread-local variables in TensorFlow's headers need; its name is that of the machine.
    libraries = {library for library in libraries if not library.startswith("ld-linux")}
    assert libraries <= (NEEDED if library == LIBRARY else NEEDED | {"libtensorflow_cc.so.2"})
    assert "(RPATH)" not in dynamic
    assert "(RUNPATH)" not in dynamic


# The versions on the oldest machines of the tag manylinux_2_24: PEP 600 and GCC's list of the versions of its library.
OLDEST = {"GLIBC": (2, 24), "GLIBCXX": (3, 4, 22), "CXXABI": (1, 3, 10), "GCC": (7, 0, 0)}


LOAD_WITH_THE_FRAMEWORK_ALONE = """
import ctypes, pathlib, sys

library, framework = sys.argv[1:]
ctypes.CDLL(framework, ctypes.RTLD_GLOBAL)
ctypes.CDLL(library)
maps = pathlib.Path("/proc/self/maps").read_text()
assert "libtensorflow_framework" in maps and "libtensorflow_cc" not in maps
print("loaded")
"""


def test_the_library_loads_with_the_framework_alone(tmp_path):
    """As TensorFlow's package for C has it."""
    framework = pathlib.Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    command = [sys.executable, "-c", LOAD_WITH_THE_FRAMEWORK_ALONE, LIBRARY, framework]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout == "loaded\n", result.stderr


@pytest.mark.skipif(
    os.confstr("CS_GNU_LIBC_VERSION") > "glibc 2.36", reason="headers of newer C libraries ask for newer ones"
)
def test_the_library_runs_with_an_older_glibc_than_tensorflow(tmp_path):
    """Built for CPUs, as it is published: the runtime of CUDA asks for newer machines."""
    compiler.build_library(tmp_path / "library.so", [*sources.WITHOUT_CUDA, *sources.SOURCES], None)
    names = output_of("nm", "-D", "--undefined-only", str(tmp_path / "library.so")).split()
    versions = [re.fullmatch(r"(\w+?)_([\d.]+)", name.split("@")[-1]) for name in names]
    versions = {(match[1], tuple(map(int, match[2].split(".")))) for match in versions if match}
    assert {kind for kind, _ in versions} >= {"GLIBC", "GLIBCXX"}
    assert [(kind, version) for kind, version in versions if version > OLDEST[kind]] == []


def test_relocated_data_is_read_only_before_any_code_runs():
    assert "BIND_NOW" in output_of("readelf", "-dW", LIBRARY)
    assert "GNU_RELRO" in output_of("readelf", "-lW", LIBRARY)


def test_nothing_can_be_both_written_and_executed():
    segments = re.findall(r"^  (LOAD|GNU_STACK) +(?:0x\w+ +){5}([RWE ]{3})", output_of("readelf", "-lW", LIBRARY), re.M)
    assert {kind for kind, _ in segments} == {"LOAD", "GNU_STACK"}
    assert [flags for _, flags in segments if "W" in flags and "E" in flags] == []


def test_the_stack_is_guarded():
    assert "__stack_chk_fail" in {name.split("@")[0] for name in symbols("--undefined-only")}


def test_without_a_compiler_the_build_says_what_to_do(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -g")
    with pytest.raises(
        SystemExit, match=r"expected g\+\+, or what the variable CXX names, got no program 'no-such-compiler'"
    ):
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
    assert compiler.is_up_to_date(paths["object"], dependencies)
    later = paths["object"].stat().st_mtime + 10
    os.utime(paths["header"], (later, later))
    assert not compiler.is_up_to_date(paths["object"], dependencies)


def test_only_flags_that_the_compiler_knows_are_passed(tmp_path):
    script = tmp_path / "compiler"
    script.write_text('#!/bin/sh\ncase "$*" in *clash*) exit 1;; esac\n')
    script.chmod(0o755)
    flags = compiler.hardening_flags([str(script)])
    assert "-fstack-protector-strong" in flags
    assert "-D_FORTIFY_SOURCE=2" in flags
    assert "-fstack-clash-protection" not in flags


def test_no_folder_of_the_machine_is_in_it():
    content = pathlib.Path(LIBRARY).read_bytes()
    for folder in (ROOT, pathlib.Path(tf.__file__).parent, pathlib.Path(sys.prefix)):
        assert str(folder).encode() not in content, folder
    assert b"include/tensorflow/core/framework" in content


def built_twice(chosen, toolkit, tmp_path, monkeypatch):
    """Libraries of the sources, built in two folders."""
    flags = compiler.tensorflow_flags()
    monkeypatch.setattr(compiler, "tensorflow_flags", lambda: flags)
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    libraries = []
    for name in ("here", "in another/folder"):
        monkeypatch.setattr(compiler, "ROOT", tmp_path / name)
        copy_sources(tmp_path / name, "cc/**/*", "cuda/**/*")
        libraries.append(tmp_path / name / "library.so")
        compiler.build_library(libraries[-1], chosen, toolkit)
    return [library.read_bytes() for library in libraries]


@pytest.mark.slow
@pytest.mark.parametrize("unit", sources.UNITS)
def test_each_source_includes_what_it_uses(unit):
    """The build compiles those of a unit together, where one may use what another one includes."""
    flags, _ = compiler.tensorflow_flags()
    for source in sources.units([*sources.SOURCES, *sources.SOURCES_WITH_CC])[unit]:
        command = [*compiler.find_compiler(), *flags, "-I.", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source]
        subprocess.run(command, cwd=ROOT, check=True)


@pytest.mark.slow
def test_builds_in_two_folders_give_the_same_bytes(tmp_path, monkeypatch):
    """Of some sources, each compiled twice; `make wheel` compares whole libraries."""
    chosen = ["cc/ops/custom_gradient_barrier_op.cc", "cc/lib/messages.cc", "cc/lib/alignment.cc"]
    one, other = built_twice(chosen, None, tmp_path, monkeypatch)
    assert one == other


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_nvcc_in_two_folders_gives_the_same_bytes(tmp_path, monkeypatch):
    """For one architecture."""
    toolkit, _ = cuda.find_toolkit()
    toolkit = dataclasses.replace(toolkit, architectures=toolkit.architectures[-1:])
    one, other = built_twice(["cuda/contraction.cu", "cuda/schedule.cc"], toolkit, tmp_path, monkeypatch)
    assert one == other
    assert b"cudaLaunchKernelEx" in one or b"MultiplyKernel" in one
