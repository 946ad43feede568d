// How one element type is multiplied and summed up.

#ifndef TF_CG_OPS_CC_LIB_ARITHMETIC_H_
#define TF_CG_OPS_CC_LIB_ARITHMETIC_H_

#include <complex>
#include <type_traits>

namespace tf_cg_ops {

// `Product` holds one product, `Sum` a sum of many. The primary template serves the 16-bit types, whichever class
// implements them: float holds their products exactly. Sums are kept in the next wider type, so that the sum over a
// large batch is not worse than its last rounding.
template <typename T>
struct Arithmetic {
  static_assert(sizeof(T) == 2, "each wider type needs a specialisation of its own");
  using Product = float;
  using Sum = float;
};

template <>
struct Arithmetic<float> {
  using Product = float;
  using Sum = double;
};

template <>
struct Arithmetic<double> {
  using Product = double;
  using Sum = double;
};

template <>
struct Arithmetic<std::complex<float>> {
  using Product = std::complex<float>;
  using Sum = std::complex<double>;
};

template <>
struct Arithmetic<std::complex<double>> {
  using Product = std::complex<double>;
  using Sum = std::complex<double>;
};

// The product of a and b, or of a and b's conjugate, computed in P.
template <typename P, bool conjugate, typename T>
inline P Multiply(T a, T b) {
  return static_cast<P>(a) * static_cast<P>(b);
}

// Written out, since operator* of std::complex calls a library function that repairs infinities: it costs several times
// as much, keeps the loop from being vectorised, and NumPy does not do it either.
template <typename P, bool conjugate, typename R>
inline P Multiply(std::complex<R> a, std::complex<R> b) {
  using V = typename P::value_type;
  const V ar = a.real(), ai = a.imag(), br = b.real(), bi = conjugate ? -b.imag() : b.imag();
  return P(ar * br - ai * bi, ar * bi + ai * br);
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_ARITHMETIC_H_
