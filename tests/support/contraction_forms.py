"""The forms of a contraction that the kernels are tried at, on the CPU and on the GPU, and what is right there."""

import numpy as np

from .contraction import Fenced
from .tensors import random_array
from .tolerances import assert_gradient_close

# Twice the numbers that one turn of the longest loop takes: 32, in 16-bit sums.
LENGTHS = range(65)
UNTOUCHED = 0xA5

# By name: the shapes of lhs, rhs and out for a length n, and the operand by which is differentiated.
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


def wide(array):
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def expected(lhs, rhs, shape, wrt):
    """The gradient, and the sum of the absolute values of what is added up."""
    lhs, rhs = wide(lhs), wide(rhs)
    product = lhs * (rhs if wrt == "fx" else np.conj(rhs))
    # If both are broadcast, each element of out has all of the sum.
    joint = np.broadcast_shapes(product.shape, shape)
    reduced = tuple(i for i, size in enumerate(shape) if size == 1 and joint[i] != 1)
    product = np.broadcast_to(product, joint)
    return product.sum(reduced, keepdims=True), np.abs(product).sum(reduced, keepdims=True)


def check(out, lhs, rhs, wrt, dtype):
    value, size = expected(lhs, rhs, out.shape, wrt)
    assert_gradient_close(out, value, dtype, scale=max(1.0, float(np.max(size, initial=0.0))))


def assert_every_length_within_fences(contract, form, dtype, rng):
    """Operands end or start right at memory that may not be read; nothing beside out is written."""
    shapes, wrt = FORMS[form]
    memory = [Fenced(1 << 15) for _ in range(3)]
    for n in LENGTHS:
        given = [random_array(rng, shape, dtype) for shape in shapes(n)[:2]]
        offset = n % 4  # In elements, so that vectors start at each remainder of their own alignment, too.
        for place in (Fenced.at_start, Fenced.at_end):
            lhs, rhs, out = (
                place(block, shape, dtype.as_numpy_dtype, offset + i)
                for i, (block, shape) in enumerate(zip(memory, shapes(n), strict=True))
            )
            lhs[...], rhs[...] = given
            memory[2].fill(UNTOUCHED)
            before = memory[2].size - out.nbytes
            contract(lhs, rhs, out, wrt)
            written = int(np.count_nonzero(np.ascontiguousarray(out).view(np.uint8) == UNTOUCHED))
            assert memory[2].count(UNTOUCHED) - written == before
            check(out, lhs, rhs, wrt, dtype)
            np.testing.assert_array_equal(lhs.view(np.uint8), given[0].view(np.uint8))
            np.testing.assert_array_equal(rhs.view(np.uint8), given[1].view(np.uint8))
