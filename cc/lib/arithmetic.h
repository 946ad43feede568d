// The element types, and the types of their products and sums.

#ifndef TF_CG_OPS_CC_LIB_ARITHMETIC_H_
#define TF_CG_OPS_CC_LIB_ARITHMETIC_H_

#include <complex>
#include <cstdint>

namespace tf_cg_ops {

// The 16-bit types in memory: IEEE 754 binary16, and the upper half of a float.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// `Real` is the type in memory; a complex element has two. `Product` is the type of one product, `Sum` the type of a
// sum of many: the next wider type, so that a sum over a large batch is as accurate as its last rounding. Products of
// 16-bit types are exact in float.
template <typename R, typename P, typename S, int reals>
struct ArithmeticTypes {
  using Real = R;
  using Product = P;
  using Sum = S;
  static constexpr int kReals = reals;
};

template <typename T>
struct Arithmetic;
template <>
struct Arithmetic<Half> : ArithmeticTypes<Half, float, float, 1> {};
template <>
struct Arithmetic<BFloat16> : ArithmeticTypes<BFloat16, float, float, 1> {};
template <>
struct Arithmetic<float> : ArithmeticTypes<float, float, double, 1> {};
template <>
struct Arithmetic<double> : ArithmeticTypes<double, double, double, 1> {};
template <>
struct Arithmetic<std::complex<float>> : ArithmeticTypes<float, float, double, 2> {};
template <>
struct Arithmetic<std::complex<double>> : ArithmeticTypes<double, double, double, 2> {};

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
