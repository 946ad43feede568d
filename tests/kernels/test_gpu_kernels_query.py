"""`sysconfig.gpu_kernels`, which says whether the CUDA kernels run in this process, or why not."""

import pathlib

import pytest

import tf_cg_ops as cg
from build_ops import compiler, cuda, sources

from ..support.processes import run_python

HAS_DRIVER = pathlib.Path("/proc/driver/nvidia/version").exists()


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver")
def test_without_a_driver_it_says_so():
    toolkit, _ = cuda.find_toolkit()
    expected = "there is no NVIDIA driver" if toolkit else "the library was built without nvcc"
    assert cg.sysconfig.gpu_kernels() == expected


def test_a_library_that_was_built_without_nvcc_says_so(tmp_path):
    library = tmp_path / "library.so"
    compiler.build_library(library, [*sources.WITHOUT_CUDA, *sources.SOURCES], None)
    code = """
import ctypes, sys
import tensorflow
why = ctypes.CDLL(sys.argv[1]).tf_cg_ops_why_no_gpu_kernels
why.restype = ctypes.c_char_p
print(why().decode())
"""
    assert run_python(code, library, cwd=tmp_path).stdout == "the library was built without nvcc\n"
