#include "cc/ops/embed_shapes.h"

namespace tf_cg_ops {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

std::optional<Dims> ToDims(InferenceContext* context, ShapeHandle shape) {
  static_assert(InferenceContext::kUnknownDim == kUnknownDim, "both sides mark an unknown dimension alike");
  if (!context->RankKnown(shape)) return std::nullopt;
  Dims dims;
  for (int i = 0; i < context->Rank(shape); ++i) dims.push_back(context->Value(context->Dim(shape, i)));
  return dims;
}

absl::Status GetAxis(InferenceContext* context, Axis* axis) {
  TF_RETURN_IF_ERROR(context->GetAttr("axis", &axis->dims));
  return context->GetAttr("all_axes", &axis->all);
}

}  // namespace tf_cg_ops
