// The element types, and how the products and sums of each are kept.

#ifndef TF_CG_OPS_CC_LIB_ARITHMETIC_H_
#define TF_CG_OPS_CC_LIB_ARITHMETIC_H_

#include <complex>
#include <cstdint>

namespace tf_cg_ops {

// The 16-bit types as they lie in memory: IEEE 754 binary16, and the upper half of a float.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// `Real` is what memory holds, twice for each element of a complex type. `Product` holds one product, `Sum` a sum of
// many: sums are kept in the next wider type, so that the sum over a large batch is not worse than its last rounding.
// float holds the products of 16-bit types exactly.
template <typename R, typename P, typename S, int reals>
struct ArithmeticIn {
  using Real = R;
  using Product = P;
  using Sum = S;
  static constexpr int kReals = reals;
};

template <typename T>
struct Arithmetic;
template <>
struct Arithmetic<Half> : ArithmeticIn<Half, float, float, 1> {};
template <>
struct Arithmetic<BFloat16> : ArithmeticIn<BFloat16, float, float, 1> {};
template <>
struct Arithmetic<float> : ArithmeticIn<float, float, double, 1> {};
template <>
struct Arithmetic<double> : ArithmeticIn<double, double, double, 1> {};
template <>
struct Arithmetic<std::complex<float>> : ArithmeticIn<float, float, double, 2> {};
template <>
struct Arithmetic<std::complex<double>> : ArithmeticIn<double, double, double, 2> {};

}  // namespace tf_cg_ops

// Calls a macro for each element type.
#define TF_CG_OPS_FOR_EACH_ELEMENT(MACRO) \
  MACRO(Half)                             \
  MACRO(BFloat16)                         \
  MACRO(float)                            \
  MACRO(double)                           \
  MACRO(std::complex<float>)              \
  MACRO(std::complex<double>)

#endif  // TF_CG_OPS_CC_LIB_ARITHMETIC_H_
