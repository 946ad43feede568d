// The kernels that sum products. Each runs with any number of blocks of kThreads threads; its results do not depend on
// that number.
//
// Each has two readers with the same order of additions: one for vectors, which fits most shapes and addresses, and one
// for scalars, which fits any plan.

#ifndef TF_CG_OPS_CUDA_SUMS_CUH_
#define TF_CG_OPS_CUDA_SUMS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/arithmetic.cuh"
#include "cuda/indexing.h"
#include "cuda/schedule.h"
#include "cuda/vector.cuh"

namespace tf_cg_ops::cuda {

// The sums of a thread, one for each element of a vector, so that additions are independent of each other.
template <typename T>
struct Sums {
  Sum<T> elements[kVectorSize<T>] = {};

  // Adds the first `count` products only: the others are zeros, which give nan if an operand is infinite.
  template <bool rhs_moves>
  inline __device__ void Add(const Operands<T, rhs_moves>& operands, Conjugates conjugates,
                             int count = kVectorSize<T>) {
#pragma unroll
    for (int i = 0; i < kVectorSize<T>; ++i) {
      if (i < count) AddProductTo(elements[i], operands.lhs.At(i), operands.rhs.At(i), conjugates);
    }
  }
};

// The trips first, first + stride, ... below end of the reduction loops.
template <typename I>
struct Trips {
  I first;
  I stride;
  I end;
};

// Sums operands in vectors. With `has_one_loop`, each sum is over one loop.
template <typename T, bool rhs_moves, bool has_one_loop>
struct VectorReader {
  using Index = uint32_t;

  // Sums along a row. It may end within a vector if that is the only loop.
  static inline __device__ Sums<T> AlongRow(const Layout<Index>& layout, const Element<T>* lhs, const Element<T>* rhs,
                                            const Trips<Index>& trips) {
    if (!has_one_loop) return SumProducts(layout, lhs, rhs, trips);
    const Index whole = layout.innermost_size / kVectorSize<T>;
    Sums<T> sums = SumProducts(layout, lhs, rhs, {trips.first, trips.stride, whole < trips.end ? whole : trips.end});
    // The stride is a power of two.
    if (whole < trips.end && whole >= trips.first && ((whole - trips.first) & (trips.stride - 1)) == 0) {
      const Index i = whole * kVectorSize<T>;
      const int count = static_cast<int>(layout.innermost_size - i);
      Operands<T, rhs_moves> operands;
      operands.LoadScalars(lhs + i, rhs + (rhs_moves ? i : 0), count);
      sums.Add(operands, layout.conjugates, count);
    }
    return sums;
  }

  // Sums along the columns of one vector.
  static inline __device__ Sums<T> AlongColumns(const Layout<Index>& layout, const Element<T>* lhs,
                                                const Element<T>* rhs, const Trips<Index>& trips, int) {
    return SumProducts(layout, lhs, rhs, trips);
  }

 private:
  static inline __device__ Sums<T> SumProducts(const Layout<Index>& layout, const Element<T>* lhs,
                                               const Element<T>* rhs, const Trips<Index>& trips) {
    Sums<T> sums;
    const Step<Index>* const steps = layout.steps + layout.output_loops;
#pragma unroll 1
    for (Index item = trips.first; item < trips.end; item += trips.stride * kUnroll) {
      Index items[kUnroll];
      Offsets<Index> offsets[kUnroll];
      Operands<T, rhs_moves> operands[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) items[u] = item + u * trips.stride;
      FindOffsets(items, steps, has_one_loop ? 1 : layout.reduction_loops, offsets);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (items[u] < trips.end) operands[u].Load(lhs + offsets[u].lhs, rhs + offsets[u].rhs);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (items[u] < trips.end) sums.Add(operands[u], layout.conjugates);
      }
    }
    return sums;
  }
};

// The elements of a vector, of which the last along a row may be shorter.
template <typename T, typename I>
inline __device__ int ElementsOf(const Layout<I>& layout, const Offsets<I>& offsets) {
  const I left = layout.innermost_size - offsets.innermost * kVectorSize<T>;
  return left < kVectorSize<T> ? static_cast<int>(left) : kVectorSize<T>;
}

