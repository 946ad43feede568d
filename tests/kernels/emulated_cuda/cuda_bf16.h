// bfloat16 of the emulated CUDA.

#ifndef TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_BF16_H_
#define TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_BF16_H_

#include <cmath>
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }

inline float __bfloat162float(__nv_bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// Rounds to nearest, ties to even.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (std::isnan(value)) return {0x7fff};
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t to_even = bits >> 16 & 1;
  return {static_cast<uint16_t>((bits + 0x7fff + to_even) >> 16)};
}

#endif  // TF_CG_OPS_TESTS_KERNELS_EMULATED_CUDA_CUDA_BF16_H_
