// The arithmetic of cc/lib/arithmetic.h on the device: conversions, products, sums and rounding.

#ifndef TF_CG_OPS_CUDA_ARITHMETIC_CUH_
#define TF_CG_OPS_CUDA_ARITHMETIC_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <complex>
#include <cstdint>

#include "cc/lib/arithmetic.h"
#include "cuda/schedule.h"

namespace tf_cg_ops::cuda {

// Has the layout of std::complex, whose functions exist only on the host.
template <typename R>
struct alignas(2 * sizeof(R)) Complex {
  R real;
  R imag;
};

// The types on the device for an element T of cc/lib: in memory, of a product, and of a sum of products.
template <typename T>
struct OnDevice {
  using Element = T;
  using Product = typename Arithmetic<T>::Product;
  using Sum = typename Arithmetic<T>::Sum;
};
template <typename R>
struct OnDevice<std::complex<R>> {
  using Element = Complex<R>;
  using Product = Complex<typename Arithmetic<std::complex<R>>::Product>;
  using Sum = Complex<typename Arithmetic<std::complex<R>>::Sum>;
};
template <typename T>
using Element = typename OnDevice<T>::Element;
template <typename T>
using Product = typename OnDevice<T>::Product;
template <typename T>
using Sum = typename OnDevice<T>::Sum;

inline __device__ float Widened(Half element) { return __half2float(__ushort_as_half(element.bits)); }
inline __device__ float Widened(BFloat16 element) { return __bfloat162float(__ushort_as_bfloat16(element.bits)); }
template <typename E>
inline __device__ E Widened(E element) {
  return element;
}

inline __device__ float Multiplied(float lhs, float rhs, Conjugates) { return lhs * rhs; }
inline __device__ double Multiplied(double lhs, double rhs, Conjugates) { return lhs * rhs; }
template <typename R>
inline __device__ Complex<R> Multiplied(Complex<R> lhs, Complex<R> rhs, Conjugates conjugates) {
  const R lhs_imag = conjugates.lhs ? -lhs.imag : lhs.imag;
  const R rhs_imag = conjugates.rhs ? -rhs.imag : rhs.imag;
  return {lhs.real * rhs.real - lhs_imag * rhs_imag, lhs.real * rhs_imag + lhs_imag * rhs.real};
}

template <typename R, typename P>
inline __device__ void AddTo(R& sum, P term) {
  sum += term;
}
template <typename R, typename P>
inline __device__ void AddTo(Complex<R>& sum, Complex<P> term) {
  sum.real += term.real;
  sum.imag += term.imag;
}

// Adds a product to a sum. Both are computed in the type of the sum, as on the CPU.
inline __device__ void AddProductTo(double& sum, double lhs, double rhs, Conjugates) { sum += lhs * rhs; }
inline __device__ void AddProductTo(float& sum, BFloat16 lhs, BFloat16 rhs, Conjugates) {
  sum += Widened(lhs) * Widened(rhs);
}
// The type of the sum holds every product of these exactly, so a fused operation gives the same bits.
inline __device__ void AddProductTo(float& sum, Half lhs, Half rhs, Conjugates) {
  sum = fmaf(Widened(lhs), Widened(rhs), sum);
}
inline __device__ void AddProductTo(double& sum, float lhs, float rhs, Conjugates) {
  sum = fma(static_cast<double>(lhs), static_cast<double>(rhs), sum);
}
template <typename R>
inline __device__ void AddProductTo(Complex<double>& sum, Complex<R> lhs, Complex<R> rhs, Conjugates conjugates) {
  AddTo(sum, Multiplied(Complex<double>{lhs.real, lhs.imag}, Complex<double>{rhs.real, rhs.imag}, conjugates));
}

// Rounds a product or a sum to an element.
inline __device__ void Round(float value, Half* to) { to->bits = __half_as_ushort(__float2half_rn(value)); }
inline __device__ void Round(float value, BFloat16* to) { to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
template <typename R>
inline __device__ void Round(R value, float* to) {
  *to = static_cast<float>(value);
}
inline __device__ void Round(double value, double* to) { *to = value; }
template <typename R, typename E>
inline __device__ void Round(Complex<R> value, Complex<E>* to) {
  *to = {static_cast<E>(value.real), static_cast<E>(value.imag)};
}

// The value of the thread in the warp whose lane differs in the bits of `mask`.
template <typename R>
inline __device__ R FromLane(R value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <typename R>
inline __device__ Complex<R> FromLane(Complex<R> value, int mask) {
  return {FromLane(value.real, mask), FromLane(value.imag, mask)};
}

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_ARITHMETIC_CUH_
