// Keeps gradients that are made without Python out of what computed a value with a custom gradient, as in Python:
// there, zeros may turn into nan, and operations need no gradient. A SymbolicGradient node of a function with a custom
// gradient becomes a call of a function that says so. It runs after the gradients that would be lost were refused.

#include <string>
#include <vector>

#include "cc/gradients/split_function.h"
#include "cc/passes/differentiated_function.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::Edge;
using ::tensorflow::Graph;
using ::tensorflow::Node;
using ::tensorflow::NodeDef;

absl::Status ReplaceByCall(Node* node, const std::string& function, bool is_stateful, Graph* graph) {
  NodeDef call;
  call.set_name(node->name());
  call.set_op(is_stateful ? "StatefulPartitionedCall" : "PartitionedCall");
  call.set_device(node->requested_device());
  tensorflow::NameAttrList called;
  called.set_name(function);
  tensorflow::AddNodeAttr("f", called, &call);
  tensorflow::AddNodeAttr("Tin", node->input_types(), &call);
  tensorflow::DataTypeVector types = node->output_types();
  for (DataType& type : types) {
    if (type == tensorflow::DT_RESOURCE) type = tensorflow::DT_STRING;
  }
  tensorflow::AddNodeAttr("Tout", types, &call);
  absl::Status status;
  Node* replacement = graph->AddNode(call, &status);
  TF_RETURN_IF_ERROR(status);
  const std::vector<const Edge*> in(node->in_edges().begin(), node->in_edges().end());
  const std::vector<const Edge*> out(node->out_edges().begin(), node->out_edges().end());
  for (const Edge* edge : in) graph->AddEdge(edge->src(), edge->src_output(), replacement, edge->dst_input());
  for (const Edge* edge : out) {
    // An edge that is removed takes its ends with it.
    const int from = edge->src_output(), to = edge->dst_input();
    Node* reader = edge->dst();
    graph->RemoveEdge(edge);
    graph->AddEdge(replacement, from, reader, to);
  }
  graph->RemoveNode(node);
  return absl::OkStatus();
}

// Whether somebody reads what TF_AddGradients declares as the gradient of a variable: a resource. TensorFlow fails
// then.
bool ReadsGradientOfVariable(const Node& node) {
  for (const Edge* edge : node.out_edges()) {
    if (!edge->IsControlEdge() && node.output_type(edge->src_output()) == tensorflow::DT_RESOURCE) return true;
  }
  return false;
}

class SplitGradients : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr || options.flib_def == nullptr) return absl::OkStatus();
    Graph* graph = options.graph->get();
    std::vector<Node*> gradients;
    for (Node* node : graph->op_nodes()) {
      if (node->type_string() == "SymbolicGradient" && !ReadsGradientOfVariable(*node)) gradients.push_back(node);
    }
    for (Node* node : gradients) {
      std::string function, split;
      bool is_stateful = false;
      TF_RETURN_IF_ERROR(DifferentiatedFunction(*node, &function));
      TF_RETURN_IF_ERROR(
          SplitGradient(function, node->input_types(), node->output_types(), options.flib_def, &split, &is_stateful));
      if (split.empty()) continue;
      TF_RETURN_IF_ERROR(ReplaceByCall(node, split, is_stateful, graph));
    }
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 1, SplitGradients);

}  // namespace
}  // namespace tf_cg_ops
