// How threads find and read operands: in packs of 16 bytes, or one element for all of a pack.

#ifndef TF_CG_OPS_CUDA_PACKS_CUH_
#define TF_CG_OPS_CUDA_PACKS_CUH_

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

// A pack as it lies in memory. It is taken apart only where it is used: a thread that did so at once would wait for
// each pack before it asks for the next.
struct alignas(kPackBytes) RawPack {
  uint32_t words[kPackBytes / sizeof(uint32_t)];
};

// The elements of an operand for one pack of products.
template <typename T, bool moves>
class Operand {
 public:
  // Reads a whole pack, which lies at a boundary of packs.
  inline __device__ void Load(const Element<T>* from) { raw_ = *reinterpret_cast<const RawPack*>(from); }

  // Reads `count` elements one by one, from any address.
  inline __device__ void LoadSingly(const Element<T>* from, int count) {
    Pack<T> pack = {};
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i < count) pack.elements[i] = from[i];
    }
    memcpy(&raw_, &pack, sizeof(raw_));
  }

  inline __device__ Element<T> At(int i) const {
    Pack<T> pack;
    memcpy(&pack, &raw_, sizeof(pack));
    return pack.elements[i];
  }

 private:
  RawPack raw_ = {};
};

// One element that stands for all.
template <typename T>
class Operand<T, /*moves=*/false> {
 public:
  inline __device__ void Load(const Element<T>* from) { element_ = *from; }
  inline __device__ void LoadSingly(const Element<T>* from, int) { element_ = *from; }
  inline __device__ Element<T> At(int) const { return element_; }

 private:
  Element<T> element_ = {};
};

// Both operands of one pack of products, on their way to the thread.
template <typename T, bool rhs_moves>
struct Operands {
  Operand<T, true> lhs;
  Operand<T, rhs_moves> rhs;

  inline __device__ void Load(const Element<T>* from_lhs, const Element<T>* from_rhs) {
    lhs.Load(from_lhs);
    rhs.Load(from_rhs);
  }
  inline __device__ void LoadSingly(const Element<T>* from_lhs, const Element<T>* from_rhs, int count) {
    lhs.LoadSingly(from_lhs, count);
    rhs.LoadSingly(from_rhs, count);
  }
};

// Sets where the operands are read for the trips items[0], items[1], ... of the loops [0, count). All of them go
// through a loop together, so that its numbers are read once.
template <typename I, int items_count>
inline __device__ void FindPlaces(const I (&items)[items_count], const Step<I>* steps, int count,
                                  Place<I> (&places)[items_count]) {
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
      places[k].lhs += trip * step.lhs;
      places[k].rhs += trip * step.rhs;
      left[k] = outer;
    }
  }
#pragma unroll
  for (int k = 0; k < items_count; ++k) {
    places[k].lhs += left[k] * steps[0].lhs;
    places[k].rhs += left[k] * steps[0].rhs;
  }
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_PACKS_CUH_
