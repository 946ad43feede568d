// How threads load operands: as vectors of 16 bytes, or one element for all lanes of a vector.

#ifndef TF_CG_OPS_CUDA_VECTOR_CUH_
#define TF_CG_OPS_CUDA_VECTOR_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "cuda/arithmetic.cuh"
#include "cuda/indexing.h"
#include "cuda/schedule.h"

namespace tf_cg_ops::cuda {

// The elements of a vector.
template <typename T>
inline constexpr int kVectorSize = kVectorBytes / static_cast<int>(sizeof(T));

template <typename T>
struct alignas(kVectorBytes) Vector {
  Element<T> elements[kVectorSize<T>];
};

// The bytes of a vector in memory. Operand splits them into elements only when they are used. Splitting a vector at
// once would make the thread wait for it before the next load.
struct alignas(kVectorBytes) RawVector {
  uint32_t words[kVectorBytes / sizeof(uint32_t)];
};

// The elements of an operand for one vector of products, once it is loaded.
template <typename T, bool moves>
class Operand {
 public:
  // Loads a vector from an aligned address.
  inline __device__ void Load(const Element<T>* from) { raw_ = *reinterpret_cast<const RawVector*>(from); }

  // Loads the first `count` elements one by one, from any address.
  inline __device__ void LoadScalars(const Element<T>* from, int count) {
    Vector<T> vector = {};
#pragma unroll
    for (int i = 0; i < kVectorSize<T>; ++i) {
      if (i < count) vector.elements[i] = from[i];
    }
    memcpy(&raw_, &vector, sizeof(raw_));
  }

  inline __device__ Element<T> At(int i) const {
    Vector<T> vector;
    memcpy(&vector, &raw_, sizeof(vector));
    return vector.elements[i];
  }

 private:
  RawVector raw_;
};

// One element for all lanes.
template <typename T>
class Operand<T, /*moves=*/false> {
 public:
  inline __device__ void Load(const Element<T>* from) { element_ = *from; }
  inline __device__ void LoadScalars(const Element<T>* from, int) { element_ = *from; }
  inline __device__ Element<T> At(int) const { return element_; }

 private:
  Element<T> element_;
};

// Both operands of one vector of products.
template <typename T, bool rhs_moves>
struct Operands {
  Operand<T, true> lhs;
  Operand<T, rhs_moves> rhs;

  inline __device__ void Load(const Element<T>* from_lhs, const Element<T>* from_rhs) {
    lhs.Load(from_lhs);
    rhs.Load(from_rhs);
  }
  inline __device__ void LoadScalars(const Element<T>* from_lhs, const Element<T>* from_rhs, int count) {
    lhs.LoadScalars(from_lhs, count);
    rhs.LoadScalars(from_rhs, count);
  }
};

// Adds the operands' offsets for the trips items[0], items[1], ... of the loops [0, count). Goes through the loops once
// for all trips, so that each step is read once.
template <typename I, int items_count>
inline __device__ void AddOffsets(const I (&items)[items_count], const Step<I>* steps, int count,
                                  Offsets<I> (&offsets)[items_count]) {
  I left[items_count];
#pragma unroll
  for (int k = 0; k < items_count; ++k) left[k] = items[k];
#pragma unroll 1
  for (int i = count - 1; i > 0; --i) {
    const Step<I> step = steps[i];
#pragma unroll
    for (int k = 0; k < items_count; ++k) {
      const I outer = step.size.Divide(left[k]);
      const I trip = left[k] - outer * step.size.divisor();
      offsets[k].lhs += trip * step.lhs;
      offsets[k].rhs += trip * step.rhs;
      left[k] = outer;
    }
  }
#pragma unroll
  for (int k = 0; k < items_count; ++k) {
    offsets[k].lhs += left[k] * steps[0].lhs;
    offsets[k].rhs += left[k] * steps[0].rhs;
  }
}

// Sets the operands' offsets for the trips items[0], items[1], ... of the loops [0, count); see OffsetsOf.
template <typename I, int items_count>
inline __device__ void FindOffsets(const I (&items)[items_count], const Step<I>* steps, int count,
                                   Offsets<I> (&offsets)[items_count]) {
  const Step<I> innermost = steps[count - 1];
  I rows[items_count];
#pragma unroll
  for (int k = 0; k < items_count; ++k) {
    rows[k] = innermost.size.Divide(items[k]);
    const I trip = items[k] - rows[k] * innermost.size.divisor();
    offsets[k].lhs = trip * innermost.lhs;
    offsets[k].rhs = trip * innermost.rhs;
  }
  AddOffsets(rows, steps, count - 1, offsets);
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_VECTOR_CUH_
