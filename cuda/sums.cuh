// The kernels that sum products. Each runs with any number of blocks of kThreads threads, which does not change the
// results.
//
// Each has two readers with the same order of additions: one for vectors, which works for most shapes and addresses,
// and one for scalars, which works for any plan. With scalars, n threads that sum neighboring vectors divide the
// elements differently: each reads every n-th element, so that neighboring threads read neighboring elements.

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

  // Adds only the first `count` products. The others are padded with zeros, which give nan if an operand is infinite.
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
  // How many blocks of SumColumnsKernel must fit into a multiprocessor; 0 leaves it to the compiler.
  static constexpr int kMinColumnBlocks = 0;

  // The columns of a thread, which are one vector; the last vector can be shorter.
  struct Columns {
    Offsets<Index> offsets;
    int count = 0;

    inline __device__ Columns(const Layout<Index>& layout, Index tile, Index lane) {
      const Index item = tile * layout.lanes + lane;
      if (item >= layout.output_items) return;
      offsets = OffsetsOf(item, layout.steps, layout.output_loops);
      const Index left = layout.innermost_size - offsets.innermost * kVectorSize<T>;
      count = left < kVectorSize<T> ? static_cast<int>(left) : kVectorSize<T>;
    }
    inline __device__ bool Has(int i) const { return i < count; }
    inline __device__ Index OutOf(int i) const { return offsets.out + i; }
  };

  // Sums along a row. If that is the only loop, it can end within a vector.
  static inline __device__ Sums<T> AlongRow(const Layout<Index>& layout, const Element<T>* lhs, const Element<T>* rhs,
                                            const Offsets<Index>& base, const Trips<Index>& trips, Index) {
    if (!has_one_loop) return SumProducts(layout, lhs, rhs, base, trips);
    const Index whole = layout.innermost_size / kVectorSize<T>;
    const Trips<Index> whole_trips = {trips.first, trips.stride, whole < trips.end ? whole : trips.end};
    Sums<T> sums = SumProducts(layout, lhs, rhs, base, whole_trips);
    // The stride is a power of two.
    if (whole < trips.end && whole >= trips.first && ((whole - trips.first) & (trips.stride - 1)) == 0) {
      const Index i = whole * kVectorSize<T>;
      const int count = static_cast<int>(layout.innermost_size - i);
      Operands<T, rhs_moves> operands;
      operands.LoadScalars(lhs + (base.lhs + i), rhs + (base.rhs + (rhs_moves ? i : 0)), count);
      sums.Add(operands, layout.conjugates, count);
    }
    return sums;
  }

  // Sums along columns.
  static inline __device__ Sums<T> AlongColumns(const Layout<Index>& layout, const Element<T>* lhs,
                                                const Element<T>* rhs, const Trips<Index>& trips,
                                                const Columns& columns) {
    if (columns.count == 0) return {};
    return SumProducts(layout, lhs, rhs, columns.offsets, trips);
  }

  // The sums along a row of the thread's vectors.
  static inline __device__ void Rearrange(Sums<T>&, Index, Index) {}

 private:
  static inline __device__ Sums<T> SumProducts(const Layout<Index>& layout, const Element<T>* lhs,
                                               const Element<T>* rhs, const Offsets<Index>& base,
                                               const Trips<Index>& trips) {
    Sums<T> sums;
    const Step<Index>* const steps = layout.steps + layout.output_loops;
#pragma unroll 1
    for (Index item = trips.first; item < trips.end; item += trips.stride * kUnroll) {
      Index items[kUnroll];
      Offsets<Index> offsets[kUnroll];
      Operands<T, rhs_moves> operands[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        items[u] = item + u * trips.stride;
        offsets[u] = base;
      }
      AddOffsets(items, steps, has_one_loop ? 1 : layout.reduction_loops, offsets);
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

// Sums any plan: reads scalars.
template <typename T, typename I>
struct ScalarReader {
  using Index = I;
  static constexpr int kSize = kVectorSize<T>;
  // Leaves enough registers to have all loads of 16-bit elements in flight, which otherwise wait for each other.
  static constexpr int kMinColumnBlocks = sizeof(T) == 2 ? 2 : 0;

  // The elements first, first + stride, ... of some loops, counted along the vectors. The last vector in a row can have
  // fewer elements than are counted.
  struct Elements {
    Index vectors[kSize];
    Index columns[kSize];
    Offsets<Index> offsets[kSize];

    // `base` is added to the offsets of operands.
    inline __device__ Elements(const Layout<Index>& layout, const Step<Index>* steps, int loops, Index first,
                               Index stride, const Offsets<Index>& base) {
      const Divisor<Index> row_size = steps[loops - 1].size;
      Index rows[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const Index element = first + i * stride;
        vectors[i] = element / kSize;
        rows[i] = row_size.Divide(vectors[i]);
        columns[i] = element - rows[i] * (row_size.divisor() * kSize);
        offsets[i].lhs = base.lhs + columns[i] * layout.lhs_step;
        offsets[i].rhs = base.rhs + columns[i] * layout.rhs_step;
        offsets[i].out = rows[i] * layout.innermost_size + columns[i];
      }
      AddOffsets(rows, steps, loops - 1, offsets);
    }

    // Whether an element exists, of those in the vectors below `end`.
    inline __device__ bool Has(const Layout<Index>& layout, int i, Index end) const {
      return vectors[i] < end && columns[i] < layout.innermost_size;
    }
  };

  // The columns of a thread, every lanes-th.
  class Columns {
   public:
    inline __device__ Columns(const Layout<Index>& layout, Index tile, Index lane)
        : elements_(layout, layout.steps, layout.output_loops, tile * layout.lanes * kSize + lane, layout.lanes, {}) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        has_[i] = elements_.Has(layout, i, layout.output_items);
        // The first column exists, so its sums are computed in place of missing columns.
        if (!has_[i]) elements_.offsets[i] = {};
      }
    }
    inline __device__ bool Has(int i) const { return has_[i]; }
    inline __device__ Index OutOf(int i) const { return At(i).out; }
    inline __device__ const Offsets<Index>& At(int i) const { return elements_.offsets[i]; }

   private:
    Elements elements_;
    bool has_[kSize];
  };

  // Sums along a row. A warp has the elements of its threads' vectors. Each of the n threads of the warp that share a
  // row sums every n-th element.
  static inline __device__ Sums<T> AlongRow(const Layout<Index>& layout, const Element<T>* lhs, const Element<T>* rhs,
                                            const Offsets<Index>& base, const Trips<Index>& trips, Index lane) {
    Sums<T> sums;
    const Index stride = InWarp(trips.stride), in_warp = lane & (stride - 1);
    const Index first = (trips.first - in_warp) * kSize + in_warp;
    if (layout.reduction_loops == 1) {
      const Index whole = trips.end * kSize;
      const Index end = whole < layout.innermost_size ? whole : layout.innermost_size;
      const Index rhs_stride = stride * layout.rhs_step;
      Cursor at = {lhs + (base.lhs + first), rhs + (base.rhs + first * layout.rhs_step), first};
      // In most sums, whole warps share a row and both operands move along it, so the compiler knows the distances
      // between elements. Sums with 64-bit indices are too rare for separate code.
      if (sizeof(Index) == sizeof(uint32_t) && stride == kWarp && layout.rhs_step == 1) {
        AddWholeTrips(layout, kWarp, kWarp, trips.stride * kSize, end, &at, &sums);
      } else {
        AddWholeTrips(layout, stride, rhs_stride, trips.stride * kSize, end, &at, &sums);
      }
      if (at.element >= end) return sums;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (at.element + i * stride < end) {
          AddProductTo(sums.elements[i], at.lhs[i * stride], at.rhs[i * rhs_stride], layout.conjugates);
        }
      }
      return sums;
    }
#pragma unroll 1
    for (Index element = first; element < trips.end * kSize; element += trips.stride * kSize) {
      const Elements elements(layout, layout.steps + layout.output_loops, layout.reduction_loops, element, stride,
                              base);
      Element<T> lhs_elements[kSize], rhs_elements[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (elements.Has(layout, i, trips.end)) {
          lhs_elements[i] = lhs[elements.offsets[i].lhs];
          rhs_elements[i] = rhs[elements.offsets[i].rhs];
        }
      }
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (elements.Has(layout, i, trips.end)) {
          AddProductTo(sums.elements[i], lhs_elements[i], rhs_elements[i], layout.conjugates);
        }
      }
    }
    return sums;
  }

  // Sums along columns.
  static inline __device__ Sums<T> AlongColumns(const Layout<Index>& layout, const Element<T>* lhs,
                                                const Element<T>* rhs, const Trips<Index>& trips,
                                                const Columns& columns) {
    Sums<T> sums;
#pragma unroll 1
    for (Index item = trips.first; item < trips.end; item += trips.stride) {
      const Offsets<Index> row = OffsetsOf(item, layout.steps + layout.output_loops, layout.reduction_loops);
      Element<T> lhs_elements[kSize], rhs_elements[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        lhs_elements[i] = lhs[row.lhs + columns.At(i).lhs];
        rhs_elements[i] = rhs[row.rhs + columns.At(i).rhs];
      }
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        AddProductTo(sums.elements[i], lhs_elements[i], rhs_elements[i], layout.conjugates);
      }
    }
    return sums;
  }

  // Exchanges the sums along a row within the warp, so that each thread gets the sums of its vectors.
  static inline __device__ void Rearrange(Sums<T>& sums, Index lane, Index lanes) {
    __shared__ Sum<T> shared[kThreads * kSize];
    const Index stride = InWarp(lanes), in_warp = lane & (stride - 1);
    const Index first = (static_cast<Index>(threadIdx.x) - in_warp) * kSize + in_warp;
#pragma unroll
    for (int i = 0; i < kSize; ++i) shared[first + i * stride] = sums.elements[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSize; ++i) sums.elements[i] = shared[threadIdx.x * kSize + i];
    __syncwarp();
  }

 private:
  // Where a thread is in a row that is one loop.
  struct Cursor {
    const Element<T>* lhs;
    const Element<T>* rhs;
    Index element;
  };

  // The threads of a warp that share a row: a power of two.
  static inline __device__ Index InWarp(Index lanes) { return lanes < kWarp ? lanes : kWarp; }

  // Adds kSize products for each `step` elements, as long as all of them are before `end`.
  static inline __device__ void AddWholeTrips(const Layout<Index>& layout, Index lhs_stride, Index rhs_stride,
                                              Index step, Index end, Cursor* at, Sums<T>* sums) {
#pragma unroll 1
    for (; at->element + (kSize - 1) * lhs_stride < end; at->element += step) {
      Element<T> lhs_elements[kSize], rhs_elements[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        lhs_elements[i] = at->lhs[i * lhs_stride];
        rhs_elements[i] = at->rhs[i * rhs_stride];
      }
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        AddProductTo(sums->elements[i], lhs_elements[i], rhs_elements[i], layout.conjugates);
      }
      at->lhs += step;
      at->rhs += step * layout.rhs_step;
    }
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
  __shared__ Sum<T> warp_sums[kThreads / kWarp];
  const I lane = threadIdx.x & ((1 << layout.lane_bits) - 1);
  const I groups = kThreads >> layout.lane_bits;
  const I work = layout.outputs * layout.parts;
  // All threads of a block make the same number of trips, as shuffles and barriers require.
