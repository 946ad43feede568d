"""The arithmetic of `cc/lib` without TensorFlow, and the shapes that kernels for CPUs and GPUs are tested with."""

import ctypes
import functools
import mmap
import os
import pathlib
import subprocess
import tempfile

import numpy as np

from build_ops import compiler

from ..support.reference import widen
from ..support.sources import ROOT
from ..support.tensors import assert_gradient_close

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


def compile_objects(sources, *flags, root=ROOT):
    """The objects of C++ sources, kept in build/ for other tests and later runs; `root` is the project or a copy."""
    kinds = ["-x", "c++", "-std=c++17", *compiler.COMPILE_FLAGS, "-Werror", *flags, f"-I{os.path.relpath(root, ROOT)}"]
    command = [*compiler.find_compiler(), *kinds]
    paths = [source if root == ROOT else str(root / source) for source in sources]
    return compiler.compile_files(dict.fromkeys((".cc", ".cu"), command), paths)


def compile_library(sources, *flags, folder):
    """Links a shared library from the build's objects of `cc/lib` and from other C++ sources, compiled with more flags."""
    commands = compiler.compile_commands(compiler.find_compiler(), compiler.tensorflow_flags()[0])
    objects = compiler.compile_files(commands, CC_LIB) + compile_objects(sources, *flags)
    target = pathlib.Path(folder) / "library.so"
    subprocess.run([*compiler.find_compiler(), "-shared", "-o", target, *objects], check=True)
    return ctypes.CDLL(str(target))


CC_LIB = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "cc/lib").glob("*.cc"))


@functools.cache
def _library():
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(["tests/kernels/emulated_cuda/contraction.cc"], folder=folder)
    library.contract.argtypes = [*C_ARGUMENTS, ctypes.c_int, ctypes.c_int64]
    return library


def kinds_here():
    """The kinds of vector registers that this machine has."""
    return KINDS[: _library().best_instruction_set() + 1]


def contract(lhs, rhs, out, wrt="x", vectors="baseline", pieces=1):
    """Writes the gradient with respect to `wrt` into the array `out`. All three arrays have the rank of the joint shape."""
    status = _library().contract(
        *as_c(lhs, rhs, out, wrt),
        KINDS.index(vectors),
        pieces,
    )
    assert status == 0


