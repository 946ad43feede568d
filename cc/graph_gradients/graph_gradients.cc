// The gradients of ops in the graph itself, for TF_AddGradients and tensorflow::AddSymbolicGradients: a
// SymbolicGradient node, which TensorFlow also uses inside functions. Programs in C and C++ that train a GraphDef need
// them.

#include <string>
#include <utility>
#include <vector>

#include "cc/lib/op_names.h"
#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::AttrSlice;
using ::tensorflow::DataType;
using ::tensorflow::DataTypeVector;
using ::tensorflow::GetNodeAttr;
using ::tensorflow::Node;
using ::tensorflow::NodeBuilder;
using ::tensorflow::Operation;
using ::tensorflow::Output;
using ::tensorflow::Scope;

// Marks the inputs [begin, end), some of which may not exist, as having no gradient.
void Stop(size_t begin, size_t end, std::vector<bool>* has_gradient) {
  for (size_t i = begin; i < end && i < has_gradient->size(); ++i) (*has_gradient)[i] = false;
}

absl::Status OfRule(const AttrSlice& attributes, std::vector<bool>* has_gradient) {
  std::string error;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "error", &error));
  if (!error.empty()) return absl::FailedPreconditionError(error);
  tensorflow::DataTypeVector result_types;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tresults", &result_types));
  std::vector<int64_t> differentiated_inputs;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "differentiated_inputs", &differentiated_inputs));
  has_gradient->assign(has_gradient->size(), false);
  for (const int64_t position : differentiated_inputs) {
    const size_t input = result_types.size() + position;
    if (input < has_gradient->size()) (*has_gradient)[input] = true;  // The gradient function rejects other positions.
  }
  return absl::OkStatus();
}

// Says for each input of an op of this library whether it has a gradient, by the same rules as in Python. Fails with
// the reason if the op has none.
absl::Status InputsWithGradients(const std::string& op, const AttrSlice& attributes, int num_inputs,
                                 std::vector<bool>* has_gradient) {
  has_gradient->assign(num_inputs, true);
  if (op == kRuleOp) return OfRule(attributes, has_gradient);
  if (op == kCheckShapeOp) {
    Stop(1, 2, has_gradient);
  } else if (op == kBarrierOp) {
    tensorflow::DataTypeVector value_types;
    TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tvalues", &value_types));
    Stop(value_types.size(), num_inputs, has_gradient);
  } else if (op == kEmbedOp || op == kEmbedGradOp) {
    bool manually_stopped;
    TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "fx_gx_manually_stopped", &manually_stopped));
    if (op == kEmbedOp) {
      if (!manually_stopped) Stop(0, (num_inputs + 1) / 2, has_gradient);  // fx and gx.
    } else {
      std::string wrt;
      TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "wrt", &wrt));
      const size_t gx = wrt == "fx" ? 0 : 1;
      if (wrt != "gx" && !manually_stopped) Stop(gx, gx + 1, has_gradient);
      Stop(2, 3, has_gradient);  // shape.
    }
  }
  return absl::OkStatus();
}

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
    // The same types as in TensorFlow's own gradients of functions.
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
    // "No gradient" instead of zeros, which would flow back through the input's computation and could become nan there.
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