// Sums any plan: reads scalars.
template <typename T, typename I>
struct ScalarReader {
  using Index = I;

  static inline __device__ Sums<T> AlongRow(const Layout<Index>& layout, const Element<T>* lhs, const Element<T>* rhs,
                                            const Trips<Index>& trips) {
    return AlongColumns(layout, lhs, rhs, trips, 0);
  }

  // `count` is the number of columns, or 0 to sum along a row.
  static inline __device__ Sums<T> AlongColumns(const Layout<Index>& layout, const Element<T>* lhs,
                                                const Element<T>* rhs, const Trips<Index>& trips, int count) {
    Sums<T> sums;
#pragma unroll 1
    for (Index item = trips.first; item < trips.end; item += trips.stride) {
      const Offsets<Index> offsets = OffsetsOf(item, layout.steps + layout.output_loops, layout.reduction_loops);
      const int elements = count > 0 ? count : ElementsOf<T>(layout, offsets);
      Element<T> from_lhs[kVectorSize<T>] = {}, from_rhs[kVectorSize<T>] = {};
#pragma unroll
      for (int i = 0; i < kVectorSize<T>; ++i) {
        if (i < elements) {
          from_lhs[i] = lhs[offsets.lhs + i * layout.lhs_step];
          from_rhs[i] = rhs[offsets.rhs + i * layout.rhs_step];
        }
      }
#pragma unroll
      for (int i = 0; i < kVectorSize<T>; ++i) {
        if (i < elements) AddProductTo(sums.elements[i], from_lhs[i], from_rhs[i], layout.conjugates);
      }
    }
    return sums;
  }
};

// The trips of a part.
template <typename I>
inline __device__ Trips<I> TripsOf(const Layout<I>& layout, I part, I offset, I stride) {
  const I begin = part * layout.part_items;
  const I past = begin + layout.part_items;
  return {begin + offset, stride, past < layout.reduction_items ? past : layout.reduction_items};
}

// Writes a sum to out, or to the scratch memory if it is one of several parts.
template <typename T, typename I>
inline __device__ void Write(const Layout<I>& layout, I part, I output, Sum<T> sum, Element<T>* out, Sum<T>* scratch) {
  if (layout.parts > 1) {
    scratch[part * layout.outputs + output] = sum;
  } else {
    Round(sum, out + output);
  }
}

// Sums along rows: `lanes` threads read each row side by side.
template <typename T, typename Reader>
__global__ void __launch_bounds__(kThreads)
    SumRowsKernel(const __grid_constant__ Layout<typename Reader::Index> layout, const Element<T>* lhs,
                  const Element<T>* rhs, Element<T>* out, Sum<T>* scratch) {
  using I = typename Reader::Index;
  constexpr int kWarp = 32;
  __shared__ Sum<T> warp_sums[kThreads / kWarp];
  const I lane = threadIdx.x % layout.lanes;
  const I groups = kThreads / layout.lanes;
  const I work = layout.outputs * layout.parts;
  // All threads of a block make the same number of trips, as shuffles and barriers require.
#pragma unroll 1
  for (I first = blockIdx.x * groups; first < work; first += gridDim.x * groups) {
    const I index = first + threadIdx.x / layout.lanes;
    const I part = layout.parts > 1 ? index / layout.outputs : 0;
    const I output = index - part * layout.outputs;
    Sum<T> sum = {};
    if (index < work) {
      const Offsets<I> offsets = OffsetsOf(output, layout.steps, layout.output_loops);
      const Sums<T> sums =
          Reader::AlongRow(layout, lhs + offsets.lhs, rhs + offsets.rhs, TripsOf<I>(layout, part, lane, layout.lanes));
#pragma unroll
      for (int i = 0; i < kVectorSize<T>; ++i) AddTo(sum, sums.elements[i]);
    }
    for (int mask = (layout.lanes < kWarp ? layout.lanes : kWarp) / 2; mask > 0; mask /= 2) {
      AddTo(sum, FromLane(sum, mask));
    }
    if (layout.lanes > kWarp) {
      if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = sum;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int warp = 1; warp < kThreads / kWarp; ++warp) AddTo(sum, warp_sums[warp]);
      }
      __syncthreads();
    }
    if (lane == 0 && index < work) Write<T, I>(layout, part, output, sum, out, scratch);
  }
}

