"""Runs the GPU kernels on a CPU, with the emulated CUDA in this folder."""

import ctypes
import functools
import tempfile

from build_ops.sources import CUDA_SOURCES

from ..contraction import C_ARGUMENTS, as_c, compile_library

EMULATED_CUDA = "tests/kernels/emulated_cuda"
# The kernels read 16 bytes at once as one struct, which nvcc allows. They load and use elements in two loops under the
# same condition, which g++ does not notice.
# -O1 halves the time of the compiler.
FLAGS = ["-O1", f"-I{EMULATED_CUDA}", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-Wno-uninitialized"]

# Any number of blocks.
MANY = 2**31 - 1

# In the order of cuda/schedule.h.
KERNELS = (
    "none",
    "zero",
    "multiply flat",
    "multiply rows",
    "multiply segments",
    "multiply scalar",
    "sum rows",
    "sum columns",
    "too many loops",
)


class Schedule(ctypes.Structure):
    """The kernel that computes a contraction, and how."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("has_narrow_indices", ctypes.c_bool),
        ("is_vectorized", ctypes.c_bool),
        ("rhs_moves", ctypes.c_bool),
        ("swaps_operands", ctypes.c_bool),
        ("parts", ctypes.c_int64),
    )

    @property
    def kernel(self):
        return KERNELS[self.number]


@functools.cache
def library():
    with tempfile.TemporaryDirectory() as folder:
        sources = [
            f"{EMULATED_CUDA}/emulator.cc",
            f"{EMULATED_CUDA}/emulated_contraction.cc",
            *CUDA_SOURCES,
        ]
        emulated = compile_library(sources, *FLAGS, folder=folder)
    emulated.emulated_contract.argtypes = C_ARGUMENTS
    emulated.emulated_set_order.argtypes = [ctypes.c_uint64, ctypes.c_uint]
    emulated.emulated_divide.argtypes = [ctypes.c_int64, ctypes.c_int64]
    emulated.emulated_divide.restype = ctypes.c_int64
    emulated.emulated_divide_narrow.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
    emulated.emulated_divide_narrow.restype = ctypes.c_uint32
    emulated.emulated_schedule.argtypes = [
        ctypes.c_int,
        *C_ARGUMENTS[1:4],
        *[ctypes.c_void_p] * 3,
        ctypes.POINTER(Schedule),
    ]
    return emulated


def contract(lhs, rhs, out, wrt="x", order=0, max_blocks=MANY):
    """Writes the gradient by `wrt` into the array `out`. The seed sets the order of threads and blocks."""
    library().emulated_set_order(order, max_blocks)
    assert library().emulated_contract(*as_c(lhs, rhs, out, wrt)) == 0


def schedule(shapes, itemsize=4, addresses=(0, 0, 0)):
    """The kernel for the gradient by x, for these shapes of fx, gx and x, all of one rank. Computes nothing."""
    sizes = [size for shape in shapes for size in shape]
    found = Schedule()
    array = (ctypes.c_int64 * len(sizes))(*sizes)
    library().emulated_schedule(itemsize, len(shapes[0]), array, 2, *addresses, found)
    return found
