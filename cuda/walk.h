// From the number of a work item to its place in memory. For the device and the host.

#ifndef TF_CG_OPS_CUDA_WALK_H_
#define TF_CG_OPS_CUDA_WALK_H_

#include <cstdint>

#ifdef __CUDACC__
#define TF_CG_OPS_DEVICE __host__ __device__
#else
#define TF_CG_OPS_DEVICE
#endif

// Before a loop of few trips, which nvcc would unroll.
#ifdef __CUDA_ARCH__
#define TF_CG_OPS_ROLLED _Pragma("unroll 1")
#else
#define TF_CG_OPS_ROLLED
#endif

namespace tf_cg_ops::cuda {

// Known to every compiler of 64-bit machines, if not to the standard.
__extension__ typedef unsigned __int128 Uint128;

TF_CG_OPS_DEVICE inline uint64_t UpperHalfOfProduct(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>((static_cast<Uint128>(a) * b) >> 64);
#endif
}

// Divides by a multiplication with a number computed once: the GPU has no instruction for division. Exact for numbers
// below 2^63, or 2^31 with I = uint32_t. Source: T. Granlund and P. L. Montgomery, Division by invariant integers using
// multiplication, 1994, theorem 4.2, with N = 63 or 31 and the multiplier floor(2^(N + l) / d) + 1, where
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
    // 1 has no multiplier of 64 bits, and needs none.
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

// One loop: its trip count and how far the operands and out move in a step, in elements.
template <typename I>
struct Step {
  Divisor<I> size;
  I lhs = 0;
  I rhs = 0;
  I out = 0;
};

// Where a work item lies, in elements, and which trip of the innermost loop it is.
template <typename I>
struct Place {
  I lhs = 0;
  I rhs = 0;
  I out = 0;
  I innermost = 0;
};

// The place of trip `item` of the loops [0, count), outermost first; there is at least one.
template <typename I>
TF_CG_OPS_DEVICE inline Place<I> PlaceOf(I item, const Step<I>* steps, int count) {
  Place<I> place;
  TF_CG_OPS_ROLLED
  for (int i = count - 1; i >= 0; --i) {
    // All that is left belongs to the outermost loop.
    const I outer = i > 0 ? steps[i].size.Divide(item) : 0;
    const I trip = item - outer * steps[i].size.divisor();
    if (i == count - 1) place.innermost = trip;
    place.lhs += trip * steps[i].lhs;
    place.rhs += trip * steps[i].rhs;
    place.out += trip * steps[i].out;
    item = outer;
  }
  return place;
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_WALK_H_
