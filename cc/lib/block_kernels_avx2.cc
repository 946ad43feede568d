// The block kernels for AVX2.

#include "cc/lib/block_kernels_for.h"

#if defined(__x86_64__)

#include <immintrin.h>

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

namespace tf_cg_ops::avx2 {

template <typename T>
const BlockKernels<T>& Kernels() {
  return kKernels<T>;
}

#define INSTANTIATE(T) template const BlockKernels<T>& Kernels();
TF_CG_OPS_FOR_EACH_ELEMENT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace tf_cg_ops::avx2

#endif  // defined(__x86_64__)
