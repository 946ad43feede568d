// Without Python, TensorFlow cannot differentiate loops and conditionals, and silently returns zeros for some. If such
// a gradient would lose a custom gradient, this pass replaces its node by one that fails when it runs; other nodes do
// not fail. You need this if you train a SavedModel with the loader of TensorFlow 1 or from C (TF_AddGradients): there,
// a loop around a custom gradient would get a zero gradient without an error.

#include <string>
#include <utility>
#include <vector>

#include "cc/lib/messages.h"
#include "cc/lib/op_names.h"
#include "cc/passes/op_search.h"
#include "cc/passes/replace_node.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::Graph;
using ::tensorflow::Node;

// The function that the node differentiates, either directly or as a call, as TF_AddGradients does. Empty if there is
// none.
std::string DifferentiatedFunction(const Node& node) {
  tensorflow::NameAttrList function;
  if (!tensorflow::GetNodeAttr(node.attrs(), "f", &function).ok()) return "";
  const auto called = function.attr().find("f");
  const bool is_call = IsFunctionCall(function.name()) && called != function.attr().end();
  return is_call ? called->second.func().name() : function.name();
}

void Refuse(Node* node, const std::string& function, Graph* graph) {
  tensorflow::NodeDef def;
  def.set_op(kRefusalOp);
  tensorflow::AddNodeAttr("Tin", node->input_types(), &def);
  tensorflow::AddNodeAttr("Tout", node->output_types(), &def);
  tensorflow::AddNodeAttr("message", GradientLostInControlFlow(function), &def);
  ReplaceNode(node, std::move(def), node->num_inputs(), graph);
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

// Before TensorFlow inlines calls, loops and conditionals in phase 10.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 9, RefuseLostGradients);

}  // namespace
}  // namespace tf_cg_ops