// Adds the sums of threads that are a multiple of `lanes` apart. The first `lanes` threads get the results.
template <typename S, int count>
inline __device__ void SumAcrossRows(S (&sums)[count], int lanes) {
  // Neighboring threads use neighboring banks.
  __shared__ S shared[count][kThreads];
  const int thread = threadIdx.x;
#pragma unroll
  for (int i = 0; i < count; ++i) shared[i][thread] = sums[i];
  for (int distance = kThreads / 2; distance >= lanes; distance /= 2) {
    __syncthreads();
    if (thread < distance) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        AddTo(sums[i], shared[i][thread + distance]);
        shared[i][thread] = sums[i];
      }
    }
  }
  __syncthreads();
}

// Sums along columns: `lanes` threads read neighboring vectors of a row, the others those of the rows below.
template <typename T, typename Reader>
__global__ void __launch_bounds__(kThreads)
    SumColumnsKernel(const __grid_constant__ Layout<typename Reader::Index> layout, const Element<T>* lhs,
                     const Element<T>* rhs, Element<T>* out, Sum<T>* scratch) {
  using I = typename Reader::Index;
  const I lane = threadIdx.x % layout.lanes;
  const I row = threadIdx.x / layout.lanes;
  const I tiles = (layout.output_items + layout.lanes - 1) / layout.lanes;
#pragma unroll 1
  for (I index = blockIdx.x; index < tiles * layout.parts; index += gridDim.x) {
    const I part = layout.parts > 1 ? index / tiles : 0;
    const I item = (index - part * tiles) * layout.lanes + lane;
    Sums<T> sums;
    Offsets<I> offsets;
    int count = 0;
    if (item < layout.output_items) {
      offsets = OffsetsOf(item, layout.steps, layout.output_loops);
      count = ElementsOf<T>(layout, offsets);
      sums = Reader::AlongColumns(layout, lhs + offsets.lhs, rhs + offsets.rhs,
                                  TripsOf<I>(layout, part, row, kThreads / layout.lanes), count);
    }
    SumAcrossRows(sums.elements, layout.lanes);
    if (row == 0) {
#pragma unroll
      for (int i = 0; i < kVectorSize<T>; ++i) {
        if (i < count) Write<T, I>(layout, part, offsets.out + i, sums.elements[i], out, scratch);
      }
    }
  }
}

// Adds the parts of each sum: `lanes` threads have neighboring outputs, the others more parts of the same outputs.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddPartsKernel(const Sum<T>* scratch, int64_t outputs, int64_t parts, int lanes, Element<T>* out) {
  constexpr int kLoads = 8;  // In flight.
  const int64_t tiles = (outputs + lanes - 1) / lanes;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t output = tile * lanes + threadIdx.x % lanes;
    Sum<T> sums[1] = {};
    if (output < outputs) {
      const int64_t stride = kThreads / lanes;
      for (int64_t first = threadIdx.x / lanes; first < parts; first += stride * kLoads) {
        Sum<T> partial[kLoads] = {};
#pragma unroll
        for (int u = 0; u < kLoads; ++u) {
          const int64_t part = first + u * stride;
          if (part < parts) partial[u] = scratch[part * outputs + output];
        }
#pragma unroll
        for (int u = 0; u < kLoads; ++u) AddTo(sums[0], partial[u]);
      }
    }
    SumAcrossRows(sums, lanes);
    if (static_cast<int>(threadIdx.x) < lanes && output < outputs) Round(sums[0], out + output);
  }
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_SUMS_CUH_
