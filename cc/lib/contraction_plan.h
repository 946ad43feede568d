// The loops of one contraction: out = sum of lhs * rhs over the aligned broadcast shape, down to out's shape.

#ifndef TF_CG_OPS_CC_LIB_CONTRACTION_PLAN_H_
#define TF_CG_OPS_CC_LIB_CONTRACTION_PLAN_H_

#include <cstdint>
#include <vector>

#include "cc/lib/alignment.h"

namespace tf_cg_ops {

// One loop: its trip count and how far each operand moves in a step, in elements (0 where it is broadcast).
struct Loop {
  int64_t size;
  int64_t lhs;
  int64_t rhs;
  int64_t out;
};

// The fewest loops that do the work, outermost first. `kept` walks over out in memory order, the last one contiguously;
// it is never empty. `reduced` walks over what is summed up for one element of out; it is empty where nothing is.
struct ContractionPlan {
  std::vector<Loop> kept;
  std::vector<Loop> reduced;
  int64_t kept_size = 1;     // Elements of out.
  int64_t reduced_size = 1;  // Products that are summed up for each; 0 makes every element of out a zero.
  bool reduced_is_innermost = false;

  // Each element of out comes from the elements of lhs (rhs) at the same place in memory, and from no others.
  bool LhsIsElementwise() const { return reduced.empty() && kept.size() == 1 && kept[0].lhs == 1; }
  bool RhsIsElementwise() const { return reduced.empty() && kept.size() == 1 && kept[0].rhs == 1; }
};

// `wrt` is the operand whose shape out has; lhs and rhs are the two others, in the order of Role.
ContractionPlan PlanContraction(const Alignment& alignment, Role wrt);

// The plan for operands of one shape with so many elements, at least one.
ContractionPlan PlanElementwise(int64_t size);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_CONTRACTION_PLAN_H_
