// Sums over loops of a few iterations, inside or between loops over elements of out.
//
// Calling a kernel for each of these sums would cost more than its products. Instead, these loops are first treated as
// loops over outputs, so products and sums over the other loops are computed in long runs. Then groups of results,
// which belong to a few elements of out, are folded.

#ifndef TF_CG_OPS_CC_LIB_SHORT_SUMS_H_
#define TF_CG_OPS_CC_LIB_SHORT_SUMS_H_

#include <cstdint>
#include <vector>

#include "cc/lib/contraction_plan.h"

namespace tf_cg_ops {

struct ShortSums {
  // The loops of a group, outermost first; folded loops have `out` 0. Empty if nothing is folded.
  std::vector<Loop> loops;
  int64_t group_size = 1;   // Numbers in a group before it is folded.
  int64_t folded_size = 1;  // Elements of out after folding.
  ContractionPlan plan;     // Of the numbers before they are folded.
};

// Finds the short sums of a plan whose elements have `reals` real numbers each.
ShortSums FindShortSums(const ContractionPlan& plan, int reals);

// Folds consecutive groups in place.
template <typename Sum>
void Fold(const ShortSums& short_sums, int reals, int64_t groups, Sum* sums);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_SHORT_SUMS_H_
