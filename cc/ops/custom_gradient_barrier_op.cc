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
Returns the values unchanged, after the other tensors have been computed.

It keeps a recomputation from being optimized away: TensorFlow's graph optimizer
neither runs ops that depend on the outputs before those tensors, nor merges them
with ops that depend on the values. The outputs share the buffers of the values,
except under XLA, where they depend on an element of each of those tensors.

values: The values.
after: The tensors to wait for.
outputs: The values, bit for bit.
)doc");

}  // namespace tf_cg_ops
