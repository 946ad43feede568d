// The kernels without sums. Each takes any number of blocks of kThreads threads, and its results do not depend on how
// many.

#ifndef TF_CG_OPS_CUDA_MULTIPLY_CUH_
#define TF_CG_OPS_CUDA_MULTIPLY_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/arithmetic.cuh"
#include "cuda/packs.cuh"
#include "cuda/schedule.h"
#include "cuda/walk.h"

namespace tf_cg_ops::cuda {

template <typename T>
inline __device__ void MultiplySingle(Element<T> lhs, Element<T> rhs, Conjugates conjugates, Element<T>* out) {
  Round(Multiplied(Widened(lhs), Widened(rhs), conjugates), out);
}

template <typename T, bool rhs_moves>
inline __device__ void MultiplyPack(const Operands<T, rhs_moves>& operands, Conjugates conjugates, Element<T>* out) {
  Pack<T> products;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    MultiplySingle<T>(operands.lhs.At(i), operands.rhs.At(i), conjugates, &products.elements[i]);
  }
  *reinterpret_cast<Pack<T>*>(out) = products;
}

// out = lhs * rhs along one loop of at most kMaxFlatElements. Packs lie at the boundaries of out's packs, and single
// elements before and behind them. Where `is_in_packs`, the operands' packs begin where those of out do.
template <typename T, bool rhs_moves, bool is_in_packs>
__global__ void __launch_bounds__(kThreads) MultiplyFlatKernel(const Element<T>* lhs, const Element<T>* rhs,
                                                               Element<T>* out, uint32_t count, Conjugates conjugates) {
  const uint32_t to_boundary = -reinterpret_cast<uintptr_t>(out) % kPackBytes / sizeof(Element<T>);
  const uint32_t head = to_boundary < count ? to_boundary : count;
  const uint32_t packs = (count - head) / kPack<T>;
  const uint32_t singles = count - packs * kPack<T>;
  if (blockIdx.x == 0 && threadIdx.x < singles) {
    const uint32_t i = threadIdx.x < head ? threadIdx.x : threadIdx.x + packs * kPack<T>;
    MultiplySingle<T>(lhs[i], rhs[rhs_moves ? i : 0], conjugates, out + i);
  }
  lhs += head;
  rhs += rhs_moves ? head : 0;
  out += head;
  constexpr uint32_t kTile = kThreads * kUnroll;
#pragma unroll 1
  for (uint32_t tile = blockIdx.x * kTile; tile < packs; tile += gridDim.x * kTile) {
    Operands<T, rhs_moves> operands[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t item = tile + u * kThreads + threadIdx.x;
      if (item >= packs) break;
      const uint32_t i = item * kPack<T>;
      if (is_in_packs) {
        operands[u].Load(lhs + i, rhs + (rhs_moves ? i : 0));
      } else {
        operands[u].LoadSingly(lhs + i, rhs + (rhs_moves ? i : 0), kPack<T>);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t item = tile + u * kThreads + threadIdx.x;
      if (item >= packs) break;
      MultiplyPack<T>(operands[u], conjugates, out + item * kPack<T>);
    }
  }
}

// The items of a thread: every kThreads-th of a tile.
template <typename I>
inline __device__ void ItemsOf(I tile, I (&items)[kUnroll]) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) items[u] = tile + u * kThreads + static_cast<I>(threadIdx.x);
}

// out = lhs * rhs along any loops, in packs: rows are whole packs, at boundaries of packs.
template <typename T, bool rhs_moves>
__global__ void __launch_bounds__(kThreads)
    MultiplyRowsKernel(const __grid_constant__ Layout<uint32_t> layout, const Element<T>* lhs, const Element<T>* rhs,
                       Element<T>* out) {
  constexpr uint32_t kTile = kThreads * kUnroll;
#pragma unroll 1
  for (uint32_t tile = blockIdx.x * kTile; tile < layout.kept_items; tile += gridDim.x * kTile) {
    uint32_t items[kUnroll];
    Place<uint32_t> places[kUnroll];
    ItemsOf(tile, items);
    FindPlaces(items, layout.steps, layout.kept, places);
    Operands<T, rhs_moves> operands[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (items[u] >= layout.kept_items) break;
      operands[u].Load(lhs + places[u].lhs, rhs + places[u].rhs);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (items[u] >= layout.kept_items) break;
      MultiplyPack<T>(operands[u], layout.conjugates, out + items[u] * kPack<T>);
    }
  }
}

// out = lhs * rhs along any loops, element by element.
template <typename T, typename I>
__global__ void __launch_bounds__(kThreads)
    MultiplySinglyKernel(const __grid_constant__ Layout<I> layout, const Element<T>* lhs, const Element<T>* rhs,
                         Element<T>* out) {
  constexpr I kTile = kThreads * kUnroll;
#pragma unroll 1
  for (I tile = blockIdx.x * kTile; tile < layout.kept_items; tile += gridDim.x * kTile) {
    I items[kUnroll];
    Place<I> places[kUnroll];
    ItemsOf(tile, items);
    FindPlaces(items, layout.steps, layout.kept, places);
    Element<T> from_lhs[kUnroll] = {}, from_rhs[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (items[u] >= layout.kept_items) break;
      from_lhs[u] = lhs[places[u].lhs];
      from_rhs[u] = rhs[places[u].rhs];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (items[u] >= layout.kept_items) break;
      MultiplySingle<T>(from_lhs[u], from_rhs[u], layout.conjugates, out + items[u]);
    }
  }
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_MULTIPLY_CUH_
