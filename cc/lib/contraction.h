// Runs a ContractionPlan: multiplies, broadcasts and sums in one pass over the operands.
//
// How the work is cut into pieces whose sums are rounded apart depends on the plan alone, never on the number of
// threads, so that results are the same bits however many there are.

#ifndef TF_CG_OPS_CC_LIB_CONTRACTION_H_
#define TF_CG_OPS_CC_LIB_CONTRACTION_H_

#include <cstdint>
#include <functional>

#include "cc/lib/block_kernels.h"
#include "cc/lib/contraction_plan.h"

namespace tf_cg_ops {

// Calls work(begin, end) for ranges that make up [0, total), possibly on several threads, and returns when all is done.
// `cost` is about the number of products that one unit takes.
using ParallelFor =
    std::function<void(int64_t total, int64_t cost, const std::function<void(int64_t begin, int64_t end)>& work)>;

// Computes out from lhs and rhs, or the conjugate of rhs. out may be an operand that the plan calls elementwise.
template <typename T>
void Contract(const ContractionPlan& plan, bool conjugate, const T* lhs, const T* rhs, T* out, Vectors vectors,
              const ParallelFor& parallel_for);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_CONTRACTION_H_
