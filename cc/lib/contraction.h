// Runs a ContractionPlan: multiplies, broadcasts and sums in one pass over the operands.
//
// Results have the same bits for any number of threads, because the partition into separately rounded sums depends only
// on the plan.

#ifndef TF_CG_OPS_CC_LIB_CONTRACTION_H_
#define TF_CG_OPS_CC_LIB_CONTRACTION_H_

#include <cstdint>
#include <functional>

#include "cc/lib/block_kernels.h"
#include "cc/lib/contraction_plan.h"

namespace tf_cg_ops {

// Calls work(begin, end) for ranges that partition [0, total), possibly on several threads, and waits for all of them.
// `cost` is the approximate number of products of one unit.
using ParallelFor =
    std::function<void(int64_t total, int64_t cost, const std::function<void(int64_t begin, int64_t end)>& work)>;

// Computes out from lhs and rhs, or from lhs and the conjugate of rhs. out can be an operand that the plan marks as
// elementwise.
template <typename T>
void Contract(const ContractionPlan& plan, bool conjugate, const T* lhs, const T* rhs, T* out,
              InstructionSet instruction_set, const ParallelFor& parallel_for);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_CONTRACTION_H_
