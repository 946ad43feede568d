// Compiles the kernels once for each kind of vector registers, and chooses among them at run time.
//
// Which instructions a part may use is said here and not on the command line: what the standard library's headers
// define has to run everywhere, and the linker keeps one copy of it.

#include "cc/lib/block_kernels.h"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tf_cg_ops::baseline {
#define TF_CG_OPS_VECTOR_BYTES 16
#include "cc/lib/block_kernels_inl.h"
#undef TF_CG_OPS_VECTOR_BYTES
}  // namespace tf_cg_ops::baseline

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
namespace tf_cg_ops::avx2 {
#define TF_CG_OPS_VECTOR_BYTES 32
#include "cc/lib/block_kernels_inl.h"
#undef TF_CG_OPS_VECTOR_BYTES
}  // namespace tf_cg_ops::avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif
namespace tf_cg_ops::avx512 {
#define TF_CG_OPS_VECTOR_BYTES 64
#include "cc/lib/block_kernels_inl.h"
#undef TF_CG_OPS_VECTOR_BYTES
}  // namespace tf_cg_ops::avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // defined(__x86_64__)

namespace tf_cg_ops {

#if defined(__x86_64__)
namespace {

// Under Clang, __builtin_cpu_supports does not know it. Whether the system saves the registers shows with AVX2.
bool HasF16c() {
  // Asked once: a virtual machine may have to leave for its host to answer.
  static const bool has = [] {
    unsigned int eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  }();
  return has;
}

}  // namespace
#endif

Vectors WidestVectors() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && HasF16c()) {
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? Vectors::kAvx512 : Vectors::kAvx2;
  }
#endif
  return Vectors::kBaseline;
}

template <typename T>
const BlockKernels<T>& BlockKernelsFor(Vectors vectors) {
#if defined(__x86_64__)
  if (vectors == Vectors::kAvx512) return avx512::kKernels<T>;
  if (vectors == Vectors::kAvx2) return avx2::kKernels<T>;
#endif
  (void)vectors;
  return baseline::kKernels<T>;
}

template const BlockKernels<Half>& BlockKernelsFor(Vectors);
template const BlockKernels<BFloat16>& BlockKernelsFor(Vectors);
template const BlockKernels<float>& BlockKernelsFor(Vectors);
template const BlockKernels<double>& BlockKernelsFor(Vectors);
template const BlockKernels<std::complex<float>>& BlockKernelsFor(Vectors);
template const BlockKernels<std::complex<double>>& BlockKernelsFor(Vectors);

}  // namespace tf_cg_ops
