#include "cc/passes/side_effects.h"

#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "tensorflow/core/graph/algorithm.h"

namespace tf_cg_ops {

using ::tensorflow::Edge;
using ::tensorflow::Graph;
using ::tensorflow::Node;

namespace {

// Instead of a position.
constexpr int kNoSideEffect = -1, kNotInOrder = -2;  // The latter in a ring that nothing leads to.

// What waits costs TensorFlow more than a step here.
constexpr int kRoomForEdge = 100;

// Stateful, since what they return may change; but nobody sees whether they ran.
const std::set<std::string>& OpsThatOnlyRead() {
  static const auto* ops = new std::set<std::string>{"_Arg",       "ReadVariableOp", "VarHandleOp",
                                                     "VariableV2", "Variable",       "VarIsInitializedOp"};
  return *ops;
}

// What changes a variable of TensorFlow 1 takes it by reference, and is not declared to be stateful.
bool TakesReference(const Node& node) {
  for (const auto& input : node.op_def().input_arg()) {
    if (input.is_ref()) return true;
  }
  return false;
}

// What a variable returns to others changes if it is assigned before it is read.
bool Reads(const Node& node) { return node.type_string() == "ReadVariableOp"; }

}  // namespace

bool HasSideEffects(const Node& node) {
  if (!node.IsOp()) return false;
  // Their declarations do not tell: functions that are used as ops, and the gradients of functions.
  if (node.IsFunctionCall() && !node.IsPartitionedCall()) return true;
  if (TakesReference(node)) return true;
  return node.op_def().is_stateful() && OpsThatOnlyRead().count(node.type_string()) == 0;
}

SideEffectsBefore::SideEffectsBefore(const Graph& graph)
    : position_(graph.num_node_ids(), kNoSideEffect), is_before_(graph.num_node_ids(), false) {
  std::vector<const Node*> after, before;
  const auto mark_after = [&](const Node* node) {
    if (!node->IsOp() || position_[node->id()] != kNoSideEffect) return;
    position_[node->id()] = kNotInOrder;
    after.push_back(node);
  };
  const auto mark_before = [&](const Node* node) {
    if (!node->IsOp() || is_before_[node->id()]) return;
    is_before_[node->id()] = true;
    before.push_back(node);
  };
  for (const Node* node : graph.op_nodes()) {
    if (HasSideEffects(*node) || Reads(*node)) mark_after(node);
    if (HasSideEffects(*node) && !node->IsRetval() && !node->IsSend()) mark_before(node);
  }
  if (after.empty()) return;
  while (!after.empty()) {
    const Node* node = after.back();
    after.pop_back();
    for (const Edge* edge : node->out_edges()) mark_after(edge->dst());
  }
  while (!before.empty()) {
    const Node* node = before.back();
    before.pop_back();
    for (const Edge* edge : node->in_edges()) mark_before(edge->src());
  }
  tensorflow::GetReversePostOrder(graph, &order_, /*stable_comparator=*/{},
                                  [](const Edge& edge) { return !edge.src()->IsNextIteration(); });
  for (size_t i = 0; i < order_.size(); ++i) {
    int& position = position_[order_[i]->id()];
    if (position == kNotInOrder) position = static_cast<int>(i);
  }
}

int SideEffectsBefore::Position(const Node& node) const {
  return node.IsOp() && node.id() < static_cast<int>(position_.size()) ? position_[node.id()] : kNoSideEffect;
}

bool SideEffectsBefore::OnlyBehind(const Node& op, const std::vector<const Edge*>& dropped,
                                   const std::vector<const Edge*>& kept, std::vector<Node*>* found) {
  found->clear();
  // From the last node to the first: by the time that a node's turn comes, all ways to it are known. It ends where the
  // value comes after all that is left, so that a chain is not walked to its start again for each op in it.
  std::map<int, bool, std::greater<int>> left;  // By position: whether it comes before the dropped inputs alone.
  int num_dropped = 0;
  const bool order_reads = is_before_[op.id()];
  const auto add = [&](const Edge& edge, bool is_dropped, int before) {
    const int position = Position(*edge.src());
    if (position < 0 || position >= before) return;
    const auto [known, is_new] = left.emplace(position, is_dropped);
    if (is_new && is_dropped) ++num_dropped;
    if (!is_new && known->second && !is_dropped) {
      known->second = false;
      --num_dropped;
    }
  };
  for (const Edge* edge : kept) add(*edge, false, std::numeric_limits<int>::max());
  for (const Edge* edge : dropped) add(*edge, true, std::numeric_limits<int>::max());
  while (num_dropped > 0) {
    const auto [position, is_dropped] = *left.begin();
    left.erase(left.begin());
    if (is_dropped) --num_dropped;
    Node* node = order_[position];
    if (--room_ < 0) return false;
    if (HasSideEffects(*node) || node->IsControlFlow() || (order_reads && Reads(*node))) {
      if (!is_dropped) continue;
      found->push_back(node);
      room_ -= kRoomForEdge;
    } else {
      for (const Edge* edge : node->in_edges()) add(*edge, is_dropped, position);
    }
  }
  return true;
}

}  // namespace tf_cg_ops
