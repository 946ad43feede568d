#include "cc/gradients/repeatable.h"

#include <vector>

#include "cc/gradients/flat_function.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_cg_ops {

using ::tensorflow::NodeDef;

namespace {

// Stateful ops that give the same value once more, or only say or check something.
const std::set<std::string>& RepeatableOps() {
  static const auto* ops = new std::set<std::string>{
      "Assert",
      "CheckNumerics",
      "CheckNumericsV2",
      "GuaranteeConst",
      "HashTableV2",
      "LookupTableExportV2",
      "LookupTableFindV2",
      "LookupTableSizeV2",
      "Print",
      "PrintV2",
      "ReadVariableOp",
      "ResourceGather",
      "ResourceGatherNd",
      "StatelessRandomGetAlg",
      "VarHandleOp",
      "VarIsInitializedOp",
      "VariableShape",
  };
  return *ops;
}

// What is assigned may be read before or after that.
bool Assigns(const std::string& op) {
  if (op.find("Assign") != std::string::npos) return true;
  for (const char* start :
       {"ResourceApply", "ResourceScatter", "LookupTableImport", "LookupTableInsert", "LookupTableRemove"}) {
    if (op.rfind(start, 0) == 0) return true;
  }
  return false;
}

}  // namespace

bool Repeatable::IsStateful(const NodeDef& node) const {
  const tensorflow::OpDef* op;
  return library_.LookUpOpDef(node.op(), &op).ok() && op->is_stateful();
}

bool Repeatable::Allows(const NodeDef& node, bool is_used) {
  std::vector<const NodeDef*> left = {&node};
  while (!left.empty()) {
    const NodeDef& next = *left.back();
    left.pop_back();
    if (!IsStateful(next) || RepeatableOps().count(next.op()) > 0) continue;
    const std::vector<std::string> functions = FunctionsOf(next);
    if (Assigns(next.op()) || (is_used && functions.empty())) return false;
    for (const std::string& function : functions) {
      const auto record = library_.FindRecord(function);
      if (record == nullptr || !visited_.emplace(function, is_used).second) continue;
      for (const NodeDef& inner : record->fdef().node_def()) left.push_back(&inner);  // The library keeps them.
    }
  }
  return true;
}

}  // namespace tf_cg_ops
