#include "cc/passes/function_bodies.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cc/passes/values.h"
#include "tensorflow/core/common_runtime/function_body.h"
#include "tensorflow/core/common_runtime/function_def_utils.h"
#include "tensorflow/core/framework/graph_to_functiondef.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_cg_ops {

using ::tensorflow::AttrValue;
using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::Graph;
using ::tensorflow::Node;

namespace {

// Functions may name one another without end.
constexpr int kMaxDepth = 64;

bool RunsFunctions(const Node& node) { return node.IsIfNode() || node.IsCaseNode() || node.IsWhileNode(); }

bool RunsFunctions(const std::string& op) {
  return op == "If" || op == "StatelessIf" || op == "Case" || op == "StatelessCase" || op == "While" ||
         op == "StatelessWhile";
}

// Whether there is one of these ops in the function, or in loops and conditionals inside. Most functions have none, and
// are not looked at any closer.
bool HoldsCustomGradients(const std::string& function, const FunctionLibraryDefinition& library) {
  std::set<std::string> seen = {function};
  std::vector<std::string> left = {function};
  while (!left.empty()) {
    const auto record = library.FindRecord(left.back());
    left.pop_back();
    if (record == nullptr) continue;
    for (const tensorflow::NodeDef& node : record->fdef().node_def()) {
      if (HasCustomGradient(node.op())) return true;
      if (!RunsFunctions(node.op())) continue;
      for (const auto& [name, value] : node.attr()) {
        if (value.has_func() && seen.insert(value.func().name()).second) left.push_back(value.func().name());
        for (const auto& inner : value.list().func()) {
          if (seen.insert(inner.name()).second) left.push_back(inner.name());
        }
      }
    }
  }
  return false;
}

}  // namespace

absl::Status FunctionBodies::ReplaceIn(Graph* graph) {
  bool replaced;
  return ReplaceIn(graph, 0, &replaced);
}

absl::Status FunctionBodies::ReplaceIn(Graph* graph, int depth, bool* replaced) {
  *replaced = false;
  for (Node* node : graph->op_nodes()) {
    if (!RunsFunctions(*node)) continue;
    std::map<std::string, AttrValue> changed;
    for (const auto& [name, value] : node->attrs()) {
      AttrValue with_values = value;
      // In C++17 a lambda may use a name of a structured binding only so.
      const auto replace = [&, &name = name](tensorflow::NameAttrList* function) {
        std::string replacement;
        TF_RETURN_IF_ERROR(Replace(function->name(), depth, &replacement));
        if (replacement == function->name()) return absl::OkStatus();
        function->set_name(replacement);
        changed[name] = with_values;
        return absl::OkStatus();
      };
      if (value.has_func()) TF_RETURN_IF_ERROR(replace(with_values.mutable_func()));
      for (auto& function : *with_values.mutable_list()->mutable_func()) TF_RETURN_IF_ERROR(replace(&function));
    }
    for (const auto& [name, value] : changed) {
      node->ClearAttr(name);
      node->AddAttr(name, value);
    }
    *replaced = *replaced || !changed.empty();
  }
  return absl::OkStatus();
}

absl::Status FunctionBodies::Replace(const std::string& function, int depth, std::string* replacement) {
  const auto [known, is_new] = replacements_.emplace(function, function);
  *replacement = known->second;
  if (!is_new || depth >= kMaxDepth || !HoldsCustomGradients(function, *library_)) return absl::OkStatus();
  auto record = library_->FindRecord(function);
  const FunctionDef old = record->fdef();
  if (old.signature().attr_size() > 0) return absl::OkStatus();

  std::unique_ptr<tensorflow::FunctionBody> body;
  TF_RETURN_IF_ERROR(tensorflow::FunctionDefToBodyHelper(std::move(record), {}, library_, &body));
  ReplaceOptions options;
  std::map<std::string, std::string> control_outputs;  // By their nodes.
  for (const auto& [name, node] : old.control_ret()) {
    options.control_outputs.insert(node);
    control_outputs[node] = name;
  }
  bool replaced_here, replaced_inside;
  TF_RETURN_IF_ERROR(ReplaceByValues(options, body->graph, &replaced_here));
  TF_RETURN_IF_ERROR(ReplaceIn(body->graph, depth + 1, &replaced_inside));
  if (!replaced_here && !replaced_inside) return absl::OkStatus();

  const auto control_output = [&](const Node* node) -> std::optional<std::string> {
    const auto found = control_outputs.find(node->name());
    return found == control_outputs.end() ? std::nullopt : std::make_optional(found->second);
  };
  *replacement = library_->UniqueFunctionName(function + "_without_gradients_");
  FunctionDef changed;
  TF_RETURN_IF_ERROR(tensorflow::GraphToFunctionDef(*body->graph, *replacement, control_output, &changed));
  *changed.mutable_attr() = old.attr();
  changed.mutable_signature()->set_is_stateful(old.signature().is_stateful());
  TF_RETURN_IF_ERROR(library_->AddFunctionDef(std::move(changed)));
  replacements_[function] = *replacement;
  return absl::OkStatus();
}

}  // namespace tf_cg_ops
