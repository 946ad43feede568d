// The reference results, computed on the CPU by the definition, in float64.

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

// The relative rounding errors of a product without a sum, of a sum and of an element, and the absolute error of
// elements near zero.
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

// Uniform in [-1, 1].
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

// -1, 0 and 1. Sums of their products are exact in float, at the sizes that are checked, in any order.
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
  // The sums of the absolute values of the terms.
  std::vector<double> sizes;
  // Whether products are summed. They then have the type of the sum.
  bool is_sum;
};

// out = sum of lhs * conj(rhs) over the reduction dimensions.
template <typename T>
Expected Reference(const Shapes& shapes, const std::vector<T>& lhs, const std::vector<T>& rhs) {
  const size_t rank = shapes.out.size();
  Dims iteration_space(rank), index(rank, 0);
  for (size_t i = 0; i < rank; ++i) {
    iteration_space[i] = shapes.lhs[i] != 1 ? shapes.lhs[i] : shapes.rhs[i] != 1 ? shapes.rhs[i] : shapes.out[i];
  }
  const auto place = [&](const Dims& dims) {
    int64_t at = 0;
    for (size_t i = 0; i < rank; ++i) at = at * dims[i] + (dims[i] == 1 ? 0 : index[i]);
    return at;
  };
  const int64_t outputs = Elements(shapes.out);
  Expected expected = {std::vector<Wide>(outputs), std::vector<double>(outputs), iteration_space != shapes.out};
  for (int64_t n = Elements(iteration_space); n > 0; --n) {
    const Wide product = ToWide(lhs[place(shapes.lhs)]) * std::conj(ToWide(rhs[place(shapes.rhs)]));
    expected.values[place(shapes.out)] += product;
    expected.sizes[place(shapes.out)] += std::abs(product.real()) + std::abs(product.imag());
    for (size_t i = rank; i-- > 0;) {
      if (++index[i] < iteration_space[i]) break;
      index[i] = 0;
    }
  }
  return expected;
}

// The largest error relative to the allowed rounding error; up to 1 is correct.
template <typename T>
double ErrorOf(const std::vector<T>& out, const Expected& expected) {
  const Precision precision = PrecisionOf(T());
  const double product = expected.is_sum ? std::min(precision.product, precision.sum) : precision.product;
  double worst = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    // Each part of a complex product is rounded three times; chains of additions are far shorter than the sum.
    const double allowed = 2 * precision.element * std::abs(expected.values[i]) +
                           (3 * product + 16 * precision.sum) * expected.sizes[i] + precision.smallest;
    const double error = std::abs(ToWide(out[i]) - expected.values[i]);
    if (error == 0) continue;
    const double part = error / allowed;
    // A nan is an error.
    worst = std::isnan(part) ? std::numeric_limits<double>::infinity() : std::max(worst, part);
  }
  return worst;
}

// The error of results that are exact except for one rounding to an element: 0 if all are equal, otherwise infinite.
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
