#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status CustomGradientRefusalShape(InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->UnknownShape());
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CustomGradientRefusal")
    .Input("inputs: Tin")
    .Output("outputs: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 1")
    .Attr("message: string")
    .SetShapeFn(CustomGradientRefusalShape)
    .Doc(R"doc(
Fails when it runs.

It replaces a gradient for which TensorFlow would silently compute wrong numbers.

inputs: The inputs of the gradient.
outputs: Never computed.
message: The error message.
)doc");

}  // namespace tf_cg_ops
