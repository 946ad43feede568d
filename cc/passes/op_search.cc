#include "cc/passes/op_search.h"

#include "cc/lib/op_names.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/util/env_var.h"

namespace tf_cg_ops {

// Reads the variable each time, since a running process may set it.
bool PassesAreDisabled() {
  bool are_disabled = false;
  const absl::Status status = tensorflow::ReadBoolFromEnvVar("TF_CG_OPS_DISABLE_PASSES", false, &are_disabled);
  if (!status.ok()) LOG_FIRST_N(WARNING, 1) << "tf_cg_ops: " << status.message() << ". It counts as not set.";
  return are_disabled;
}

bool IsFunctionCall(const std::string& op) { return op == "PartitionedCall" || op == "StatefulPartitionedCall"; }

bool IsLoopOrConditional(const std::string& op) {
  return op == "While" || op == "StatelessWhile" || op == "If" || op == "StatelessIf" || op == "Case" ||
         op == "StatelessCase";
}

bool OpSearch::Finds(const std::string& function, bool counts, int depth) {
  const auto [known, is_new] = found_.emplace(std::make_pair(function, counts), false);
  if (!is_new || depth >= kMaxFunctionDepth) return known->second;
  const auto record = library_.FindRecord(function);
  if (record == nullptr) return false;
  bool found = false;
  for (const tensorflow::NodeDef& node : record->fdef().node_def()) {
    if (HasCustomGradient(node.op())) found = found || counts;  // The functions that it names are rules.
    const bool is_control_flow = IsLoopOrConditional(node.op());
    if (!is_control_flow && !IsFunctionCall(node.op())) continue;
    for (const auto& [name, value] : node.attr()) {
      if (value.has_func()) found = found || Finds(value.func().name(), counts || is_control_flow, depth + 1);
      for (const auto& one : value.list().func()) {
        found = found || Finds(one.name(), counts || is_control_flow, depth + 1);
      }
    }
  }
  return known->second = found;
}

}  // namespace tf_cg_ops
