#include "cc/passes/gates.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "tensorflow/core/graph/algorithm.h"

namespace tf_cg_ops {

using ::tensorflow::Edge;
using ::tensorflow::Graph;
using ::tensorflow::Node;

Gates::Gates(const Graph& graph) {
  for (const Node* node : graph.op_nodes()) has_gates_ = has_gates_ || node->IsSwitch();
  if (!has_gates_) return;
  before_.resize(graph.num_node_ids());
  std::vector<Node*> order;
  tensorflow::GetReversePostOrder(graph, &order, /*stable_comparator=*/{},
                                  [](const Edge& edge) { return !edge.src()->IsNextIteration(); });
  for (const Node* node : order) Add(*node);
}

void Gates::Add(const Node& node) {
  const Set before = Before(node);
  before_[node.id()] = before;
  const Edge* predicate;
  if (!node.IsSwitch() || !node.input_edge(1, &predicate).ok()) return;
  for (int i = 0; i < node.num_outputs(); ++i) {
    const auto key = std::make_tuple(predicate->src()->id(), predicate->src_output(), i);
    const auto [known, is_new] = gates_.emplace(key, gates_.size());
    const int gate = known->second;
    if (is_new) branches_.push_back({predicate->src()->id(), predicate->src_output(), node.num_outputs()});
    behind_[{node.id(), i}] = Union(before, std::make_shared<const std::vector<int>>(1, gate));
  }
}

bool Gates::OneRuns(const std::vector<Set>& inputs, size_t num_common) const {
  std::set<int> own;
  for (const Set& input : inputs) {
    if (input->size() == num_common) return true;
    if (input->size() > num_common + 1) return false;
    own.insert(input->begin(), input->end());
  }
  // Without what they have in common.
  for (const int gate : *inputs[0]) {
    const auto has_gate = [&](const Set& input) { return std::binary_search(input->begin(), input->end(), gate); };
    if (std::all_of(inputs.begin(), inputs.end(), has_gate)) own.erase(gate);
  }
  const Branch& first = branches_[*own.begin()];
  const auto is_of_first = [&](int gate) {
    return branches_[gate].node == first.node && branches_[gate].output == first.output;
  };
  return static_cast<int>(own.size()) == first.count && std::all_of(own.begin(), own.end(), is_of_first);
}

Gates::Set Gates::Before(const Node& node) {
  if (node.IsMerge()) {
    // It runs where one of its inputs does. In the frame of a loop, that is where the loop is entered.
    std::vector<Set> inputs;
    Set all;
    for (const Edge* edge : node.in_edges()) {
      if (edge->IsControlEdge() || edge->src()->IsNextIteration()) continue;
      all = inputs.empty() ? Of(*edge) : Intersection(all, Of(*edge));
      inputs.push_back(Of(*edge));
    }
    return all != nullptr && OneRuns(inputs, all->size()) ? all : nullptr;
  }
  Set all = std::make_shared<const std::vector<int>>();
  for (const Edge* edge : node.in_edges()) {
    // Each loop that is entered ends: where the Switch of an Exit runs, so does the Exit, in the end.
    const bool ends_loop = node.IsExit() && edge->src()->IsSwitch();
    all = Union(all, ends_loop ? before_[edge->src()->id()] : Of(*edge));
  }
  return all;
}

Gates::Set Gates::Of(const Edge& edge) const {
  if (edge.src()->IsSwitch() && !edge.IsControlEdge()) {
    const auto behind = behind_.find({edge.src()->id(), edge.src_output()});
    return behind == behind_.end() ? nullptr : behind->second;
  }
  return edge.src()->id() < static_cast<int>(before_.size()) ? before_[edge.src()->id()] : nullptr;
}

Gates::Set Gates::Union(const Set& a, const Set& b) {
  if (a == nullptr || b == nullptr || a == b || b->empty()) return b == nullptr ? nullptr : a;
  if (std::includes(b->begin(), b->end(), a->begin(), a->end())) return b;
  if (std::includes(a->begin(), a->end(), b->begin(), b->end())) return a;
  std::vector<int> both;
  std::set_union(a->begin(), a->end(), b->begin(), b->end(), std::back_inserter(both));
  room_ -= static_cast<int64_t>(both.size());
  return room_ < 0 ? nullptr : std::make_shared<const std::vector<int>>(std::move(both));
}

Gates::Set Gates::Intersection(const Set& a, const Set& b) {
  if (a == nullptr || b == nullptr) return nullptr;
  std::vector<int> both;
  std::set_intersection(a->begin(), a->end(), b->begin(), b->end(), std::back_inserter(both));
  room_ -= static_cast<int64_t>(both.size());
  return room_ < 0 ? nullptr : std::make_shared<const std::vector<int>>(std::move(both));
}

bool Gates::AreKept(const std::vector<const Edge*>& dropped, const std::vector<const Edge*>& kept) const {
  if (!has_gates_) return true;
  std::set<int> around;
  for (const Edge* edge : kept) {
    const Set gates = Of(*edge);
    if (gates != nullptr) around.insert(gates->begin(), gates->end());
  }
  for (const Edge* edge : dropped) {
    const Set gates = Of(*edge);
    if (gates == nullptr || !std::includes(around.begin(), around.end(), gates->begin(), gates->end())) return false;
  }
  return true;
}

}  // namespace tf_cg_ops