def as_c(lhs, rhs, out, wrt):
    """The arguments of the tests' C functions for a contraction. Keep the arrays until these return."""
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
    """Memory between two protected pages: a read or write beyond its ends kills the process."""

    def __init__(self, size):
        page = mmap.PAGESIZE
        inside = -(-max(size, 1) // page) * page
        self._map = mmap.mmap(-1, inside + 2 * page)
        everything = np.frombuffer(self._map, np.uint8)
        self.bytes = everything[page : page + inside]
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        start = everything.ctypes.data
        for fence in (start, start + page + inside):
            if libc.mprotect(fence, page, 0):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def at_start(self, shape, dtype, offset=0):
        """An array that begins `offset` elements after the first fence."""
        start, size = (int(count) * np.dtype(dtype).itemsize for count in (offset, np.prod(shape)))
        assert start + size <= self.bytes.size
        return self.bytes[start : start + size].view(dtype).reshape(shape)

    def at_end(self, shape, dtype, offset=0):
        """An array that ends `offset` elements before the second fence."""
        return self.at_start(shape, dtype, self.bytes.size // np.dtype(dtype).itemsize - int(np.prod(shape)) - offset)


UNTOUCHED = 0xA5

# By name: the shapes of lhs, rhs and out for a length n, and the operand to differentiate by.
FORMS = {
    "same": (lambda n: ([n], [n], [n]), "x"),
    "scalar_rhs": (lambda n: ([n], [1], [n]), "x"),
    "scalar_lhs": (lambda n: ([1], [n], [n]), "fx"),
    "column_by_row": (lambda n: ([5, 1], [1, n], [5, n]), "fx"),
    "rows_by_column": (lambda n: ([5, 1], [5, n], [5, n]), "x"),
    "rows_by_row": (lambda n: ([5, n], [1, n], [5, n]), "gx"),
    "strided": (lambda n: ([3, 1, 2, n], [3, 4, 1, n], [3, 4, 2, n]), "fx"),
    "outer": (lambda n: ([3, 1], [3, 1], [3, n]), "x"),
    "sum": (lambda n: ([n], [n], [1]), "x"),
    "sum_of_lhs": (lambda n: ([n], [1], [1]), "x"),
    "sum_of_rhs": (lambda n: ([1], [n], [1]), "fx"),
    "sums_of_rows": (lambda n: ([7, n], [7, n], [7, 1]), "x"),
    "sums_of_rows_by_row": (lambda n: ([7, n], [1, n], [7, 1]), "fx"),
    "sums_of_rows_by_column": (lambda n: ([7, 1], [7, n], [7, 1]), "x"),
    "sums_of_columns": (lambda n: ([7, n], [7, n], [1, n]), "x"),
    "sums_of_columns_by_row": (lambda n: ([7, n], [1, n], [1, n]), "x"),
    "sums_of_columns_by_column": (lambda n: ([7, 1], [7, n], [1, n]), "x"),
    "sums_of_wide_columns": (lambda n: ([7, 2, n], [7, 2, n], [1, 1, n]), "x"),
    "sums_over_1_and_3": (lambda n: ([2, 3, 4, n], [2, 3, 4, n], [2, 1, 4, 1]), "x"),
    "sums_over_0_and_2": (lambda n: ([2, 3, 4, n], [2, 3, 4, n], [1, 3, 1, n]), "x"),
    "short_sums_of_rows": (lambda n: ([n, 3], [n, 3], [n, 1]), "x"),
    "short_sums_of_rows_by_row": (lambda n: ([n, 3], [1, 3], [n, 1]), "x"),
    "short_sums_of_rows_by_column": (lambda n: ([n, 5], [n, 1], [n, 1]), "x"),
    "short_sums_over_1_and_2": (lambda n: ([n, 4, 3, 2], [n, 4, 3, 2], [n, 1, 1, 2]), "x"),
    "short_sums_over_1_and_3": (lambda n: ([n, 3, 5, 2], [n, 1, 5, 2], [n, 1, 5, 1]), "fx"),
    "short_sums_in_long_ones": (lambda n: ([n, 2, 4, 3], [n, 2, 4, 3], [1, 2, 1, 3]), "x"),
    "equal_sums": (lambda n: ([6, 1], [6, 1], [1, n]), "x"),
}


def expected(lhs, rhs, shape, wrt):
    """The gradient, and the sum of the absolute values of its terms."""
    lhs, rhs = widen(lhs), widen(rhs)
    product = lhs * (rhs if wrt == "fx" else np.conj(rhs))
    # If both are broadcast, each element of out is the whole sum.
    joint = np.broadcast_shapes(product.shape, shape)
    reduced = tuple(i for i, size in enumerate(shape) if size == 1 and joint[i] != 1)
    product = np.broadcast_to(product, joint)
    return product.sum(reduced, keepdims=True), np.abs(product).sum(reduced, keepdims=True)


def check(out, lhs, rhs, wrt, dtype):
    value, size = expected(lhs, rhs, out.shape, wrt)
    assert_gradient_close(out, value, dtype, scale=max(1.0, float(np.max(size, initial=0.0))))


def fences(size=1 << 15):
    """Memory for lhs, rhs and out."""
    return [Fenced(size) for _ in range(3)]


def within_fences(contract, memory, given, out_shape, dtype, place, offsets, wrt="x"):
    """Runs it on operands that border on protected memory: the numbers are right and only out is written. The bytes."""
    lhs, rhs, out = (
        place(block, shape, dtype.as_numpy_dtype, offset)
        for block, shape, offset in zip(memory, (*map(np.shape, given), out_shape), offsets, strict=True)
    )
    lhs[...], rhs[...] = given
    memory[2].bytes[:] = UNTOUCHED
    before = memory[2].bytes.size - out.nbytes
    contract(lhs, rhs, out, wrt)
    written = np.count_nonzero(np.ascontiguousarray(out).view(np.uint8) == UNTOUCHED)
    assert np.count_nonzero(memory[2].bytes == UNTOUCHED) - written == before
    check(out, *given, wrt, dtype)
    np.testing.assert_array_equal(lhs.view(np.uint8), given[0].view(np.uint8))
    np.testing.assert_array_equal(rhs.view(np.uint8), given[1].view(np.uint8))
    return out.tobytes()
