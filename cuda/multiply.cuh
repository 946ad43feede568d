// The kernels without sums. Each runs with any number of blocks of kThreads threads, which does not change the results.

#ifndef TF_CG_OPS_CUDA_MULTIPLY_CUH_
#define TF_CG_OPS_CUDA_MULTIPLY_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/arithmetic.cuh"
#include "cuda/indexing.h"
#include "cuda/schedule.h"
#include "cuda/vector.cuh"

namespace tf_cg_ops::cuda {

template <typename T>
inline __device__ void MultiplyElement(Element<T> lhs, Element<T> rhs, Conjugates conjugates, Element<T>* out) {
  Round(Multiplied(Widened(lhs), Widened(rhs), conjugates), out);
}

// The operands of one product.
template <typename T>
struct ElementPair {
  Element<T> lhs;
  Element<T> rhs;

  inline __device__ void Load(const Element<T>* from_lhs, const Element<T>* from_rhs) {
    lhs = *from_lhs;
    rhs = *from_rhs;
  }
};

template <typename T>
inline __device__ void Multiply(const ElementPair<T>& operands, Conjugates conjugates, Element<T>* out) {
  MultiplyElement<T>(operands.lhs, operands.rhs, conjugates, out);
}

template <typename T, bool rhs_moves>
inline __device__ void Multiply(const Operands<T, rhs_moves>& operands, Conjugates conjugates, Element<T>* out) {
  Vector<T> products;
#pragma unroll
  for (int i = 0; i < kVectorSize<T>; ++i) {
    MultiplyElement<T>(operands.lhs.At(i), operands.rhs.At(i), conjugates, &products.elements[i]);
  }
  *reinterpret_cast<Vector<T>*>(out) = products;
}

// out = lhs * rhs along one loop of at most kMaxFlatElements. Vectors begin at aligned addresses of out, where the
// operands are aligned too; the elements before and after them are scalars.
template <typename T, bool rhs_moves>
__global__ void __launch_bounds__(kThreads) MultiplyFlatKernel(const Element<T>* lhs, const Element<T>* rhs,
                                                               Element<T>* out, uint32_t count, Conjugates conjugates) {
  const uint32_t to_boundary = -reinterpret_cast<uintptr_t>(out) % kVectorBytes / sizeof(Element<T>);
  const uint32_t head = to_boundary < count ? to_boundary : count;
  const uint32_t vectors = (count - head) / kVectorSize<T>;
  const uint32_t scalars = count - vectors * kVectorSize<T>;
  if (blockIdx.x == 0 && threadIdx.x < scalars) {
    const uint32_t i = threadIdx.x < head ? threadIdx.x : threadIdx.x + vectors * kVectorSize<T>;
    MultiplyElement<T>(lhs[i], rhs[rhs_moves ? i : 0], conjugates, out + i);
  }
  lhs += head;
  rhs += rhs_moves ? head : 0;
  out += head;
  constexpr uint32_t kTile = kThreads * kUnroll;
#pragma unroll 1
  for (uint32_t tile = blockIdx.x * kTile; tile < vectors; tile += gridDim.x * kTile) {
    Operands<T, rhs_moves> operands[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t item = tile + u * kThreads + threadIdx.x;
      if (item >= vectors) break;
      const uint32_t i = item * kVectorSize<T>;
      operands[u].Load(lhs + i, rhs + (rhs_moves ? i : 0));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t item = tile + u * kThreads + threadIdx.x;
      if (item >= vectors) break;
      Multiply(operands[u], conjugates, out + item * kVectorSize<T>);
    }
  }
}

// out = lhs * rhs along any loops. A thread takes kUnroll items of a tile, every kThreads-th, of `size` elements each.
template <typename T, typename Item, int size, typename I>
inline __device__ void MultiplyItems(const Layout<I>& layout, const Element<T>* lhs, const Element<T>* rhs,
                                     Element<T>* out) {
  constexpr I kTile = kThreads * kUnroll;
#pragma unroll 1
  for (I tile = blockIdx.x * kTile; tile < layout.output_items; tile += gridDim.x * kTile) {
    I items[kUnroll];
    Offsets<I> offsets[kUnroll];
    Item operands[kUnroll];
    const I first = tile + static_cast<I>(threadIdx.x);
    if (first >= layout.output_items) return;
      // A thread with fewer items loads its first one again, which costs less than a condition. Another thread may be
      // writing any other item, because out can be an operand.
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const I item = first + u * kThreads;
      items[u] = item < layout.output_items ? item : first;
    }
    FindOffsets(items, layout.steps, layout.output_loops, offsets);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) operands[u].Load(lhs + offsets[u].lhs, rhs + offsets[u].rhs);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const I item = tile + u * kThreads + static_cast<I>(threadIdx.x);
      if (item < layout.output_items) Multiply(operands[u], layout.conjugates, out + item * size);
    }
  }
}

// In vectors: rows consist of whole, aligned vectors.
template <typename T, bool rhs_moves>
__global__ void __launch_bounds__(kThreads)
    MultiplyRowsKernel(const __grid_constant__ Layout<uint32_t> layout, const Element<T>* lhs, const Element<T>* rhs,
                       Element<T>* out) {
  MultiplyItems<T, Operands<T, rhs_moves>, kVectorSize<T>>(layout, lhs, rhs, out);
}

// Element by element, for long rows. A warp takes a segment of a row; a trip of the innermost loop is one segment.
template <typename T, bool rhs_moves>
__global__ void __launch_bounds__(kThreads)
    MultiplySegmentsKernel(const __grid_constant__ Layout<uint32_t> layout, const Element<T>* lhs,
                           const Element<T>* rhs, Element<T>* out) {
  constexpr uint32_t kWarps = kThreads / kWarp;
  constexpr int kSegment = SegmentSize(sizeof(Element<T>)), kElements = kSegment / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (uint32_t item = blockIdx.x * kWarps + threadIdx.x / kWarp; item < layout.output_items;
       item += gridDim.x * kWarps) {
    const Offsets<uint32_t> offsets = OffsetsOf(item, layout.steps, layout.output_loops);
    // Neighboring threads have neighboring elements, and each thread every kWarp-th.
    const auto left = static_cast<int32_t>(layout.innermost_size - offsets.innermost * kSegment - lane);
    const Element<T>* const from_lhs = lhs + (offsets.lhs + lane);
    const Element<T>* const from_rhs = rhs + (offsets.rhs + (rhs_moves ? lane : 0));
    Element<T>* const to = out + (offsets.out + lane);
    Element<T> lhs_elements[kElements], rhs_elements[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i * kWarp < left) {
        lhs_elements[i] = from_lhs[i * kWarp];
        if (i == 0 || rhs_moves) rhs_elements[i] = from_rhs[i * kWarp];
      }
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i * kWarp < left) {
        MultiplyElement<T>(lhs_elements[i], rhs_elements[rhs_moves ? i : 0], layout.conjugates, to + i * kWarp);
      }
    }
  }
}

// Element by element, for any rows.
template <typename T, typename I>
__global__ void __launch_bounds__(kThreads)
    MultiplyScalarKernel(const __grid_constant__ Layout<I> layout, const Element<T>* lhs, const Element<T>* rhs,
                         Element<T>* out) {
  MultiplyItems<T, ElementPair<T>, 1>(layout, lhs, rhs, out);
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_MULTIPLY_CUH_
