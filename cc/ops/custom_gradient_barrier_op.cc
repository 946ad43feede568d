#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status CustomGradientBarrierShape(InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CustomGradientBarrier")
    .Input("values: Tvalues")
    .Input("after: Tafter")
    .Output("outputs: Tvalues")
    .Attr("Tvalues: list(type) >= 1")
    .Attr("Tafter: list(type) >= 0")
    .SetShapeFn(CustomGradientBarrierShape)
    .Doc(R"doc(
Returns the values unchanged, once the other tensors are there.

TensorFlow's graph optimiser neither moves what is computed from the outputs
ahead of those tensors nor merges it with what is computed from the values, and
so a recomputation happens. Under XLA, the outputs depend on an element of each
of these tensors. Elsewhere they share the buffers of the values.

values: The values.
after: What has to be there before.
outputs: The values, bit for bit.
)doc");

}  // namespace tf_cg_ops
