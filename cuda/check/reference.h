// What is right, computed on the CPU in the plainest way: by the definition, in float64.

#ifndef TF_CG_OPS_CUDA_CHECK_REFERENCE_H_
#define TF_CG_OPS_CUDA_CHECK_REFERENCE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cc/lib/alignment.h"
#include "cc/lib/arithmetic.h"
#include "cuda/check/forms.h"

namespace tf_cg_ops::cuda::check {

using Wide = std::complex<double>;

inline Wide ToWide(Half element) { return __half2float(__ushort_as_half(element.bits)); }
inline Wide ToWide(BFloat16 element) { return __bfloat162float(__ushort_as_bfloat16(element.bits)); }
inline Wide ToWide(float element) { return element; }
inline Wide ToWide(double element) { return element; }
inline Wide ToWide(std::complex<float> element) { return element; }
inline Wide ToWide(std::complex<double> element) { return element; }

inline void FromWide(Wide wide, Half* to) {
  to->bits = __half_as_ushort(__float2half_rn(static_cast<float>(wide.real())));
}
inline void FromWide(Wide wide, BFloat16* to) {
  to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(wide.real())));
}
inline void FromWide(Wide wide, float* to) { *to = static_cast<float>(wide.real()); }
inline void FromWide(Wide wide, double* to) { *to = wide.real(); }
inline void FromWide(Wide wide, std::complex<float>* to) { *to = std::complex<float>(wide); }
inline void FromWide(Wide wide, std::complex<double>* to) { *to = wide; }

// What one rounding may change: of a product without a sum, a sum and an element; and what elements near zero may be
// off by.
struct Precision {
  double product;
  double sum;
  double element;
  double smallest;
};
// float holds the products of 16-bit types exactly.
inline Precision PrecisionOf(Half) { return {0, 0x1p-24, 0x1p-11, 0x1p-24}; }
inline Precision PrecisionOf(BFloat16) { return {0, 0x1p-24, 0x1p-8, 0x1p-126}; }
inline Precision PrecisionOf(float) { return {0x1p-24, 0x1p-53, 0x1p-24, 0x1p-149}; }
inline Precision PrecisionOf(double) { return {0x1p-53, 0x1p-53, 0x1p-53, 0}; }
inline Precision PrecisionOf(std::complex<float>) { return PrecisionOf(float()); }
inline Precision PrecisionOf(std::complex<double>) { return PrecisionOf(double()); }

inline int64_t Elements(const Dims& dims) {
  int64_t product = 1;
  for (const int64_t dim : dims) product *= dim;
  return product;
}

// Of both signs, and of every size up to 1.
template <typename T>
std::vector<T> RandomElements(int64_t count, std::mt19937_64* random_numbers) {
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  std::vector<T> elements(count);
  for (T& element : elements) {
    const double real = uniform(*random_numbers);
    FromWide({real, uniform(*random_numbers)}, &element);
  }
  return elements;
}

// -1, 0 and 1: float adds up so many of their products exactly as are checked here, whatever the order.
template <typename T>
std::vector<T> SmallIntegers(int64_t count, std::mt19937_64* random_numbers) {
  const auto draw = [&] { return static_cast<double>((*random_numbers)() % 3) - 1; };
  std::vector<T> elements(count);
  for (T& element : elements) {
    const double real = draw();
    FromWide({real, draw()}, &element);
  }
  return elements;
}

struct Expected {
  std::vector<Wide> values;
  // The sums of the absolute values of what is added up.
  std::vector<double> sizes;
  // Whether products are added up. They are then computed in the sum's type.
  bool is_sum;
};

// out = sum of lhs * conj(rhs) over the dimensions that out does not have.
template <typename T>
Expected Reference(const Shapes& shapes, const std::vector<T>& lhs, const std::vector<T>& rhs) {
  const size_t rank = shapes.out.size();
  Dims joint(rank), index(rank, 0);
  for (size_t i = 0; i < rank; ++i) {
    joint[i] = shapes.lhs[i] != 1 ? shapes.lhs[i] : shapes.rhs[i] != 1 ? shapes.rhs[i] : shapes.out[i];
  }
  const auto place = [&](const Dims& dims) {
    int64_t at = 0;
    for (size_t i = 0; i < rank; ++i) at = at * dims[i] + (dims[i] == 1 ? 0 : index[i]);
    return at;
  };
  const int64_t outputs = Elements(shapes.out);
  Expected expected = {std::vector<Wide>(outputs), std::vector<double>(outputs), joint != shapes.out};
  for (int64_t n = Elements(joint); n > 0; --n) {
    const Wide product = ToWide(lhs[place(shapes.lhs)]) * std::conj(ToWide(rhs[place(shapes.rhs)]));
    expected.values[place(shapes.out)] += product;
    expected.sizes[place(shapes.out)] += std::abs(product.real()) + std::abs(product.imag());
    for (size_t i = rank; i-- > 0;) {
      if (++index[i] < joint[i]) break;
      index[i] = 0;
    }
  }
  return expected;
}

// The largest error as a part of what rounding may cause; up to 1 is right.
template <typename T>
double ErrorOf(const std::vector<T>& out, const Expected& expected) {
  const Precision precision = PrecisionOf(T());
  const double product = expected.is_sum ? std::min(precision.product, precision.sum) : precision.product;
  double worst = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    // A complex product is rounded three times, and its parts apart; sums are added up in rows far shorter than all.
    const double allowed = 2 * precision.element * std::abs(expected.values[i]) +
                           (3 * product + 16 * precision.sum) * expected.sizes[i] + precision.smallest;
    const double error = std::abs(ToWide(out[i]) - expected.values[i]);
    if (error == 0) continue;
    const double part = error / allowed;
    // A nan is no number, and not right.
    worst = std::isnan(part) ? std::numeric_limits<double>::infinity() : std::max(worst, part);
  }
  return worst;
}

// The same for results that are exact but for one rounding to an element: 0 where all are equal.
template <typename T>
double ErrorOfExact(const std::vector<T>& out, const Expected& expected) {
  for (size_t i = 0; i < out.size(); ++i) {
    T rounded;
    FromWide(expected.values[i], &rounded);
    if (ToWide(rounded) != ToWide(out[i])) return std::numeric_limits<double>::infinity();
  }
  return 0;
}

}  // namespace tf_cg_ops::cuda::check

#endif  // TF_CG_OPS_CUDA_CHECK_REFERENCE_H_
