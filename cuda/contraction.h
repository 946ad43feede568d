// Runs a ContractionPlan on an NVIDIA GPU: multiplies, broadcasts and sums in one pass over the operands.
//
// This header does not include CUDA's, so TensorFlow's kernels compile in the same way with and without CUDA. A build
// without nvcc implements it with cuda/contraction_stub.cc.

#ifndef TF_CG_OPS_CUDA_CONTRACTION_H_
#define TF_CG_OPS_CUDA_CONTRACTION_H_

#include <cstdint>
#include <string>

#include "cc/lib/contraction_plan.h"

// Declared as in CUDA's headers.
struct CUstream_st;

namespace tf_cg_ops::cuda {

using Stream = CUstream_st*;

// The reason why the kernels cannot run in this process; empty if they can. They must have been compiled, the driver
// must be new enough, and they must have code for every visible GPU. Examines driver and GPUs once.
const std::string& WhyUnusable();

// The bytes of device memory that Contract needs for partial sums; 0 for most plans.
template <typename T>
int64_t ScratchBytes(const ContractionPlan& plan);

// Why Contract cannot take an operand or out, `what`, at this address, which must be a multiple of the element size.
// Empty if it can.
template <typename T>
std::string WhyMisaligned(const char* what, const T* data) {
  const auto beyond = reinterpret_cast<uintptr_t>(data) % sizeof(T);
  if (beyond == 0) return "";
  return std::string(what) + " must be aligned in memory to the size of its elements, " + std::to_string(sizeof(T)) +
         " bytes, got an address that is off by " + std::to_string(beyond) + " bytes. Copy it first";
}

// Enqueues the computation of out from lhs and rhs, or from lhs and the conjugate of rhs, all on the device. Their
// addresses must be multiples of the element size, because a GPU reads an element at once: see WhyMisaligned. `scratch`
// has ScratchBytes(plan) bytes with the alignment of cudaMalloc, and can be null if that is 0. out can be an operand
// that the plan marks as elementwise. Results have the same bits in every run and on every GPU. Returns an error
// message, or an empty string.
template <typename T>
std::string Contract(const ContractionPlan& plan, bool conjugate, const T* lhs, const T* rhs, T* out, void* scratch,
                     Stream stream);

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_CONTRACTION_H_
