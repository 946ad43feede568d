// The yardstick for sums: a kernel that only reads.

#ifndef TF_CG_OPS_CUDA_CHECK_READ_H_
#define TF_CG_OPS_CUDA_CHECK_READ_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace tf_cg_ops::cuda::check {

// The size of the `result` of Read.
inline constexpr int64_t kReadResultBytes = 16;

// Enqueues the reading of `bytes` of device memory from an address that is aligned to 16 bytes. Writes a result only
// for one value of a hash, so that the compiler cannot drop any load.
cudaError_t Read(const void* from, int64_t bytes, void* result, cudaStream_t stream);

}  // namespace tf_cg_ops::cuda::check

#endif  // TF_CG_OPS_CUDA_CHECK_READ_H_
