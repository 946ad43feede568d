#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::shape_inference::InferenceContext;

absl::Status CustomGradientRuleShape(InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->input(i));
    // What variant and resource tensors hold; other tensors have none.
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
    .Attr("function_name: string = ''")
    .Attr("error: string = ''")
    .SetShapeFn(CustomGradientRuleShape)
    .Doc(R"doc(
Returns the results unchanged, with a function as their gradient rule.

The outputs share the buffers of the results. The gradient with respect to the
inputs is what the rule returns; results and captures get none by way of this
op, so that the ops which computed the results are not differentiated.

results: The values.
inputs: What the gradient rule is with respect to.
captures: Whatever else the rule reads.
outputs: The results, bit for bit.
rule: The gradient rule: a function of the upstream gradients of the
  differentiated results, followed by the captures. It returns one gradient for
  each of the differentiated inputs; for each of the sliced ones it returns
  values, indices and dense shape, the latter two as int64.
differentiated_results: The positions, among the results, of those with an
  upstream gradient.
differentiated_inputs: The positions, among the inputs, of those with a
  gradient; the others have none.
sliced_inputs: The positions, among the inputs, of those whose gradient consists
  of slices along the first dimension.
function_name: What error messages call the function.
error: If not empty, why there is no rule. Asking for a gradient then fails
  with this message.
)doc");

}  // namespace tf_cg_ops
