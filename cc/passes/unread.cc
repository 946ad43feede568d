#include "cc/passes/unread.h"

#include <algorithm>

#include "cc/passes/side_effects.h"
#include "tensorflow/core/graph/algorithm.h"

namespace tf_cg_ops {

using ::tensorflow::Edge;
using ::tensorflow::Graph;
using ::tensorflow::Node;

namespace {

// The nodes, and all those before them.
std::set<Node*, tensorflow::NodeComparatorID> WithAllBefore(std::vector<Node*> left) {
  std::set<Node*, tensorflow::NodeComparatorID> found;
  while (!left.empty()) {
    Node* node = left.back();
    left.pop_back();
    if (!node->IsOp() || !found.insert(node).second) continue;
    for (const Edge* edge : node->in_edges()) left.push_back(edge->src());
  }
  return found;
}

}  // namespace

void RemoveUnread(const std::vector<Node*>& nodes, const std::set<std::string>& names, Graph* graph) {
  const auto candidates = WithAllBefore(nodes);
  std::vector<Node*> needed;
  for (Node* node : candidates) {
    const bool is_read = std::any_of(node->out_edges().begin(), node->out_edges().end(), [&](const Edge* edge) {
      return edge->dst()->IsOp() && candidates.count(edge->dst()) == 0;
    });
    // What has side effects is read by now, by the value that waits for it. It stays all the same: nobody would see it
    // go.
    if (is_read || node->IsArg() || HasSideEffects(*node) || names.count(node->name()) > 0) needed.push_back(node);
  }
  const auto live = WithAllBefore(std::move(needed));
  for (Node* node : candidates) {
    if (live.count(node) == 0) graph->RemoveNode(node);
  }
  tensorflow::FixupSourceAndSinkEdges(graph);
}

}  // namespace tf_cg_ops
