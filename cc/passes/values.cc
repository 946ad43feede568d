#include "cc/passes/values.h"

#include <utility>
#include <vector>

#include "cc/passes/gates.h"
#include "cc/passes/side_effects.h"
#include "cc/passes/unread.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"

namespace tf_cg_ops {

using ::tensorflow::Edge;
using ::tensorflow::Graph;
using ::tensorflow::Node;
using ::tensorflow::NodeDef;

namespace {

// One op, and what takes its place.
struct Replacement {
  Node* node;
  std::vector<Node*> first;  // What has to run before.
};

// Fails for a node that lacks inputs, which a graph that TensorFlow checked has not.
bool SplitInputs(const Node& node, std::vector<const Edge*>* dropped, std::vector<const Edge*>* kept) {
  std::vector<const Edge*> inputs;
  if (!node.input_edges(&inputs).ok() || node.num_inputs() < node.num_outputs()) return false;
  for (const Edge* edge : node.in_edges()) {
    const bool is_value = edge->IsControlEdge() || edge->dst_input() < node.num_outputs();
    (is_value ? kept : dropped)->push_back(edge);
  }
  return true;
}

// Whether readers may read the values themselves, without a node in between.
bool CanBypass(const Replacement& replacement, const ReplaceOptions& options) {
  const Node& node = *replacement.node;
  if (options.keep_names || options.control_outputs.count(node.name()) > 0 || !replacement.first.empty()) return false;
  for (const Edge* edge : node.in_edges()) {
    if (edge->src()->IsSource()) continue;
    if (edge->IsControlEdge() || edge->src() == &node) return false;
    // A reader would see later assignments.
    if (tensorflow::IsRefType(edge->src()->output_type(edge->src_output()))) return false;
  }
  for (const Edge* edge : node.out_edges()) {
    if (edge->IsControlEdge() && !edge->dst()->IsSink()) return false;
  }
  return true;
}

void MoveReader(const Edge* edge, Node* to, int output, Graph* graph) {
  // An edge that is removed takes its ends with it.
  Node* reader = edge->dst();
  const int input = edge->dst_input();
  graph->RemoveEdge(edge);
  graph->AddEdge(to, output, reader, input);
}

absl::Status Bypass(Node* node, Graph* graph) {
  const std::vector<const Edge*> out(node->out_edges().begin(), node->out_edges().end());
  for (const Edge* edge : out) {
    if (edge->IsControlEdge()) continue;  // To the sink.
    const Edge* value;
    TF_RETURN_IF_ERROR(node->input_edge(edge->src_output(), &value));
    MoveReader(edge, value->src(), value->src_output(), graph);
  }
  return absl::OkStatus();
}

// An identity of the same name, device and colocation.
absl::Status AddIdentity(const Replacement& replacement, Graph* graph, Node** identity) {
  const Node& node = *replacement.node;
  NodeDef def;
  def.set_name(node.name());
  def.set_device(node.requested_device());
  for (const auto& [name, value] : node.attrs()) {
    if (name[0] == '_') (*def.mutable_attr())[name] = value;
  }
  if (node.num_outputs() == 1) {
    def.set_op("Identity");
    tensorflow::AddNodeAttr("T", node.output_type(0), &def);
  } else {
    def.set_op("IdentityN");
    tensorflow::AddNodeAttr("T", node.output_types(), &def);
  }
  absl::Status status;
  *identity = graph->AddNode(def, &status);
  TF_RETURN_IF_ERROR(status);
  (*identity)->set_assigned_device_name_index(node.assigned_device_name_index());
  (*identity)->SetStackTrace(node.GetStackTrace());
  for (const Edge* edge : node.in_edges()) {
    if (edge->dst_input() < node.num_outputs()) {
      graph->AddEdge(edge->src(), edge->src_output(), *identity, edge->dst_input());
    }
  }
  for (Node* first : replacement.first) graph->AddControlEdge(first, *identity);
  return absl::OkStatus();
}

absl::Status Replace(const Replacement& replacement, const ReplaceOptions& options, Graph* graph) {
  if (CanBypass(replacement, options)) return Bypass(replacement.node, graph);
  Node* identity;
  TF_RETURN_IF_ERROR(AddIdentity(replacement, graph, &identity));
  const std::vector<const Edge*> out(replacement.node->out_edges().begin(), replacement.node->out_edges().end());
  for (const Edge* edge : out) {
    if (!edge->dst()->IsSink()) MoveReader(edge, identity, edge->src_output(), graph);
  }
  return absl::OkStatus();
}

}  // namespace

bool HasCustomGradient(const std::string& op) { return op == "CustomGradientEmbed" || op == "CustomGradientRule"; }

absl::Status ReplaceByValues(const ReplaceOptions& options, Graph* graph, bool* replaced) {
  *replaced = false;
  std::vector<Node*> nodes;
  for (Node* node : graph->op_nodes()) {
    if (HasCustomGradient(node->type_string())) nodes.push_back(node);
  }
  if (nodes.empty()) return absl::OkStatus();
  tensorflow::FixupSourceAndSinkEdges(graph);

  // All is looked up in the graph as it was: what is replaced later is still part of the ways through it.
  std::vector<Replacement> replacements;
  const Gates gates(*graph);
  SideEffectsBefore side_effects(*graph);
  for (Node* node : nodes) {
    std::vector<const Edge*> dropped, kept;
    Replacement replacement = {node, {}};
    if (SplitInputs(*node, &dropped, &kept) && gates.AreKept(dropped, kept) &&
        side_effects.OnlyBehind(*node, dropped, kept, &replacement.first)) {
      replacements.push_back(std::move(replacement));
    }
  }
  std::set<Node*, tensorflow::NodeComparatorID> before;
  for (const Replacement& replacement : replacements) {
    TF_RETURN_IF_ERROR(Replace(replacement, options, graph));
    for (const Edge* edge : replacement.node->in_edges()) before.insert(edge->src());
  }
  for (const Replacement& replacement : replacements) {
    before.erase(replacement.node);
    graph->RemoveNode(replacement.node);
  }
  tensorflow::FixupSourceAndSinkEdges(graph);
  if (!options.keep_names) RemoveUnread({before.begin(), before.end()}, options.control_outputs, graph);
  *replaced = !replacements.empty();
  return absl::OkStatus();
}

}  // namespace tf_cg_ops
