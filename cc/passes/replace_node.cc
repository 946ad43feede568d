#include "cc/passes/replace_node.h"

#include <utility>

#include "tensorflow/core/platform/logging.h"

namespace tf_cg_ops {

using ::tensorflow::Edge;
using ::tensorflow::Node;

Node* ReplaceNode(Node* node, tensorflow::NodeDef def, int num_inputs, tensorflow::Graph* graph) {
  def.set_name(node->name());
  def.set_device(node->requested_device());
  absl::Status status;
  Node* const replacement = graph->AddNode(std::move(def), &status);
  if (!status.ok()) {
    VLOG(1) << "tf_cg_ops: " << node->name() << " stays: " << status;
    return nullptr;
  }
  replacement->SetStackTrace(node->GetStackTrace());
  for (const Edge* edge : node->in_edges()) {
    if (edge->dst_input() < num_inputs) {
      graph->AddEdge(edge->src(), edge->src_output(), replacement, edge->dst_input());
    }
  }
  for (const Edge* edge : node->out_edges()) {
    graph->AddEdge(replacement, edge->src_output(), edge->dst(), edge->dst_input());
  }
  graph->RemoveNode(node);
  return replacement;
}

}  // namespace tf_cg_ops
