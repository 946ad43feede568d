// Refuses to run a graph in which TensorFlow would lose a custom gradient: a gradient that was made without Python
// (TF_AddGradients, or tf.gradients of a graph from the loader of TensorFlow 1) of a function that has a loop or a
// conditional with an op of this library inside. TensorFlow has no such gradient of loops and conditionals, and for
// some of them returns zeros without a word; stock ops fare no better, but those are not ours to refuse.

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

  // A loop or conditional around a custom gradient; nullptr if there is none.
  const NodeDef* FindIn(const std::string& function) {
    Visit(function, nullptr);
    while (!left_.empty()) {
      const auto [node, around] = left_.back();
      left_.pop_back();
      if (Contains(kOpsWithCustomGradients, node->op())) {
        if (around != nullptr) return around;
        continue;  // The function that it names is a rule, which does not run here.
      }
      const NodeDef* inside = Contains(kCalls, node->op()) || around != nullptr ? around : node;
      for (const auto& [name, value] : node->attr()) {
        if (value.has_func()) Visit(value.func().name(), inside);
        for (const auto& called : value.list().func()) Visit(called.name(), inside);
      }
    }
    return nullptr;
  }

 private:
  void Visit(const std::string& function, const NodeDef* around) {
    if (!visited_.emplace(function, around != nullptr).second) return;
    const auto record = library_.FindRecord(function);
    if (record == nullptr) return;
    for (const NodeDef& node : record->fdef().node_def()) left_.emplace_back(&node, around);  // The library keeps them.
  }

  const FunctionLibraryDefinition& library_;
  std::set<std::pair<std::string, bool>> visited_;
  std::vector<std::pair<const NodeDef*, const NodeDef*>> left_;  // Nodes, with the loop or conditional around them.
};

class RefuseLostGradients : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr || options.flib_def == nullptr) return absl::OkStatus();
    for (const tensorflow::Node* node : (*options.graph)->op_nodes()) {
      if (node->type_string() != "SymbolicGradient") continue;
      std::string name;
      TF_RETURN_IF_ERROR(DifferentiatedFunction(*node, &name));
      if (const NodeDef* around = Search(*options.flib_def).FindIn(name); around != nullptr) {
        const std::string description = "'" + around->name() + "' (" + around->op() + ")";
        return absl::UnimplementedError(GradientLostInControlFlow(name, description));
      }
    }
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 0, RefuseLostGradients);

}  // namespace
}  // namespace tf_cg_ops
