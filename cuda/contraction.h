// Runs a ContractionPlan on an NVIDIA GPU: multiplies, broadcasts and sums in one pass over the operands.
//
// This header includes nothing of CUDA, so TensorFlow's kernels are compiled in the same way with and without it. A
// build without nvcc has cuda/contraction_stub.cc behind it.

#ifndef TF_CG_OPS_CUDA_CONTRACTION_H_
#define TF_CG_OPS_CUDA_CONTRACTION_H_

#include <cstdint>
#include <string>

#include "cc/lib/contraction_plan.h"

// Declared as in the headers of CUDA.
struct CUstream_st;

namespace tf_cg_ops::cuda {

using Stream = CUstream_st*;

// The reason why the kernels cannot run in this process; empty if they can. They can if they were compiled, if the
// driver is new enough, and if they have code for every visible GPU. Examines driver and GPUs once.
const std::string& WhyUnusable();

// The bytes of device memory that Contract needs for partial sums; 0 for most plans.
template <typename T>
int64_t ScratchBytes(const ContractionPlan& plan);

// Enqueues the computation of out from lhs and rhs, or from lhs and the conjugate of rhs, all on the device. `scratch`
// has ScratchBytes(plan) bytes with the alignment of cudaMalloc, and may be null if that is 0. out may be an operand
// that is elementwise by the plan. Results are the same bits in every run and on every GPU. Returns an error message,
// empty on success.
template <typename T>
std::string Contract(const ContractionPlan& plan, bool conjugate, const T* lhs, const T* rhs, T* out, void* scratch,
                     Stream stream);

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_CONTRACTION_H_
