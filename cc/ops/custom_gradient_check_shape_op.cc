#include "cc/lib/messages.h"
#include "cc/ops/embed_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status CustomGradientCheckShapeShape(InferenceContext* context) {
  std::string message;
  TF_RETURN_IF_ERROR(context->GetAttr("message", &message));
  const ShapeHandle gradient = context->input(0);
  ShapeHandle expected, out;
  TF_RETURN_IF_ERROR(ShapeFromTensor(context, 1, "CustomGradientCheckShape", &expected));
  if (!context->Merge(gradient, expected, &out).ok()) {
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
