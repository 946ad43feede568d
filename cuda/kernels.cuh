// The kernels. Each takes any number of blocks of kThreads threads, and its results do not depend on how many.

#ifndef TF_CG_OPS_CUDA_KERNELS_CUH_
#define TF_CG_OPS_CUDA_KERNELS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "cuda/arithmetic.cuh"
#include "cuda/schedule.h"
#include "cuda/walk.h"

namespace tf_cg_ops::cuda {

template <typename T>
inline constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));

template <typename T>
struct alignas(kPackBytes) Pack {
  Element<T> elements[kPack<T>];
};

// A pack as it was read. It is taken apart only where it is used: a thread that did so at once would wait for each pack
// before it asks for the next.
struct alignas(kPackBytes) RawPack {
  uint32_t words[kPackBytes / sizeof(uint32_t)];
};

template <typename T>
inline __device__ Element<T> ElementAt(const RawPack& raw, int i) {
  Pack<T> pack;
  memcpy(&pack, &raw, sizeof(pack));
  return pack.elements[i];
}

// Reads `count` elements, which is all of them or what a row has left; or the first alone, which stands for all where
// the operand does not move.
template <typename T>
inline __device__ RawPack Load(const Element<T>* from, bool moves, bool is_aligned, int count) {
  RawPack raw;
  if (moves && is_aligned && count == kPack<T>) {
    raw = *reinterpret_cast<const RawPack*>(from);
  } else {
    Pack<T> pack = {};
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i < (moves ? count : 1)) pack.elements[i] = from[i];
    }
    memcpy(&raw, &pack, sizeof(raw));
  }
  return raw;
}

inline __device__ int CountAt(const Layout& layout, int64_t innermost, int pack) {
  const int64_t left = layout.innermost_size - innermost * pack;
  return left < pack ? static_cast<int>(left) : pack;
}

// Both operands at one place, under way to the thread.
struct Operands {
  RawPack lhs;
  RawPack rhs;
  int count = 0;
};

template <typename T>
inline __device__ Operands LoadBoth(const Layout& layout, const Element<T>* lhs, const Element<T>* rhs, int count) {
  return {Load<T>(lhs, layout.lhs_moves, layout.lhs_is_aligned, count),
          Load<T>(rhs, layout.rhs_moves, layout.rhs_is_aligned, count), count};
}

// The element for place i of a pack. Both are taken at fixed places: an array that is indexed by what shows at run time
// lies in memory.
template <typename T>
inline __device__ Element<T> ElementFor(const RawPack& raw, bool moves, int i) {
  return moves ? ElementAt<T>(raw, i) : ElementAt<T>(raw, 0);
}

template <typename T>
inline __device__ Product<T> ProductAt(const Layout& layout, const Operands& operands, int i) {
  return Multiplied(Widened(ElementFor<T>(operands.lhs, layout.lhs_moves, i)),
                    Widened(ElementFor<T>(operands.rhs, layout.rhs_moves, i)), layout.conjugate);
}

// out = lhs * rhs, a pack at once or, where those do not fit, a single element.
template <typename T, int width>
__global__ void __launch_bounds__(kThreads) MultiplyKernel(const __grid_constant__ Layout layout, const Element<T>* lhs,
                                                           const Element<T>* rhs, Element<T>* out) {
  constexpr int64_t kTile = kThreads * kUnroll;
  for (int64_t tile = blockIdx.x * kTile; tile < layout.kept_items; tile += gridDim.x * kTile) {
    Operands operands[kUnroll];
    int64_t places[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t item = tile + u * kThreads + threadIdx.x;
      if (item >= layout.kept_items) break;
      const Place place = PlaceOf(item, layout.steps, layout.kept);
      places[u] = place.out;
      operands[u] = LoadBoth<T>(layout, lhs + place.lhs, rhs + place.rhs, CountAt(layout, place.innermost, width));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (operands[u].count == 0) break;
      Pack<T> products;
#pragma unroll
      for (int i = 0; i < width; ++i) Round(ProductAt<T>(layout, operands[u], i), &products.elements[i]);
      Element<T>* const to = out + places[u];
      if (width == kPack<T> && operands[u].count == width) {
        *reinterpret_cast<Pack<T>*>(to) = products;
      } else {
#pragma unroll
        for (int i = 0; i < width; ++i) {
          if (i < operands[u].count) to[i] = products.elements[i];
        }
      }
    }
  }
}

// The sums of a thread, one for each place in a pack, so that additions need not wait for each other.
template <typename T>
struct Sums {
  Sum<T> elements[kPack<T>] = {};

