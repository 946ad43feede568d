#include "cc/passes/side_effects.h"

#include <set>
#include <string>

namespace tf_cg_ops {

using ::tensorflow::Edge;
using ::tensorflow::Graph;
using ::tensorflow::Node;

namespace {

// Stateful, since what they return may change; but nobody sees whether they ran. TensorFlow's automatic control
// dependencies make later assignments wait for reads, and then these stay.
const std::set<std::string>& OpsThatOnlyRead() {
  static const auto* ops = new std::set<std::string>{"_Arg",       "ReadVariableOp", "VarHandleOp",
                                                     "VariableV2", "Variable",       "VarIsInitializedOp"};
  return *ops;
}

}  // namespace

bool HasSideEffects(const Node& node) {
  if (!node.IsOp()) return false;
  // Their declarations do not tell: functions that are used as ops, and the gradients of functions.
  if (node.IsFunctionCall() && !node.IsPartitionedCall()) return true;
  return node.op_def().is_stateful() && OpsThatOnlyRead().count(node.type_string()) == 0;
}

SideEffectsBefore::SideEffectsBefore(const Graph& graph) : comes_after_(graph.num_node_ids(), false) {
  std::vector<const Node*> left;
  const auto mark = [&](const Node* node) {
    if (!node->IsOp() || comes_after_[node->id()]) return;
    comes_after_[node->id()] = true;
    left.push_back(node);
  };
  for (const Node* node : graph.op_nodes()) {
    if (HasSideEffects(*node)) mark(node);
  }
  while (!left.empty()) {
    const Node* node = left.back();
    left.pop_back();
    for (const Edge* edge : node->out_edges()) mark(edge->dst());
  }
}

bool SideEffectsBefore::ComesAfter(const Node& node) const {
  return node.IsOp() && node.id() < static_cast<int>(comes_after_.size()) && comes_after_[node.id()];
}

void SideEffectsBefore::Walk(const std::vector<const Edge*>& from, std::vector<bool>* visited,
                             std::vector<Node*>* found) const {
  std::vector<const Edge*> left(from);
  while (!left.empty()) {
    Node* node = left.back()->src();
    left.pop_back();
    if (!ComesAfter(*node) || (*visited)[node->id()]) continue;
    (*visited)[node->id()] = true;
    if (HasSideEffects(*node) || node->IsControlFlow()) {
      if (found != nullptr) found->push_back(node);
    } else {
      left.insert(left.end(), node->in_edges().begin(), node->in_edges().end());
    }
  }
}

std::vector<Node*> SideEffectsBefore::OnlyBehind(const std::vector<const Edge*>& dropped,
                                                 const std::vector<const Edge*>& kept) const {
  std::vector<Node*> found;
  bool any = false;
  for (const Edge* edge : dropped) any = any || ComesAfter(*edge->src());
  if (!any) return found;
  std::vector<bool> visited(comes_after_.size(), false);
  Walk(kept, &visited, nullptr);
  Walk(dropped, &visited, &found);
  return found;
}

}  // namespace tf_cg_ops