#pragma unroll 1
  for (I first = blockIdx.x * groups; first < work; first += gridDim.x * groups) {
    const I index = first + (threadIdx.x >> layout.lane_bits);
    const I part = layout.parts > 1 ? index / layout.outputs : 0;
    const I output = index - part * layout.outputs;
    Sums<T> sums;
    if (index < work) {
      const Offsets<I> offsets = OffsetsOf(output, layout.steps, layout.output_loops);
      sums = Reader::AlongRow(layout, lhs, rhs, offsets, TripsOf<I>(layout, part, lane, layout.lanes), lane);
    }
    Reader::Rearrange(sums, lane, layout.lanes);
    Sum<T> sum = sums.elements[0];
#pragma unroll
    for (int i = 1; i < kVectorSize<T>; ++i) AddTo(sum, sums.elements[i]);
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

// Sums along columns: `lanes` threads read neighboring vectors of a row, the other threads read the rows below.
template <typename T, typename Reader>
__global__ void __launch_bounds__(kThreads, Reader::kMinColumnBlocks)
    SumColumnsKernel(const __grid_constant__ Layout<typename Reader::Index> layout, const Element<T>* lhs,
                     const Element<T>* rhs, Element<T>* out, Sum<T>* scratch) {
  using I = typename Reader::Index;
  const I lanes = 1 << layout.lane_bits;
  const I lane = threadIdx.x & (lanes - 1);
  const I row = threadIdx.x >> layout.lane_bits;
  const I tiles = (layout.output_items + lanes - 1) >> layout.lane_bits;
#pragma unroll 1
  for (I index = blockIdx.x; index < tiles * layout.parts; index += gridDim.x) {
    const I part = layout.parts > 1 ? index / tiles : 0;
    const typename Reader::Columns columns(layout, index - part * tiles, lane);
    Sums<T> sums =
        Reader::AlongColumns(layout, lhs, rhs, TripsOf<I>(layout, part, row, kThreads >> layout.lane_bits), columns);
    SumAcrossRows(sums.elements, layout.lanes);
    if (row == 0) {
#pragma unroll
      for (int i = 0; i < kVectorSize<T>; ++i) {
        if (columns.Has(i)) Write<T, I>(layout, part, columns.OutOf(i), sums.elements[i], out, scratch);
      }
    }
  }
}

// Adds the parts of each sum: `lanes` threads have neighboring outputs, the other threads have more parts of the same
// outputs.
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
