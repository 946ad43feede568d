// Chooses the kernels for an instruction set.

#include "cc/lib/block_kernels.h"

#include "cc/lib/block_kernels_for.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tf_cg_ops {

#if defined(__x86_64__)
namespace {

// Clang's __builtin_cpu_supports does not know F16C. AVX2, which it checks, implies that the system saves the
// registers.
bool HasF16c() {
  // Checked once, because on a virtual machine the host might have to answer.
  static const bool has = [] {
    unsigned int eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  }();
  return has;
}

}  // namespace
#endif

InstructionSet BestInstructionSet() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && HasF16c()) {
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? InstructionSet::kAvx512 : InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kBaseline;
}

template <typename T>
const BlockKernels<T>& BlockKernelsFor(InstructionSet instruction_set) {
#if defined(__x86_64__)
  if (instruction_set == InstructionSet::kAvx512) return avx512::Kernels<T>();
  if (instruction_set == InstructionSet::kAvx2) return avx2::Kernels<T>();
#endif
  (void)instruction_set;
  return baseline::Kernels<T>();
}

#define INSTANTIATE(T) template const BlockKernels<T>& BlockKernelsFor(InstructionSet);
TF_CG_OPS_FOR_EACH_ELEMENT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace tf_cg_ops
