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

// Why Contract cannot take an operand or out, `what`, at this address: it must be a multiple of the size of an element.
// Empty if it can.
template <typename T>
std::string WhyMisaligned(const char* what, const T* data) {
  const auto beyond = reinterpret_cast<uintptr_t>(data) % sizeof(T);
  if (beyond == 0) return "";
  return std::string(what) + " must begin at a multiple of its elements' size in memory, " + std::to_string(sizeof(T)) +
         " bytes, got one that begins " + std::to_string(beyond) + " bytes after such a multiple; copy it first";
}

// Enqueues the computation of out from lhs and rhs, or from lhs and the conjugate of rhs, all on the device. Their
// addresses must be multiples of the size of an element, which a GPU reads at once: see WhyMisaligned. `scratch` has
// ScratchBytes(plan) bytes with the alignment of cudaMalloc, and may be null if that is 0. out may be an operand that
// is elementwise by the plan. Results are the same bits in every run and on every GPU. Returns an error message, empty
// on success.
template <typename T>
std::string Contract(const ContractionPlan& plan, bool conjugate, const T* lhs, const T* rhs, T* out, void* scratch,
                     Stream stream);

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_CONTRACTION_H_
