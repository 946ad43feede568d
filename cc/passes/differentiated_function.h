#ifndef TF_CG_OPS_CC_PASSES_DIFFERENTIATED_FUNCTION_H_
#define TF_CG_OPS_CC_PASSES_DIFFERENTIATED_FUNCTION_H_

#include <string>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {

// The function or op that a SymbolicGradient node differentiates. TF_AddGradients names the op that calls a function.
inline absl::Status DifferentiatedFunction(const tensorflow::Node& node, std::string* name) {
  tensorflow::NameAttrList function;
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node.attrs(), "f", &function));
  *name = function.name();
  if (*name == "PartitionedCall" || *name == "StatefulPartitionedCall") {
    const auto called = function.attr().find("f");
    if (called != function.attr().end()) *name = called->second.func().name();
  }
  return absl::OkStatus();
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_DIFFERENTIATED_FUNCTION_H_
