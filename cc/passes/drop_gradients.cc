// Inference pays nothing: in the graph that is about to run, ops with custom gradients become their values, and what
// only gradients would have read goes. By then the gradients that are wanted are part of the graph, as ops of their own
// that read what they need.

#include <atomic>

#include "cc/passes/function_bodies.h"
#include "cc/passes/values.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/util/env_var.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::GraphOptimizationPassOptions;

// Whether it is one op of eager mode, which TensorFlow runs as a function of such a name. It stays, since it compares
// the shapes.
bool IsEagerOp(const GraphOptimizationPassOptions& options) {
  return options.function_def != nullptr && options.function_def->signature().name().rfind("__wrapped__", 0) == 0;
}

// Read each time: it may be set in a process that runs. A word that is no truth value is no reason to let a graph fail:
// those of all other libraries come by here, too.
bool KeepsOps() {
  bool keep_ops = false;
  const absl::Status status = tensorflow::ReadBoolFromEnvVar("TF_CG_OPS_KEEP_OPS", /*default_val=*/false, &keep_ops);
  static std::atomic_flag warned = ATOMIC_FLAG_INIT;
  if (!status.ok() && !warned.test_and_set()) {
    LOG(WARNING) << "tf_cg_ops: " << status.message() << ". It counts as not set.";
  }
  return keep_ops;
}

absl::Status Run(const GraphOptimizationPassOptions& options, bool keep_names) {
  if (options.graph == nullptr || *options.graph == nullptr || options.flib_def == nullptr || IsEagerOp(options)) {
    return absl::OkStatus();
  }
  if (KeepsOps()) return absl::OkStatus();
  ReplaceOptions replace;
  replace.keep_names = keep_names;
  if (options.function_def != nullptr) {
    for (const auto& [name, node] : options.function_def->control_ret()) replace.control_outputs.insert(node);
  }
  bool replaced;
  TF_RETURN_IF_ERROR(ReplaceByValues(replace, options.graph->get(), &replaced));
  return FunctionBodies(options.flib_def).ReplaceIn(options.graph->get());
}

// Whether it is the graph of a session, for all that will be fetched; not one that was cut down to a fetch.
bool MayBeFedAndFetched(const GraphOptimizationPassOptions& options) {
  if (options.is_function_graph) return false;
  return options.session_options == nullptr || !options.session_options->config.graph_options().place_pruned_graph();
}

// Before TensorFlow optimises and places, so that it sees through.
class DropGradients : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    return tf_cg_ops::Run(options, /*keep_names=*/MayBeFedAndFetched(options));
  }
};

// For what TensorFlow's optimiser put in the places of calls.
class DropInlinedGradients : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    return tf_cg_ops::Run(options, /*keep_names=*/false);
  }
};

// TensorFlow puts functions in the places of calls, and lowers loops and conditionals, in phase 10.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 11, DropGradients);
// Before phase 5, in which XLA starts to look for clusters.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0, DropInlinedGradients);

}  // namespace
}  // namespace tf_cg_ops
