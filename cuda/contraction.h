// Runs a ContractionPlan on an NVIDIA GPU: multiplies, broadcasts and sums in one pass over the operands.
//
// This header needs no CUDA, so that the kernels of TensorFlow are compiled alike with and without it. Built without
// nvcc, cuda/absent.cc stands behind it.

#ifndef TF_CG_OPS_CUDA_CONTRACTION_H_
#define TF_CG_OPS_CUDA_CONTRACTION_H_

#include <cstdint>
#include <string>

#include "cc/lib/contraction_plan.h"

// As the headers of CUDA declare it.
struct CUstream_st;

namespace tf_cg_ops::cuda {

using Stream = CUstream_st*;

// Why the kernels cannot run in this process; empty if they can. They can if they were compiled, if the driver is new
// enough for them, and if they have code for every GPU here. It looks at driver and GPUs once.
const std::string& WhyUnusable();

// Bytes of device memory that Contract needs to put sums of parts in; 0 for most plans.
template <typename T>
int64_t ScratchBytes(const ContractionPlan& plan);

// Enqueues the computation of out from lhs and rhs, or the conjugate of rhs, all of them on the device. `scratch` has
// ScratchBytes(plan) bytes, aligned as cudaMalloc aligns, and may be null if that is 0. out may be an operand that the
// plan calls elementwise. The result is the same bits each time, on every GPU. Returns an error message, empty if all
// was enqueued.
template <typename T>
std::string Contract(const ContractionPlan& plan, bool conjugate, const T* lhs, const T* rhs, T* out, void* scratch,
                     Stream stream);

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_CONTRACTION_H_
