#include "cc/ops/embed_shapes.h"

#include "cc/lib/messages.h"

namespace tf_cg_ops {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

std::optional<Dims> ToDims(InferenceContext* context, ShapeHandle shape) {
  static_assert(InferenceContext::kUnknownDim == kUnknownDim, "both mark an unknown dimension alike");
  if (!context->RankKnown(shape)) return std::nullopt;
  Dims dims;
  for (int i = 0; i < context->Rank(shape); ++i) dims.push_back(context->Value(context->Dim(shape, i)));
  return dims;
}

absl::Status ShapeFromTensor(InferenceContext* context, int input, const std::string& api, ShapeHandle* shape) {
  TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(input, shape));
  // No tensor has more dimensions, and TensorFlow's optimizer crashes if an output claims more.
  const int highest = tensorflow::TensorShape::MaxDimensions();
  if (context->RankKnown(*shape) && context->Rank(*shape) > highest) {
    return absl::InvalidArgumentError(ShapeOfTooHighARank(api, context->Rank(*shape), highest));
  }
  return absl::OkStatus();
}

absl::Status GetAxis(InferenceContext* context, Axis* axis) {
  TF_RETURN_IF_ERROR(context->GetAttr("axis", &axis->dims));
  return context->GetAttr("all_axes", &axis->all);
}

}  // namespace tf_cg_ops
