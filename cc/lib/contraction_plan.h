// The loops of one contraction: the products lhs * rhs over the iteration space, summed to the shape of out.

#ifndef TF_CG_OPS_CC_LIB_CONTRACTION_PLAN_H_
#define TF_CG_OPS_CC_LIB_CONTRACTION_PLAN_H_

#include <cstdint>
#include <vector>

#include "cc/lib/alignment.h"

namespace tf_cg_ops {

// One loop: its trip count, and the step of each operand in elements (0 if it is broadcast).
struct Loop {
  int64_t size;
  int64_t lhs;
  int64_t rhs;
  int64_t out;
};

// The fewest loops that cover the iteration space, outermost first. `output_loops` go through out in memory order, the
// last one contiguously; there is at least one. `reduction_loops` go through the products of one element of out;
// without a reduction, there are none.
struct ContractionPlan {
  std::vector<Loop> loops;  // All, in the order of the iteration space. Empty if there is nothing to fold.
  std::vector<Loop> output_loops;
  std::vector<Loop> reduction_loops;
  int64_t output_size = 1;     // Elements of out.
  int64_t reduction_size = 1;  // Products for each element of out; 0 sets all elements to zero.
  bool reduction_is_innermost = false;

  // Whether each element of out depends only on the element of lhs (rhs) at the same index in memory.
  bool LhsIsElementwise() const {
    return reduction_loops.empty() && output_loops.size() == 1 && output_loops[0].lhs == 1;
  }
  bool RhsIsElementwise() const {
    return reduction_loops.empty() && output_loops.size() == 1 && output_loops[0].rhs == 1;
  }
};

// Appends a loop inside the others; merges it with the last one if both are equivalent to one loop.
void AppendLoop(const Loop& loop, std::vector<Loop>* loops);

// The plan for the gradient with respect to `wrt`, which has the shape of out.
ContractionPlan PlanContraction(const Alignment& alignment, Role wrt);

// The plan for operands of one shape with `size` elements, at least one.
ContractionPlan PlanElementwise(int64_t size);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_CONTRACTION_PLAN_H_
