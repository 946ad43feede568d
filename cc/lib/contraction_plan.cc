#include "cc/lib/contraction_plan.h"

namespace tf_cg_ops {
namespace {

// Row-major strides, 0 for dimensions of size 1.
Dims StridesOf(const Dims& dims) {
  Dims strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = dims[i] == 1 ? 0 : stride;
    stride *= dims[i];
  }
  return strides;
}

// Whether `outer` and `inner` walk as one loop would.
bool CanMerge(const Loop& outer, const Loop& inner) {
  return outer.lhs == inner.lhs * inner.size && outer.rhs == inner.rhs * inner.size &&
         outer.out == inner.out * inner.size;
}

}  // namespace

ContractionPlan PlanContraction(const Alignment& alignment, Role wrt) {
  const Dims& joint = alignment.joint;
  const Dims& out_dims = alignment.operands[wrt];
  ContractionPlan plan;

  // With a zero in the joint shape there is no product, and the strides and sizes below could overflow: empty tensors
  // may have huge dimensions.
  if (IsEmpty(joint)) {
    const bool out_is_empty = IsEmpty(out_dims);
    for (const int64_t dim : out_dims) plan.kept_size = out_is_empty ? 0 : plan.kept_size * dim;
    plan.kept.push_back({plan.kept_size, 0, 0, 1});
    plan.reduced_size = 0;
    return plan;
  }

  const Dims lhs = StridesOf(alignment.operands[wrt == kFx ? kGx : kFx]);
  const Dims rhs = StridesOf(alignment.operands[wrt == kX ? kGx : kX]);
  const Dims out = StridesOf(out_dims);
  std::vector<Loop> loops;
  for (size_t i = 0; i < joint.size(); ++i) {
    if (joint[i] == 1) continue;
    const Loop loop{joint[i], lhs[i], rhs[i], out[i]};
    if (!loops.empty() && CanMerge(loops.back(), loop)) {
      loops.back() = {loops.back().size * loop.size, loop.lhs, loop.rhs, loop.out};
    } else {
      loops.push_back(loop);
    }
  }
  plan.reduced_is_innermost = !loops.empty() && loops.back().out == 0;
  for (const Loop& loop : loops) {
    (loop.out == 0 ? plan.reduced : plan.kept).push_back(loop);
    (loop.out == 0 ? plan.reduced_size : plan.kept_size) *= loop.size;
  }
  if (plan.kept.empty()) plan.kept.push_back({1, 0, 0, 1});
  return plan;
}

ContractionPlan PlanElementwise(int64_t size) {
  ContractionPlan plan;
  plan.kept.push_back({size, 1, 1, 1});
  plan.kept_size = size;
  return plan;
}

}  // namespace tf_cg_ops
