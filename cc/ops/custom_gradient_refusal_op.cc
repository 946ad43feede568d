#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tf_cg_ops {

REGISTER_OP("CustomGradientRefusal")
    .Input("inputs: Tin")
    .Output("outputs: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 1")
    .Attr("message: string")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
Fails when it runs.

It takes the place of a gradient that TensorFlow would get wrong without a word.

inputs: The inputs of the gradient.
outputs: Never there.
message: The reason.
)doc");

}  // namespace tf_cg_ops
