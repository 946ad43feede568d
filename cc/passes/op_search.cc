#include "cc/passes/op_search.h"

#include <string>
#include <vector>

#include "cc/lib/op_names.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/util/env_var.h"

namespace tf_cg_ops {

bool PassesAreDisabled() {
  // Once, because the program can set variables while TensorFlow's threads prepare graphs.
  static const bool are_disabled = [] {
    bool is_set = false;
    const absl::Status status = tensorflow::ReadBoolFromEnvVar("TF_CG_OPS_DISABLE_PASSES", false, &is_set);
    if (!status.ok()) LOG(WARNING) << "tf_cg_ops: " << status.message() << ". It counts as not set.";
    return is_set;
  }();
  return are_disabled;
}

bool IsFunctionCall(const std::string& op) { return op == "PartitionedCall" || op == "StatefulPartitionedCall"; }

bool IsLoopOrConditional(const std::string& op) {
  return op == "While" || op == "StatelessWhile" || op == "If" || op == "StatelessIf" || op == "Case" ||
         op == "StatelessCase";
}

bool OpSearch::Finds(const Key& key) {
  std::map<Key, std::vector<Key>> callers;
  std::vector<Key> unread = {key}, with_op;
  while (!unread.empty()) {
    const Key function = unread.back();
    unread.pop_back();
    if (!found_.emplace(function, false).second) continue;
    std::vector<Key> runs;
    if (HasOp(function, &runs)) with_op.push_back(function);
    for (const Key& one : runs) {
      const auto known = found_.find(one);
      if (known != found_.end() && known->second) with_op.push_back(function);
      callers[one].push_back(function);
      unread.push_back(one);
    }
  }
  // Only after all of them are read, because an answer must not depend on the order.
  while (!with_op.empty()) {
    const Key function = with_op.back();
    with_op.pop_back();
    bool& found = found_[function];
    if (found) continue;
    found = true;
    for (const Key& caller : callers[function]) with_op.push_back(caller);
  }
  return found_[key];
}

bool OpSearch::HasOp(const Key& key, std::vector<Key>* runs) const {
  const auto& [function, counts] = key;
  const auto record = library_.FindRecord(function);
  if (record == nullptr) return false;
  bool has_op = false;
  for (const tensorflow::NodeDef& node : record->fdef().node_def()) {
    if (HasCustomGradient(node.op())) has_op = has_op || counts;  // The functions that it names are rules.
    const bool is_control_flow = IsLoopOrConditional(node.op());
    if (!is_control_flow && !IsFunctionCall(node.op())) continue;
    for (const auto& [name, value] : node.attr()) {
      if (value.has_func()) runs->emplace_back(value.func().name(), counts || is_control_flow);
      for (const auto& one : value.list().func()) runs->emplace_back(one.name(), counts || is_control_flow);
    }
  }
  return has_op;
}

}  // namespace tf_cg_ops
