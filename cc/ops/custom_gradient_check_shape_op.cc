#include <string>
#include <vector>

#include "cc/lib/messages.h"
#include "cc/lib/op_names.h"
#include "cc/ops/embed_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Merges two shapes; returns whether they can be equal. TensorFlow's Merge would also record that they are equal, so
// its optimizer would remove this op before it has checked that.
bool Merge(InferenceContext* context, ShapeHandle a, ShapeHandle b, ShapeHandle* both) {
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
  TF_RETURN_IF_ERROR(ShapeFromTensor(context, 1, kCheckShapeOp, &expected));
  if (!Merge(context, gradient, expected, &out)) {
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
Returns a gradient unchanged if it has the expected shape, and fails otherwise.

It checks shapes that are unknown while tracing. Unlike an assertion, it also
runs under XLA. The output shares the buffer of the gradient.

gradient: The gradient.
shape: The expected shape.
checked: The gradient, bit for bit.
message: The error message, with the placeholders {expected} and {got} for the
  two shapes.
)doc");

}  // namespace tf_cg_ops
