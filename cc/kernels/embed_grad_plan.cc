#include "cc/kernels/embed_grad_plan.h"

#include <string>
#include <vector>

#include "cc/lib/operand_names.h"

namespace tf_cg_ops {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

absl::Status AlignInputs(OpKernelContext* context, const GradAttributes& attributes, EmbedGradShapes* shapes) {
  const TensorShape& lhs = context->input(0).shape();
  const TensorShape& rhs = context->input(1).shape();
  TensorShape& out = shapes->out;
  TF_RETURN_IF_ERROR(ShapeFromTensor(context->input(2), EmbedGradNames().api, &out));
  // By far the most frequent case, and always correct.
  shapes->all_equal =
      attributes.axis.dims.empty() && !attributes.axis.all && lhs == rhs && lhs == out && out.num_elements() > 0;
  if (shapes->all_equal) return absl::OkStatus();
  const std::string error = Align(InRoleOrder(attributes.wrt, ToDims(lhs), ToDims(rhs), ToDims(out)), attributes.axis,
                                  EmbedGradNames(), &shapes->alignment);
  return error.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error);
}

ContractionPlan PlanContraction(const EmbedGradShapes& shapes, const GradAttributes& attributes) {
  ContractionPlan plan =
      shapes.all_equal ? PlanElementwise(shapes.out.num_elements()) : PlanContraction(shapes.alignment, attributes.wrt);
  if (attributes.zero_x) plan.reduction_size = 0;
  return plan;
}

absl::Status AllocateOut(OpKernelContext* context, const ContractionPlan& plan, const TensorShape& shape,
                         Tensor** out) {
  std::vector<int> reusable;
  if (plan.LhsIsElementwise()) reusable.push_back(0);
  if (plan.RhsIsElementwise()) reusable.push_back(1);
  return context->forward_input_or_allocate_output(reusable, 0, shape, out);
}

}  // namespace tf_cg_ops
