// The block kernels for the vectors of 16 bytes that every machine has.

#include "cc/lib/block_kernels_for.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tf_cg_ops::baseline {
#define TF_CG_OPS_VECTOR_BYTES 16
#include "cc/lib/block_kernels_inl.h"
#undef TF_CG_OPS_VECTOR_BYTES
}  // namespace tf_cg_ops::baseline

namespace tf_cg_ops::baseline {

template <typename T>
const BlockKernels<T>& Kernels() {
  return kKernels<T>;
}

#define INSTANTIATE(T) template const BlockKernels<T>& Kernels();
TF_CG_OPS_FOR_EACH_ELEMENT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace tf_cg_ops::baseline
