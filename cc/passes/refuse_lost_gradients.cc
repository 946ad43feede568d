// TensorFlow has no gradients of loops and conditionals without Python, and returns zeros for some without a word.
// Where such a gradient would lose a custom one, its node becomes one that fails when it runs. No other node fails with
// it.

#include <string>
#include <utility>
#include <vector>

#include "cc/lib/messages.h"
#include "cc/passes/op_search.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::Edge;
using ::tensorflow::Graph;
using ::tensorflow::Node;

// The function that the node differentiates; TF_AddGradients names the op that calls it. Empty if there is none.
std::string DifferentiatedFunction(const Node& node) {
  tensorflow::NameAttrList function;
  if (!tensorflow::GetNodeAttr(node.attrs(), "f", &function).ok()) return "";
  const auto called = function.attr().find("f");
  const bool is_call = IsFunctionCall(function.name()) && called != function.attr().end();
  return is_call ? called->second.func().name() : function.name();
}

void Refuse(Node* node, const std::string& function, Graph* graph) {
  tensorflow::NodeDef def;
  def.set_name(node->name());
  def.set_op("CustomGradientRefusal");
  def.set_device(node->requested_device());
  tensorflow::AddNodeAttr("Tin", node->input_types(), &def);
  tensorflow::AddNodeAttr("Tout", node->output_types(), &def);
  tensorflow::AddNodeAttr("message", GradientLostInControlFlow(function), &def);
  absl::Status status;
  Node* const refusal = graph->AddNode(def, &status);
  if (!status.ok()) {
    VLOG(1) << "tf_cg_ops: " << node->name() << " stays: " << status;
    return;
  }
  for (const Edge* edge : node->in_edges()) {
    graph->AddEdge(edge->src(), edge->src_output(), refusal, edge->dst_input());
  }
  for (const Edge* edge : node->out_edges()) {
    graph->AddEdge(refusal, edge->src_output(), edge->dst(), edge->dst_input());
  }
  graph->RemoveNode(node);
}

class RefuseLostGradients : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    const bool has_graph = options.graph != nullptr && *options.graph != nullptr && options.flib_def != nullptr;
    if (!has_graph || PassesAreDisabled()) return absl::OkStatus();
    Graph* const graph = options.graph->get();
    OpSearch search(*options.flib_def);
    std::vector<std::pair<Node*, std::string>> lost;
    for (Node* node : graph->op_nodes()) {
      if (node->type_string() != "SymbolicGradient") continue;
      std::string function = DifferentiatedFunction(*node);
      if (search.FindsOpInControlFlowOf(function)) lost.emplace_back(node, std::move(function));
    }
    for (const auto& [node, function] : lost) Refuse(node, function, graph);
    return absl::OkStatus();
  }
};

// Before TensorFlow puts functions in the places of calls, loops and conditionals, in phase 10.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 9, RefuseLostGradients);

}  // namespace
}  // namespace tf_cg_ops
