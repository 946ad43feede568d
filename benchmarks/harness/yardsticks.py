"""The yardsticks for memory speed in yardsticks.cc, compiled for this machine at first use.

Counts are in elements of 4 bytes. A sum cannot be faster than `read`, and a product not faster than `multiply`, which
writes to memory that is mapped already, as TensorFlow does: its allocator keeps freed memory.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess

import numpy as np

from . import record

_SOURCE = pathlib.Path(__file__).with_suffix(".cc")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-Wall", "-Wextra", "-Werror")


@functools.cache
def _library() -> ctypes.CDLL:
    # Named by its content and the processor, because machines can share a folder.
    key = hashlib.sha256(_SOURCE.read_bytes() + record.processor().encode()).hexdigest()[:16]
    path = record.ROOT / "build" / "benchmarks" / f"yardsticks_{key}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", *_FLAGS, str(_SOURCE), "-o", str(path)], check=True)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # Idle threads must not spin while others are measured.
    library = ctypes.CDLL(str(path))
    library.Read.restype = ctypes.c_uint32
    return library


def _pointer(array: np.ndarray | None, count: int) -> ctypes.c_void_p:
    if array is None:
        return ctypes.c_void_p(None)
    assert array.flags.c_contiguous
    assert array.nbytes >= 4 * count
    return ctypes.c_void_p(array.ctypes.data)


def read(a: np.ndarray, b: np.ndarray | None = None) -> int:
    """Reads one array, or two of the same size, once. It returns the union of their bits as proof."""
    count = a.nbytes // 4
    return _library().Read(_pointer(a, count), _pointer(b, count), ctypes.c_int64(count))


def multiply(a: np.ndarray, b: np.ndarray | None, out: np.ndarray) -> None:
    """Multiplies two float32 arrays, or one by a number, into `out`, which must start at a multiple of 64 bytes."""
    assert out.ctypes.data % 64 == 0
    _library().Multiply(_pointer(a, a.size), _pointer(b, a.size), _pointer(out, a.size), ctypes.c_int64(a.size))


def aligned(count: int) -> np.ndarray:
    """A float32 array, already mapped, that is aligned for streaming stores."""
    buffer = np.zeros(count + 16, np.float32)
    start = (-buffer.ctypes.data // 4) % 16
    array = buffer[start : start + count]
    array[:] = 0
    return array
