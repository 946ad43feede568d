#include "cc/versions/shape_inference.h"
#include "tensorflow/core/framework/op.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::shape_inference::InferenceContext;

absl::Status CustomGradientRuleShape(InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->input(i));
    // The shapes and types inside variants and resources; null for other tensors.
    if (const auto* handles = context->input_handle_shapes_and_types(i); handles != nullptr) {
      context->set_output_handle_shapes_and_types(i, *handles);
    }
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CustomGradientRule")
    .Input("results: Tresults")
    .Input("inputs: Tinputs")
    .Input("captures: Tcaptures")
    .Output("outputs: Tresults")
    .Attr("Tresults: list(type) >= 1")
    .Attr("Tinputs: list(type) >= 0")
    .Attr("Tcaptures: list(type) >= 0")
    .Attr("rule: func")
    .Attr("differentiated_results: list(int) >= 0")
    .Attr("differentiated_inputs: list(int) >= 0")
    .Attr("sliced_inputs: list(int) = []")
    .Attr("variable_captures: list(int) = []")
    .Attr("function_name: string = ''")
    .Attr("error: string = ''")
    .SetShapeFn(CustomGradientRuleShape)
    .Doc(R"doc(
Returns the results unchanged, with a function as their gradient rule.

The outputs share the buffers of the results. The rule computes the gradients
with respect to the inputs. Results and captures have no gradients, so the ops
that computed the results are not differentiated.

results: The values.
inputs: The inputs to differentiate with respect to.
captures: Other tensors that the rule reads.
outputs: The results, bit for bit.
rule: The gradient rule: a function of the upstream gradients of the
  differentiated results, followed by the captures. It returns a gradient for
  each differentiated input. The gradient of a sliced input is three tensors:
  values, indices and dense shape, the latter two int64.
differentiated_results: The positions of the results that have an upstream
  gradient.
differentiated_inputs: The positions of the inputs that have a gradient.
sliced_inputs: The positions of the inputs whose gradient consists of slices
  along the first dimension.
variable_captures: The positions of the captures that are values of variables.
  A gradient that is computed in Python reads these variables again.
function_name: The name of the function in error messages.
error: If not empty, there is no rule, and differentiation fails with this
  message.
)doc");

}  // namespace tf_cg_ops
