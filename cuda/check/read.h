// The yardstick for sums: a kernel that does nothing but read.

#ifndef TF_CG_OPS_CUDA_CHECK_READ_H_
#define TF_CG_OPS_CUDA_CHECK_READ_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace tf_cg_ops::cuda::check {

// What `result` of Read has room for.
inline constexpr int64_t kReadResultBytes = 16;

// Enqueues the reading of so many bytes of the device, from a boundary of 16 bytes on. Writes a result only if what it
// read has one certain hash, so that the compiler has to read everything.
cudaError_t Read(const void* from, int64_t bytes, void* result, cudaStream_t stream);

}  // namespace tf_cg_ops::cuda::check

#endif  // TF_CG_OPS_CUDA_CHECK_READ_H_
