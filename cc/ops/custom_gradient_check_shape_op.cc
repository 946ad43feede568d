#include <string>
#include <vector>

#include "cc/lib/messages.h"
#include "cc/ops/embed_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// The shape that both are, if they may be the same. TensorFlow's Merge would also tell its optimizer that they are, and
// then it folds away the op that has yet to find out.
bool Unite(InferenceContext* context, ShapeHandle a, ShapeHandle b, ShapeHandle* both) {
  if (!context->RankKnown(a) || !context->RankKnown(b)) {
    *both = context->RankKnown(a) ? a : b;
    return true;
  }
  if (context->Rank(a) != context->Rank(b)) return false;
  std::vector<DimensionHandle> dims;
  for (int i = 0; i < context->Rank(a); ++i) {
    const DimensionHandle m = context->Dim(a, i), n = context->Dim(b, i);
    if (context->ValueKnown(m) && context->ValueKnown(n) && context->Value(m) != context->Value(n)) return false;
    dims.push_back(context->ValueKnown(m) ? m : n);
  }
  *both = context->MakeShape(dims);
  return true;
}

absl::Status CustomGradientCheckShapeShape(InferenceContext* context) {
  std::string message;
  TF_RETURN_IF_ERROR(context->GetAttr("message", &message));
  const ShapeHandle gradient = context->input(0);
  ShapeHandle expected, out;
  TF_RETURN_IF_ERROR(ShapeFromTensor(context, 1, "CustomGradientCheckShape", &expected));
  if (!Unite(context, gradient, expected, &out)) {
    return absl::InvalidArgumentError(FillIn(message, *ToDims(context, expected), *ToDims(context, gradient)));
  }
  context->set_output(0, out);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CustomGradientCheckShape")
    .Input("gradient: T")
    .Input("shape: Tshape")
    .Output("checked: T")
    .Attr("T: type")
    .Attr("Tshape: {int32, int64} = DT_INT64")
    .Attr("message: string")
    .SetShapeFn(CustomGradientCheckShapeShape)
    .Doc(R"doc(
Returns a gradient unchanged if it has the shape that it should have.

It serves shapes that are not known while tracing. Unlike an assertion, it is
not dropped under XLA. The output shares the gradient's buffer.

gradient: The gradient.
shape: The shape that it should have.
checked: The gradient, bit for bit.
message: What is said otherwise, with {expected} and {got} in the places of the
  two shapes.
)doc");

}  // namespace tf_cg_ops
