// The kernels that sum products up. Each takes any number of blocks of kThreads threads, and its results do not depend
// on how many.
//
// Each has two ways to read, of the same order of additions: in packs, for the shapes and addresses that most calls
// have, and singly, for any plan.

#ifndef TF_CG_OPS_CUDA_SUMS_CUH_
#define TF_CG_OPS_CUDA_SUMS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/arithmetic.cuh"
#include "cuda/packs.cuh"
#include "cuda/schedule.h"
#include "cuda/walk.h"

namespace tf_cg_ops::cuda {

// The sums of a thread, one for each place in a pack, so that additions need not wait for each other.
template <typename T>
struct Sums {
  Sum<T> elements[kPack<T>] = {};

  // Elements behind the first `count` were not read: they could make a nan with an infinity.
  template <bool rhs_moves>
  inline __device__ void Add(const Operands<T, rhs_moves>& operands, Conjugates conjugates, int count = kPack<T>) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i < count) AddProductTo(elements[i], operands.lhs.At(i), operands.rhs.At(i), conjugates);
    }
  }
};

// Trips of the reduced loops: first, first + stride, ... below end.
template <typename I>
struct Trips {
  I first;
  I stride;
  I end;
};

// Sums of operands that are read in whole packs. With `has_one_loop`, each sum is over one loop.
template <typename T, bool rhs_moves, bool has_one_loop>
struct InPacks {
  using Index = uint32_t;

  // Of products along a row, which may end within a pack if it is the only loop.
  static inline __device__ Sums<T> AlongRow(const Layout<Index>& layout, const Element<T>* lhs, const Element<T>* rhs,
                                            const Trips<Index>& trips) {
    if (!has_one_loop) return AddUp(layout, lhs, rhs, trips);
    const Index whole = layout.innermost_size / kPack<T>;
    Sums<T> sums = AddUp(layout, lhs, rhs, {trips.first, trips.stride, whole < trips.end ? whole : trips.end});
    // The stride is a power of two.
    if (whole < trips.end && whole >= trips.first && ((whole - trips.first) & (trips.stride - 1)) == 0) {
      const Index i = whole * kPack<T>;
      const int count = static_cast<int>(layout.innermost_size - i);
      Operands<T, rhs_moves> operands;
      operands.LoadSingly(lhs + i, rhs + (rhs_moves ? i : 0), count);
      sums.Add(operands, layout.conjugates, count);
    }
    return sums;
  }

  // Of products in columns, all of a pack.
  static inline __device__ Sums<T> AlongColumns(const Layout<Index>& layout, const Element<T>* lhs,
                                                const Element<T>* rhs, const Trips<Index>& trips, int) {
    return AddUp(layout, lhs, rhs, trips);
  }

 private:
  static inline __device__ Sums<T> AddUp(const Layout<Index>& layout, const Element<T>* lhs, const Element<T>* rhs,
                                         const Trips<Index>& trips) {
    Sums<T> sums;
    const Step<Index>* const steps = layout.steps + layout.kept;
#pragma unroll 1
    for (Index item = trips.first; item < trips.end; item += trips.stride * kUnroll) {
      Index items[kUnroll];
      Place<Index> places[kUnroll];
      Operands<T, rhs_moves> operands[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) items[u] = item + u * trips.stride;
      FindPlaces(items, steps, has_one_loop ? 1 : layout.reduced, places);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (items[u] < trips.end) operands[u].Load(lhs + places[u].lhs, rhs + places[u].rhs);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (items[u] < trips.end) sums.Add(operands[u], layout.conjugates);
      }
    }
    return sums;
  }
};

// Sums for any plan: reads single elements.
template <typename T, typename I>
struct Singly {
  using Index = I;

  static inline __device__ int CountAt(const Layout<Index>& layout, Index innermost) {
    const Index left = layout.innermost_size - innermost * kPack<T>;
    return left < kPack<T> ? static_cast<int>(left) : kPack<T>;
  }

  static inline __device__ Sums<T> AlongRow(const Layout<Index>& layout, const Element<T>* lhs, const Element<T>* rhs,
                                            const Trips<Index>& trips) {
    return AlongColumns(layout, lhs, rhs, trips, 0);
  }

  // `count` is that of the columns' pack, or 0 where products lie along a row.
  static inline __device__ Sums<T> AlongColumns(const Layout<Index>& layout, const Element<T>* lhs,
                                                const Element<T>* rhs, const Trips<Index>& trips, int count) {
    Sums<T> sums;
#pragma unroll 1
    for (Index item = trips.first; item < trips.end; item += trips.stride) {
      const Place<Index> place = PlaceOf(item, layout.steps + layout.kept, layout.reduced);
      const int here = count > 0 ? count : CountAt(layout, place.innermost);
      Element<T> from_lhs[kPack<T>] = {}, from_rhs[kPack<T>] = {};
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        if (i < here) {
          from_lhs[i] = lhs[place.lhs + i * layout.lhs_step];
          from_rhs[i] = rhs[place.rhs + i * layout.rhs_step];
        }
      }
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        if (i < here) AddProductTo(sums.elements[i], from_lhs[i], from_rhs[i], layout.conjugates);
      }
    }
    return sums;
  }
};

// Of the part of that number.
template <typename I>
inline __device__ Trips<I> TripsOf(const Layout<I>& layout, I part, I offset, I stride) {
  const I begin = part * layout.part_items;
  const I past = begin + layout.part_items;
  return {begin + offset, stride, past < layout.reduced_items ? past : layout.reduced_items};
}