  inline __device__ void Add(const Layout& layout, const Operands& operands) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      // What was not read could make a nan with an infinity.
      if (i < operands.count) AddTo(elements[i], ProductAt<T>(layout, operands, i));
    }
  }
};

// Adds up the trips first, first + stride, ... below end of the reduced loops. `count` is that of the packs where the
// innermost loop is kept; 0 where it is reduced.
template <typename T>
inline __device__ Sums<T> SumUp(const Layout& layout, const Element<T>* lhs, const Element<T>* rhs, int64_t first,
                                int64_t stride, int64_t end, int count) {
  Sums<T> sums;
  const Step* const steps = layout.steps + layout.kept;
  for (int64_t item = first; item < end; item += stride * kUnroll) {
    Operands operands[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (item + u * stride >= end) break;
      const Place place = PlaceOf(item + u * stride, steps, layout.reduced);
      operands[u] = LoadBoth<T>(layout, lhs + place.lhs, rhs + place.rhs,
                                count > 0 ? count : CountAt(layout, place.innermost, kPack<T>));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sums.Add(layout, operands[u]);
  }
  return sums;
}

// Writes sums to out, or to the scratch memory where there are parts to be added up yet.
template <typename T>
inline __device__ void Write(const Layout& layout, int64_t part, int64_t output, Sum<T> sum, Element<T>* out,
                             Sum<T>* scratch) {
  if (layout.parts > 1) {
    scratch[part * layout.outputs + output] = sum;
  } else {
    Round(sum, out + output);
  }
}

// What is summed up lies along rows: `lanes` threads read one of them side by side.
template <typename T>
__global__ void __launch_bounds__(kThreads) SumRowsKernel(const __grid_constant__ Layout layout, const Element<T>* lhs,
                                                          const Element<T>* rhs, Element<T>* out, Sum<T>* scratch) {
  constexpr int kWarp = 32;
  __shared__ Sum<T> of_warps[kThreads / kWarp];
  const int lane = threadIdx.x % layout.lanes;
  const int64_t groups = kThreads / layout.lanes;
  const int64_t work = layout.outputs * layout.parts;
  // All threads of a block go through the loop equally often, as shuffles and barriers need it.
  for (int64_t first = blockIdx.x * groups; first < work; first += gridDim.x * groups) {
    const int64_t index = first + threadIdx.x / layout.lanes;
    const int64_t part = layout.parts > 1 ? index / layout.outputs : 0;
    const int64_t output = index - part * layout.outputs;
    Sum<T> sum = {};
    if (index < work) {
      const Place place = PlaceOf(output, layout.steps, layout.kept);
      const int64_t begin = part * layout.part_items;
      const int64_t past = begin + layout.part_items;
      const int64_t end = past < layout.reduced_items ? past : layout.reduced_items;
      const Sums<T> sums = SumUp<T>(layout, lhs + place.lhs, rhs + place.rhs, begin + lane, layout.lanes, end, 0);
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
    if (lane == 0 && index < work) Write<T>(layout, part, output, sum, out, scratch);
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

// What is summed up lies across rows: `lanes` threads read neighbouring packs of one, the others those below.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumColumnsKernel(const __grid_constant__ Layout layout, const Element<T>* lhs, const Element<T>* rhs,
                     Element<T>* out, Sum<T>* scratch) {
  const int lane = threadIdx.x % layout.lanes;
  const int row = threadIdx.x / layout.lanes;
  const int64_t tiles = (layout.kept_items + layout.lanes - 1) / layout.lanes;
  for (int64_t index = blockIdx.x; index < tiles * layout.parts; index += gridDim.x) {
    const int64_t part = layout.parts > 1 ? index / tiles : 0;
    const int64_t item = (index - part * tiles) * layout.lanes + lane;
    Sums<T> sums;
    Place place;
    int count = 0;
    if (item < layout.kept_items) {
      place = PlaceOf(item, layout.steps, layout.kept);
      count = CountAt(layout, place.innermost, kPack<T>);
      const int64_t begin = part * layout.part_items;
      const int64_t past = begin + layout.part_items;
      const int64_t end = past < layout.reduced_items ? past : layout.reduced_items;
      sums = SumUp<T>(layout, lhs + place.lhs, rhs + place.rhs, begin + row, kThreads / layout.lanes, end, count);
    }
    AddUpBelow(sums.elements, layout.lanes);
    if (row == 0) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        if (i < count) Write<T>(layout, part, place.out + i, sums.elements[i], out, scratch);
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

#endif  // TF_CG_OPS_CUDA_KERNELS_CUH_
