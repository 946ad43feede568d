"""The arithmetic of `cc/lib`, called without TensorFlow: with any vectors, at any address, cut into any pieces."""

import ctypes
import functools
import mmap
import os
import pathlib
import subprocess
import tempfile

import numpy as np

from build_ops import compiler

from .sources import ROOT

KINDS = ("baseline", "avx2", "avx512")

_ROLES = ("fx", "gx", "x")

# dtype, rank, shapes, wrt, lhs, rhs, out.
C_ARGUMENTS = [
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int,
    *[ctypes.c_void_p] * 3,
]


def compile_library(sources, *flags, folder):
    """A shared library of `cc/lib`, with the objects of the build, and of other C++ sources, which get more flags."""
    gxx = compiler.find_compiler()
    commands = compiler.compile_commands(gxx, compiler.tensorflow_flags()[0])
    objects = [compiler.compile_source(commands, source) for source in CC_LIB]
    for source in sources:
        objects.append(pathlib.Path(folder) / (str(source).replace("/", "-") + ".o"))
        options = ["-x", "c++", "-std=c++17", *compiler.COMPILE_FLAGS, "-Werror", *flags, "-I."]
        subprocess.run([*gxx, *options, "-c", source, "-o", objects[-1]], cwd=ROOT, check=True)
    target = pathlib.Path(folder) / "library.so"
    subprocess.run([*gxx, "-shared", "-o", target, *objects], check=True)
    return ctypes.CDLL(str(target))


CC_LIB = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "cc/lib").glob("*.cc"))


@functools.cache
def _library():
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(["tests/support/contraction.cc"], folder=folder)
    library.contract.argtypes = [*C_ARGUMENTS, ctypes.c_int, ctypes.c_int64]
    return library


def kinds_here():
    """The kinds of vectors that this machine has."""
    return KINDS[: _library().best_instruction_set() + 1]


def contract(lhs, rhs, out, wrt="x", vectors="baseline", pieces=1):
    """Writes the gradient by `wrt` into the array `out`. All three have one dimension for each of the joint shape."""
    status = _library().contract(
        *as_c(lhs, rhs, out, wrt),
        KINDS.index(vectors),
        pieces,
    )
    assert status == 0


def as_c(lhs, rhs, out, wrt):
    """The arguments that C functions of the tests take for a contraction. Keep the arrays until they return."""
    arrays = dict(zip([role for role in _ROLES if role != wrt], (lhs, rhs), strict=True)) | {wrt: out}
    assert all(array.flags.c_contiguous for array in arrays.values())
    shapes = [size for role in _ROLES for size in arrays[role].shape]
    return [
        str(out.dtype).encode(),
        out.ndim,
        (ctypes.c_int64 * len(shapes))(*shapes),
        _ROLES.index(wrt),
        *(ctypes.c_void_p(array.ctypes.data) for array in (lhs, rhs, out)),
    ]


class Fenced:
    """Memory between two pages that may not be touched: a read or write beyond its ends kills the process."""

    def __init__(self, size):
        page = mmap.PAGESIZE
        self._inside = -(-max(size, 1) // page) * page
        self._map = mmap.mmap(-1, self._inside + 2 * page)
        self._bytes = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        start = self._bytes.ctypes.data
        for fence in (start, start + page + self._inside):
            if libc.mprotect(fence, page, 0):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def at_start(self, shape, dtype, offset=0):
        """An array that begins `offset` elements after the first fence."""
        return self._view(mmap.PAGESIZE + offset * np.dtype(dtype).itemsize, shape, dtype)

    def at_end(self, shape, dtype, offset=0):
        """An array that ends `offset` elements before the second fence."""
        size = (int(np.prod(shape)) + offset) * np.dtype(dtype).itemsize
        return self._view(mmap.PAGESIZE + self._inside - size, shape, dtype)

    def fill(self, byte):
        """Fills all of the memory."""
        self._bytes[mmap.PAGESIZE : mmap.PAGESIZE + self._inside] = byte

    def count(self, byte):
        """How many bytes have the value."""
        return int(np.count_nonzero(self._bytes[mmap.PAGESIZE : mmap.PAGESIZE + self._inside] == byte))

    @property
    def size(self):
        """The bytes between the fences."""
        return self._inside

    def _view(self, start, shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert start >= mmap.PAGESIZE
        assert start + size <= mmap.PAGESIZE + self._inside
        return self._bytes[start : start + size].view(dtype).reshape(shape)
