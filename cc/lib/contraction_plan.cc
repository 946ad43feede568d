#include "cc/lib/contraction_plan.h"

namespace tf_cg_ops {
namespace {

// The row-major strides, 0 for dimensions of size 1.
Dims StridesOf(const Dims& dims) {
  Dims strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = dims[i] == 1 ? 0 : stride;
    stride *= dims[i];
  }
  return strides;
}

// Whether `outer` and `inner` are equivalent to one loop.
bool CanMerge(const Loop& outer, const Loop& inner) {
  return outer.lhs == inner.lhs * inner.size && outer.rhs == inner.rhs * inner.size &&
         outer.out == inner.out * inner.size;
}

}  // namespace

void AppendLoop(const Loop& loop, std::vector<Loop>* loops) {
  if (!loops->empty() && CanMerge(loops->back(), loop)) {
    loops->back() = {loops->back().size * loop.size, loop.lhs, loop.rhs, loop.out};
  } else {
    loops->push_back(loop);
  }
}

ContractionPlan PlanContraction(const Alignment& alignment, Role wrt) {
  const Dims& iteration_space = alignment.iteration_space;
  const Dims& out_dims = alignment.operands[wrt];
  ContractionPlan plan;

  // An empty iteration space has no products. The strides and sizes below could overflow, because empty tensors can
  // have huge dimensions.
  if (IsEmpty(iteration_space)) {
    const bool out_is_empty = IsEmpty(out_dims);
    for (const int64_t dim : out_dims) plan.output_size = out_is_empty ? 0 : plan.output_size * dim;
    plan.output_loops.push_back({plan.output_size, 0, 0, 1});
    plan.reduction_size = 0;
    return plan;
  }

  const Dims lhs = StridesOf(alignment.operands[LhsRole(wrt)]);
  const Dims rhs = StridesOf(alignment.operands[RhsRole(wrt)]);
  const Dims out = StridesOf(out_dims);
  std::vector<Loop>& loops = plan.loops;
  for (size_t i = 0; i < iteration_space.size(); ++i) {
    if (iteration_space[i] == 1) continue;
    const Loop loop{iteration_space[i], lhs[i], rhs[i], out[i]};
    AppendLoop(loop, &loops);
  }
  plan.reduction_is_innermost = !loops.empty() && loops.back().out == 0;
  for (const Loop& loop : loops) {
    (loop.out == 0 ? plan.reduction_loops : plan.output_loops).push_back(loop);
    (loop.out == 0 ? plan.reduction_size : plan.output_size) *= loop.size;
  }
  if (plan.output_loops.empty()) plan.output_loops.push_back({1, 0, 0, 1});
  return plan;
}

ContractionPlan PlanElementwise(int64_t size) {
  ContractionPlan plan;
  plan.output_loops.push_back({size, 1, 1, 1});
  plan.output_size = size;
  return plan;
}

}  // namespace tf_cg_ops
