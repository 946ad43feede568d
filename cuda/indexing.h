// From the index of a work item to its offsets in memory. For the device and the host.

#ifndef TF_CG_OPS_CUDA_INDEXING_H_
#define TF_CG_OPS_CUDA_INDEXING_H_

#include <cstdint>

#ifdef __CUDACC__
#define TF_CG_OPS_DEVICE __host__ __device__
#else
#define TF_CG_OPS_DEVICE
#endif

// Keeps nvcc from unrolling a loop with few trips.
#ifdef __CUDA_ARCH__
#define TF_CG_OPS_ROLLED _Pragma("unroll 1")
#else
#define TF_CG_OPS_ROLLED
#endif

namespace tf_cg_ops::cuda {

// Not in the standard, but in every compiler for 64-bit machines.
__extension__ typedef unsigned __int128 Uint128;

TF_CG_OPS_DEVICE inline uint64_t UpperHalfOfProduct(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>((static_cast<Uint128>(a) * b) >> 64);
#endif
}

// Divides by an invariant number with a multiplication: a GPU has no instruction for division. Exact for numbers below
// 2^63, or 2^31 with I = uint32_t. Source: T. Granlund and P. L. Montgomery, Division by invariant integers using
// multiplication, 1994, theorem 4.2, with N = 63 or 31 and the multiplier floor(2^(N + l) / d) + 1 for
// l = ceil(log2(d)).
template <typename I>
class Divisor;

template <>
class Divisor<int64_t> {
 public:
  Divisor() = default;
  explicit Divisor(int64_t divisor) : divisor_(divisor) {
    while (shift_ < 63 && (int64_t{1} << shift_) < divisor) ++shift_;
    const Uint128 one = 1;
    // The multiplier for 1 would have 65 bits; Divide does not use it.
    if (divisor > 1) multiplier_ = static_cast<uint64_t>((one << (63 + shift_)) / static_cast<uint64_t>(divisor) + 1);
  }

  TF_CG_OPS_DEVICE int64_t Divide(int64_t n) const {
    if (divisor_ == 1) return n;
    return static_cast<int64_t>(UpperHalfOfProduct(static_cast<uint64_t>(n), multiplier_) >> (shift_ - 1));
  }
  TF_CG_OPS_DEVICE int64_t divisor() const { return divisor_; }

 private:
  uint64_t multiplier_ = 0;
  int64_t divisor_ = 1;
  int shift_ = 0;
};

template <>
class Divisor<uint32_t> {
 public:
  Divisor() = default;
  explicit Divisor(uint32_t divisor) : divisor_(divisor) {
    while ((uint64_t{1} << (shift_ - 31)) < divisor) ++shift_;
    multiplier_ = static_cast<uint32_t>((uint64_t{1} << shift_) / divisor + 1);
  }

  TF_CG_OPS_DEVICE uint32_t Divide(uint32_t n) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(n) * multiplier_ >> shift_);
  }
  TF_CG_OPS_DEVICE uint32_t divisor() const { return divisor_; }

 private:
  uint32_t multiplier_ = (uint32_t{1} << 31) + 1;
  uint32_t divisor_ = 1;
  int shift_ = 31;
};

// One loop: its trip count, and the steps of operands and out in elements.
template <typename I>
struct Step {
  Divisor<I> size;
  I lhs = 0;
  I rhs = 0;
  I out = 0;
};

// The offsets of a work item in elements, and its trip of the innermost loop.
template <typename I>
struct Offsets {
  I lhs = 0;
  I rhs = 0;
  I out = 0;
  I innermost = 0;
};

// The offsets of trip `item` of the loops [0, count), outermost first; there is at least one loop. Most plans have no
// loops between the innermost and the outermost one, so only those are handled in a loop.
template <typename I>
TF_CG_OPS_DEVICE inline Offsets<I> OffsetsOf(I item, const Step<I>* steps, int count) {
  Offsets<I> offsets;
  const Step<I>& innermost = steps[count - 1];
  const I row = innermost.size.Divide(item);
  offsets.innermost = item - row * innermost.size.divisor();
  offsets.lhs = offsets.innermost * innermost.lhs;
  offsets.rhs = offsets.innermost * innermost.rhs;
  offsets.out = offsets.innermost * innermost.out;
  item = row;
  TF_CG_OPS_ROLLED
  for (int i = count - 2; i > 0; --i) {
    const I outer = steps[i].size.Divide(item);
    const I trip = item - outer * steps[i].size.divisor();
    offsets.lhs += trip * steps[i].lhs;
    offsets.rhs += trip * steps[i].rhs;
    offsets.out += trip * steps[i].out;
    item = outer;
  }
  // The outermost loop takes the rest. A single loop is the innermost one and leaves 0.
  offsets.lhs += item * steps[0].lhs;
  offsets.rhs += item * steps[0].rhs;
  offsets.out += item * steps[0].out;
  return offsets;
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_INDEXING_H_
