// Chooses the kernels at run time.

#include "cc/lib/block_kernels.h"

#include "cc/lib/block_kernels_for.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

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
  if (vectors == Vectors::kAvx512) return avx512::Kernels<T>();
  if (vectors == Vectors::kAvx2) return avx2::Kernels<T>();
#endif
  (void)vectors;
  return baseline::Kernels<T>();
}

#define INSTANTIATE(T) template const BlockKernels<T>& BlockKernelsFor(Vectors);
TF_CG_OPS_FOR_EACH_ELEMENT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace tf_cg_ops
