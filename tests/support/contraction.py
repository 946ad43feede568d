"""The arithmetic of `cc/lib`, called without TensorFlow: with any vectors, at any address, cut into any pieces."""

import ctypes
import functools
import mmap
import os
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

from build_ops.compiler import COMPILE_FLAGS

from .sources import ROOT

KINDS = ("baseline", "avx2", "avx512")

_ROLES = ("fx", "gx", "x")


@functools.cache
def _library():
    compiler = ["ccache", "g++"] if shutil.which("ccache") else ["g++"]
    sources = [ROOT / "tests/support/contraction.cc", *sorted((ROOT / "cc/lib").glob("*.cc"))]
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "contraction.so"
        objects = []
        for source in sources:
            objects.append(target.with_name(source.stem + "_" + source.parent.name + ".o"))
            flags = ["-std=c++17", *COMPILE_FLAGS, "-Werror", "-I."]
            subprocess.run([*compiler, *flags, "-c", str(source), "-o", str(objects[-1])], cwd=ROOT, check=True)
        subprocess.run(["g++", "-shared", "-o", str(target), *map(str, objects)], check=True)
        library = ctypes.CDLL(str(target))
    library.contract.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int64,
    ]
    return library


def kinds_here():
    """The kinds of vectors that this machine has."""
    return KINDS[: _library().widest_vectors() + 1]


def contract(lhs, rhs, out, wrt="x", vectors="baseline", pieces=1):
    """Writes the gradient by `wrt` into the array `out`. All three have one dimension for each of the joint shape."""
    arrays = dict(zip([role for role in _ROLES if role != wrt], (lhs, rhs), strict=True)) | {wrt: out}
    assert all(array.flags.c_contiguous for array in arrays.values())
    shapes = np.array([arrays[role].shape for role in _ROLES], np.int64)
    status = _library().contract(
        str(out.dtype).encode(),
        out.ndim,
        shapes.ctypes.data,
        _ROLES.index(wrt),
        lhs.ctypes.data,
        rhs.ctypes.data,
        out.ctypes.data,
        KINDS.index(vectors),
        pieces,
    )
    assert status == 0


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