// Writes a sum to out, or to the scratch memory where there are parts to add up.
template <typename T, typename I>
inline __device__ void Write(const Layout<I>& layout, I part, I output, Sum<T> sum, Element<T>* out, Sum<T>* scratch) {
  if (layout.parts > 1) {
    scratch[part * layout.outputs + output] = sum;
  } else {
    Round(sum, out + output);
  }
}

// The products of one sum lie along rows: `lanes` threads read one of them side by side.
template <typename T, typename Reader>
__global__ void __launch_bounds__(kThreads)
    SumRowsKernel(const __grid_constant__ Layout<typename Reader::Index> layout, const Element<T>* lhs,
                  const Element<T>* rhs, Element<T>* out, Sum<T>* scratch) {
  using I = typename Reader::Index;
  constexpr int kWarp = 32;
  __shared__ Sum<T> of_warps[kThreads / kWarp];
  const I lane = threadIdx.x % layout.lanes;
  const I groups = kThreads / layout.lanes;
  const I work = layout.outputs * layout.parts;
  // All threads of a block go through the loop equally often, as shuffles and barriers need it.
#pragma unroll 1
  for (I first = blockIdx.x * groups; first < work; first += gridDim.x * groups) {
    const I index = first + threadIdx.x / layout.lanes;
    const I part = layout.parts > 1 ? index / layout.outputs : 0;
    const I output = index - part * layout.outputs;
    Sum<T> sum = {};
    if (index < work) {
      const Place<I> place = PlaceOf(output, layout.steps, layout.kept);
      const Sums<T> sums =
          Reader::AlongRow(layout, lhs + place.lhs, rhs + place.rhs, TripsOf<I>(layout, part, lane, layout.lanes));
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) AddTo(sum, sums.elements[i]);
    }
    for (int mask = (layout.lanes < kWarp ? layout.lanes : kWarp) / 2; mask > 0; mask /= 2) {
      AddTo(sum, FromLane(sum, mask));
    }
    if (layout.lanes > kWarp) {
      if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sum;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int warp = 1; warp < kThreads / kWarp; ++warp) AddTo(sum, of_warps[warp]);
      }
      __syncthreads();
    }
    if (lane == 0 && index < work) Write<T, I>(layout, part, output, sum, out, scratch);
  }
}

// Adds up what the threads that are `lanes` apart have; the first `lanes` threads get the sums.
template <typename S, int count>
inline __device__ void AddUpBelow(S (&sums)[count], int lanes) {
  // One row of threads for each place, so that neighbours use neighbouring banks.
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

// The products of one sum lie across rows: `lanes` threads read neighbouring packs of one, the others those below.
template <typename T, typename Reader>
__global__ void __launch_bounds__(kThreads)
    SumColumnsKernel(const __grid_constant__ Layout<typename Reader::Index> layout, const Element<T>* lhs,
                     const Element<T>* rhs, Element<T>* out, Sum<T>* scratch) {
  using I = typename Reader::Index;
  const I lane = threadIdx.x % layout.lanes;
  const I row = threadIdx.x / layout.lanes;
  const I tiles = (layout.kept_items + layout.lanes - 1) / layout.lanes;
#pragma unroll 1
  for (I index = blockIdx.x; index < tiles * layout.parts; index += gridDim.x) {
    const I part = layout.parts > 1 ? index / tiles : 0;
    const I item = (index - part * tiles) * layout.lanes + lane;
    Sums<T> sums;
    Place<I> place;
    int count = 0;
    if (item < layout.kept_items) {
      place = PlaceOf(item, layout.steps, layout.kept);
      const I left = layout.innermost_size - place.innermost * kPack<T>;
      count = left < kPack<T> ? static_cast<int>(left) : kPack<T>;
      sums = Reader::AlongColumns(layout, lhs + place.lhs, rhs + place.rhs,
                                  TripsOf<I>(layout, part, row, kThreads / layout.lanes), count);
    }
    AddUpBelow(sums.elements, layout.lanes);
    if (row == 0) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        if (i < count) Write<T, I>(layout, part, place.out + i, sums.elements[i], out, scratch);
      }
    }
  }
}

// Adds up the parts: `lanes` threads take neighbouring outputs, the others parts of the same ones.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddPartsKernel(const Sum<T>* scratch, int64_t outputs, int64_t parts, int lanes, Element<T>* out) {
  constexpr int kLoads = 8;  // Under way at once.
  const int64_t tiles = (outputs + lanes - 1) / lanes;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t output = tile * lanes + threadIdx.x % lanes;
    Sum<T> sums[1] = {};
    if (output < outputs) {
      const int64_t stride = kThreads / lanes;
      for (int64_t first = threadIdx.x / lanes; first < parts; first += stride * kLoads) {
        Sum<T> some[kLoads] = {};
#pragma unroll
        for (int u = 0; u < kLoads; ++u) {
          const int64_t part = first + u * stride;
          if (part < parts) some[u] = scratch[part * outputs + output];
        }
#pragma unroll
        for (int u = 0; u < kLoads; ++u) AddTo(sums[0], some[u]);
      }
    }
    AddUpBelow(sums, lanes);
    if (static_cast<int>(threadIdx.x) < lanes && output < outputs) Round(sums[0], out + output);
  }
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_SUMS_CUH_
