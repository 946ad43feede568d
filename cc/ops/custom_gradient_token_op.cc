#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status CustomGradientTokenShape(InferenceContext* context) {
  context->set_output(0, context->Scalar());
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(0, &shape));
  context->set_output(1, shape);
  return absl::OkStatus();
}

}  // namespace

// Stateful, because two of them must not be merged into one.
REGISTER_OP("CustomGradientToken")
    .Input("shape: int64")
    .Output("token: variant")
    .Output("ids: int64")
    .SetIsStateful()
    .SetShapeFn(CustomGradientTokenShape)
    .Doc(R"doc(
Makes a token: a scalar that nothing can read, with unique numbers.

Under these numbers, the program keeps objects that belong to a run of the graph
but are not tensors, such as the residuals of a Python function. It drops them
when the last copy of the token is gone, with the tape, the loop or the run that
held it.

shape: The shape of the numbers: a scalar for one, a batch for tf.vectorized_map.
token: The token.
ids: The numbers, which are unique in this process.
)doc");

}  // namespace tf_cg_ops
