"""The number of instructions in the loops of the GPU kernels: so few that memory limits the speed."""

import shutil

import pytest

from ..support import sass

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")

# Each thread has so many vectors or elements under way at once; see cuda/schedule.h.
UNROLL = 4
# The instructions that a warp may spend to read two operands and write one, for 0.92 of a copy's speed on an H200: for
# vectors of 16 bytes, and for single elements of 4 and of 2 bytes.
VECTOR, FLOAT, HALF = 370, 93, 46

# The instructions that a warp spends for one vector or element, at most. Kernels that move less memory for it may spend
# as much less.
BUDGETS = {
    "MultiplyFlatKernel<{}, true, true>": VECTOR,
    "MultiplyFlatKernel<{}, true, false>": VECTOR,
    "MultiplyFlatKernel<{}, false, true>": VECTOR * 2 // 3,
    "MultiplyFlatKernel<{}, false, false>": VECTOR * 2 // 3,
    "MultiplyRowsKernel<{}, true>": VECTOR,
    "MultiplyRowsKernel<{}, false>": VECTOR * 2 // 3,
}
for kernel in ("SumRowsKernel", "SumColumnsKernel"):
    for has_one_loop in ("true", "false"):
        BUDGETS[f"{kernel}<{{0}}, VectorReader<{{0}}, true, {has_one_loop}> >"] = VECTOR * 2 // 3
        BUDGETS[f"{kernel}<{{0}}, VectorReader<{{0}}, false, {has_one_loop}> >"] = VECTOR // 3
    BUDGETS[f"{kernel}<{{0}}, ScalarReader<{{0}}, unsigned int> >"] = VECTOR * 2 // 3
TYPES = ("Half", "BFloat16", "float", "double", "complex<float>", "complex<double>")


# A vector of complex128 has one element: other kernels do the same work.
ABSENT = {
    (kernel, "complex<double>")
    for kernel in BUDGETS
    if "MultiplyRows" in kernel or (", false>" in kernel and "Flat" in kernel)
}


def spelled(kernel, dtype):
    """The name as c++filt writes it: `> >`."""
    return (
        kernel.format(dtype)
        .replace("complex<float>>", "complex<float> >")
        .replace("complex<double>>", "complex<double> >")
    )


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return sass.compile_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(
    ("kernel", "dtype"), [(kernel, dtype) for kernel in BUDGETS for dtype in TYPES if (kernel, dtype) not in ABSENT]
)
def test_the_loop_over_vectors_keeps_the_budget(kernels, kernel, dtype):
    """Counted in the SASS for one architecture; see `hot_loop`. A trip of the loop has several vectors."""
    name = spelled(kernel, dtype)
    loop = sass.hot_loop(kernels[name])
    vectors = 1 if "ScalarReader" in kernel else UNROLL
    assert loop.instructions / vectors <= BUDGETS[kernel], loop


@pytest.mark.parametrize(
    ("dtype", "budget"), [("float", FLOAT), ("Half", HALF), ("BFloat16", HALF), ("double", 2 * FLOAT)]
)
def test_single_elements_keep_the_budget(kernels, dtype, budget):
    loop = sass.hot_loop(kernels[f"MultiplyScalarKernel<{dtype}, unsigned int>"])
    assert loop.loads == 2 * UNROLL
    assert loop.instructions / UNROLL <= budget


def test_vectors_are_read_at_once(kernels):
    """So that the loops above are those that read operands, and all of it."""
    for dtype in TYPES:
        assert sass.hot_loop(kernels[spelled("MultiplyFlatKernel<{}, true, true>", dtype)]).loads == 2 * UNROLL
        for kernel in ("SumRowsKernel", "SumColumnsKernel"):
            loop = sass.hot_loop(kernels[spelled(f"{kernel}<{{0}}, VectorReader<{{0}}, true, true> >", dtype)])
            assert loop.loads == 2 * UNROLL


def test_the_plain_product_is_as_short_as_one_written_by_hand(kernels):
    """A kernel for float4 alone, with 32-bit indices, has 88 instructions for one vector."""
    assert len(kernels["MultiplyFlatKernel<float, true, true>"]) <= 2 * 88


def test_the_count_sees_what_a_loop_has(tmp_path):
    """A kernel with one loop in another, and the same with more to do in the inner one."""
    source = tmp_path / "loops.cu"
    counts = []
    for work in ("x[j] += 1;", f"float y = x[j]; {'y = y * y + 1;' * VECTOR} x[j] = y;"):
        source.write_text(
            f"__global__ void Loops(float* x, int n) {{ for (int i = 0; i < n; ++i) {{ x[-i] = i;\n"
            f"#pragma unroll 1\nfor (int j = 0; j < i; ++j) {{ {work} }} }} }}"
        )
        (function,) = sass.compile_kernels(tmp_path, source).values()
        loop = sass.hot_loop(function)
        assert loop.loads >= 1
        assert loop.instructions < len(function)
        counts.append(loop.instructions)
    assert counts[0] < 20
    assert 2 * VECTOR < counts[1] < 2 * VECTOR + 20
