#ifndef TF_CG_OPS_CC_PASSES_VALUES_H_
#define TF_CG_OPS_CC_PASSES_VALUES_H_

#include <set>
#include <string>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {

// Whether it is one of the ops that return their first inputs, and have a gradient of their own.
bool HasCustomGradient(const std::string& op);

struct ReplaceOptions {
  // Whether nodes may be fed and fetched by name: then each op is replaced by an identity of its name, and nothing is
  // removed, which is left to TensorFlow.
  bool keep_names = false;
  // Nodes of a function that are among its control outputs.
  std::set<std::string> control_outputs;
};

// Replaces the ops with custom gradients by their values, in a graph in which all gradients that are wanted stand, and
// removes what only gradients would have read. `replaced` says whether there was anything to do.
absl::Status ReplaceByValues(const ReplaceOptions& options, tensorflow::Graph* graph, bool* replaced);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_VALUES_H_
