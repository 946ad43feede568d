// Refuses to run a graph in which TensorFlow would lose a custom gradient: a gradient that was made without Python
// (TF_AddGradients, or tf.gradients of a graph from the loader of TensorFlow 1) of a function that has a loop or a
// conditional with an op of this library inside. TensorFlow has no such gradient of loops and conditionals, and for
// some of them returns zeros without a word; stock ops fare no better, but those are not ours to refuse.

#include <array>
#include <set>
#include <string>
#include <utility>

#include "cc/lib/messages.h"
#include "cc/passes/differentiated_function.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::NodeDef;

constexpr std::array<const char*, 2> kOpsWithCustomGradients = {"CustomGradientEmbed", "CustomGradientRule"};
constexpr std::array<const char*, 2> kCalls = {"PartitionedCall", "StatefulPartitionedCall"};

template <size_t N>
bool Contains(const std::array<const char*, N>& names, const std::string& name) {
  for (const char* known : names) {
    if (name == known) return true;
  }
  return false;
}

// Looks through a function and all that it runs, each function once on either side of control flow.
class Search {
 public:
  explicit Search(const FunctionLibraryDefinition& library) : library_(library) {}

  // The description of the first loop or conditional around a custom gradient; empty if there is none.
  std::string FindIn(const std::string& function) { return Visit(function, ""); }

 private:
  std::string Visit(const std::string& function, const std::string& around) {
    if (!visited_.emplace(function, !around.empty()).second) return "";
    const auto record = library_.FindRecord(function);
    if (record == nullptr) return "";
    for (const NodeDef& node : record->fdef().node_def()) {
      if (Contains(kOpsWithCustomGradients, node.op())) {
        if (!around.empty()) return around;
        continue;  // The function that it names is a rule, which does not run here.
      }
      const std::string inside =
          Contains(kCalls, node.op()) || !around.empty() ? around : "'" + node.name() + "' (" + node.op() + ")";
      for (const auto& [name, value] : node.attr()) {
        if (value.has_func()) {
          if (std::string found = Visit(value.func().name(), inside); !found.empty()) return found;
        }
        for (const auto& called : value.list().func()) {
          if (std::string found = Visit(called.name(), inside); !found.empty()) return found;
        }
      }
    }
    return "";
  }

  const FunctionLibraryDefinition& library_;
  std::set<std::pair<std::string, bool>> visited_;
};

class RefuseLostGradients : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr || options.flib_def == nullptr) return absl::OkStatus();
    for (const tensorflow::Node* node : (*options.graph)->op_nodes()) {
      if (node->type_string() != "SymbolicGradient") continue;
      std::string name;
      TF_RETURN_IF_ERROR(DifferentiatedFunction(*node, &name));
      const std::string around = Search(*options.flib_def).FindIn(name);
      if (!around.empty()) return absl::UnimplementedError(GradientLostInControlFlow(name, around));
    }
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 0, RefuseLostGradients);

}  // namespace
}  // namespace tf_cg_ops
