// float16 of the emulated CUDA, in plain arithmetic.

#ifndef TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_FP16_H_
#define TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_FP16_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

struct __half {
  uint16_t bits;
};

inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half value) { return value.bits; }

inline float __half2float(__half value) {
  const int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  float magnitude = std::ldexp(static_cast<float>(fraction + (exponent > 0 ? 1024 : 0)), std::max(exponent, 1) - 25);
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return value.bits >> 15 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even.
inline __half __float2half_rn(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return {0x7fff};
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  // The exponent of the last place; for subnormal numbers it is the same as for the smallest normal number.
  const int unit = magnitude > 0 ? std::max(std::ilogb(magnitude), -14) - 10 : -24;
  const int units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // A fraction that rounds up to 2048 carries into the exponent.
  const int bits = units < 1024 ? units : ((unit + 24) << 10) + units;
  return {static_cast<uint16_t>(sign | bits)};
}

#endif  // TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_FP16_H_
