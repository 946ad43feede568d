// The kernels without sums. Each runs with any number of blocks of kThreads threads; its results do not depend on that
// number.

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
  Element<T> lhs = {};
  Element<T> rhs = {};

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

// out = lhs * rhs along one loop of at most kMaxFlatElements. Vectors begin at the aligned addresses of out; the
// elements before and after them are scalars. With `is_vectorized`, the operands are aligned where out is.
template <typename T, bool rhs_moves, bool is_vectorized>
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
      if (is_vectorized) {
        operands[u].Load(lhs + i, rhs + (rhs_moves ? i : 0));
      } else {
        operands[u].LoadScalars(lhs + i, rhs + (rhs_moves ? i : 0), kVectorSize<T>);
      }
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
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) items[u] = tile + u * kThreads + static_cast<I>(threadIdx.x);
    FindOffsets(items, layout.steps, layout.output_loops, offsets);
    Item operands[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (items[u] >= layout.output_items) break;
      operands[u].Load(lhs + offsets[u].lhs, rhs + offsets[u].rhs);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (items[u] >= layout.output_items) break;
      Multiply(operands[u], layout.conjugates, out + items[u] * size);
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

// Element by element.
template <typename T, typename I>
__global__ void __launch_bounds__(kThreads)
    MultiplyScalarKernel(const __grid_constant__ Layout<I> layout, const Element<T>* lhs, const Element<T>* rhs,
                         Element<T>* out) {
  MultiplyItems<T, ElementPair<T>, 1>(layout, lhs, rhs, out);
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_MULTIPLY_CUH_
