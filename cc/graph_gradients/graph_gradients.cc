// The gradients of the library's ops for TF_AddGradients and tensorflow::AddSymbolicGradients, if such an op is in the
// graph itself: a SymbolicGradient node, which TensorFlow also uses inside of functions.

#include <string>
#include <utility>
#include <vector>

#include "cc/graph_gradients/gradient_inputs.h"
#include "cc/lib/op_names.h"
#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeVector;
using ::tensorflow::Node;
using ::tensorflow::NodeBuilder;
using ::tensorflow::Operation;
using ::tensorflow::Output;
using ::tensorflow::Scope;

absl::Status AddSymbolicGradient(const Scope& scope, const Operation& op, const std::vector<Output>& grad_inputs,
                                 std::vector<Output>* grad_outputs) {
  std::vector<bool> has_gradient;
  TF_RETURN_IF_ERROR(InputsWithGradients(op.node()->type_string(), op.node()->attrs(), op.num_inputs(), &has_gradient));
  tensorflow::NameAttrList function;
  function.set_name(op.node()->type_string());
  for (const auto& [name, value] : op.node()->def().attr()) {
    if (name.front() != '_') (*function.mutable_attr())[name] = value;  // The others belong to the node.
  }
  std::vector<NodeBuilder::NodeOut> inputs;
  DataTypeVector out_types;
  for (int i = 0; i < op.num_inputs(); ++i) {
    inputs.emplace_back(op.input(i).node(), op.input(i).index());
    const DataType type = op.input_type(i);
    // The types that TensorFlow's own gradients of functions have.
    out_types.push_back(type == tensorflow::DT_RESOURCE ? tensorflow::DT_FLOAT : type);
  }
  for (const Output& grad_input : grad_inputs) inputs.emplace_back(grad_input.node(), grad_input.index());

  NodeBuilder builder(scope.GetUniqueNameForOp("SymbolicGradient"), "SymbolicGradient");
  builder.Input(absl::Span<const NodeBuilder::NodeOut>(inputs)).Attr("Tout", out_types).Attr("f", function);
  scope.UpdateBuilder(&builder);
  Node* node;
  TF_RETURN_IF_ERROR(builder.Finalize(scope.graph(), &node));
  TF_RETURN_IF_ERROR(scope.DoShapeInference(node));
  for (int i = 0; i < op.num_inputs(); ++i) {
    // "No gradient" rather than zeros, which would propagate into the input's own gradient and may become nan there.
    const bool flows = has_gradient[i] && op.input_type(i) != tensorflow::DT_RESOURCE;
    grad_outputs->push_back(flows ? Output(node, i) : tensorflow::NoGradient());
  }
  return scope.status();
}

REGISTER_GRADIENT_OP(kBarrierOp, AddSymbolicGradient);
REGISTER_GRADIENT_OP(kCheckShapeOp, AddSymbolicGradient);
REGISTER_GRADIENT_OP(kEmbedOp, AddSymbolicGradient);
REGISTER_GRADIENT_OP(kEmbedGradOp, AddSymbolicGradient);
REGISTER_GRADIENT_OP(kRuleOp, AddSymbolicGradient);

}  // namespace
}  // namespace tf_cg_ops
