// Makes custom gradients cost nothing in inference: before a graph runs, this pass replaces each op with a custom
// gradient by an identity of its values, so that TensorFlow prunes the gradient-only inputs. Gradients that the program
// computes are already ops of the graph, and read their inputs themselves.
//
// Input i of such an op is the value of output i. All further inputs are gradient-only: gx and x, or what a rule reads.
//
//     x --+--> f ----> value ----> op ---> y               x -----> f ----> Identity ---> y
//         |                        ^ ^            =>                           ^
//         +--> g ----> gx ---------+ |                                         :  control edge
//              read of a variable ---+                     read of a variable .:
//
// Only gradient-only inputs depend on g, and g has no side effects, so it no longer runs. The read has side effects: it
// must still happen before whatever reads y, so the identity waits for it. Whether y is computed at all must not
// change, so an op stays if a gradient-only input depends on control flow, such as a Switch, that the value does not
// depend on.
//
// The pass sees every graph of every program that imports the library. It returns early if none of this library's ops
// can run, changes only simple cases, and cannot fail: if in doubt, it keeps an op.

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/lib/op_names.h"
#include "cc/passes/op_search.h"
#include "cc/passes/replace_node.h"
#include "tensorflow/core/common_runtime/function_body.h"
#include "tensorflow/core/common_runtime/function_def_utils.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph_to_functiondef.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::AttrValue;
using ::tensorflow::Edge;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::Graph;
using ::tensorflow::GraphOptimizationPassOptions;
using ::tensorflow::Node;
using ::tensorflow::NodeDef;

// A limit on the steps for all ops of a graph. A control edge costs TensorFlow more than a step here.
constexpr int64_t kMaxSteps = 10'000'000, kStepsOfEdge = 100;

// A limit for functions from malformed files, which can call each other in long chains.
constexpr int kMaxFunctionDepth = 64;

bool TakesOrReturnsReference(const Node& node) {
  const auto is_ref = [](const tensorflow::OpDef::ArgDef& argument) { return argument.is_ref(); };
  const auto &inputs = node.op_def().input_arg(), &outputs = node.op_def().output_arg();
  return std::any_of(inputs.begin(), inputs.end(), is_ref) || std::any_of(outputs.begin(), outputs.end(), is_ref);
}

// Marks a read of a variable whose value only a CustomGradientRule uses: nothing else sees when it ran.
constexpr char kReadForRule[] = "_tf_cg_ops_read_for_rule";

// Whether the node has no side effects.
bool IsPure(const Node& node) {
  const bool is_read_for_rule = node.type_string() == "ReadVariableOp" && node.attrs().Find(kReadForRule) != nullptr;
  return !node.op_def().is_stateful() || node.IsArg() || node.type_string() == "VarHandleOp" || is_read_for_rule;
}

// Whether the identity does not need the node as an input, provided it waits for the node if that has side effects.
bool MayBeDropped(const Node& node) {
  // A Merge runs if one of its inputs runs.
  if (node.IsControlFlow() || TakesOrReturnsReference(node)) return false;
  const bool is_function = node.IsFunctionCall() && !node.IsPartitionedCall();
  const bool runs_functions = node.IsFunctionCall() || node.IsIfNode() || node.IsWhileNode() || node.IsCaseNode();
  // A function's declaration does not say what its body does, and TensorFlow can prune the body.
  return !is_function && (!runs_functions || IsPure(node));
}

// Decides for the ops of a graph whether their gradient-only inputs can be pruned.
class GradientOnlyInputs {
 public:
  explicit GradientOnlyInputs(const Graph& graph) : position_(graph.num_node_ids(), -1) {
    // Without the back edges of loops, which would leave no order in which a node comes after all that it depends on.
    tensorflow::GetReversePostOrder(graph, &order_, /*stable_comparator=*/{},
                                    [](const Edge& edge) { return !edge.src()->IsNextIteration(); });
    for (size_t i = 0; i < order_.size(); ++i) position_[order_[i]->id()] = static_cast<int>(i);
  }

  // Whether the op can become an identity, so that each of its outputs runs whenever its value does. The identity has
  // to wait for `effects`: nodes with side effects that only gradient-only inputs depend on.
  bool MayBePruned(const Node& op, std::set<Node*>* effects) {
    if (op.num_inputs() < op.num_outputs()) return false;
    for (int output = 0; output < op.num_outputs(); ++output) {
      if (!DependsOnValueOnly(op, output, effects)) return false;
    }
    return true;
  }

 private:
  // The position of a node in the order, and the output of a Switch, since only one of its outputs runs.
  using Position = std::pair<int, int>;

  // Whether the output depends only on its own value, apart from `effects`. Goes from the last node to the first, so
  // that it knows all paths from a node when it reaches the node. Stops when all remaining nodes are needed anyway, so
  // it does not walk a chain of ops to its start for each op.
  bool DependsOnValueOnly(const Node& op, int output, std::set<Node*>* effects) {
    std::map<Position, bool, std::greater<Position>> left;  // Whether only gradient-only inputs depend on it.
    int num_gradient_only = 0;
    const auto add = [&](const Edge& edge, bool is_gradient_only, int before) {
      const Node& node = *edge.src();
      if (node.IsSource()) return true;
      const int position = node.id() < static_cast<int>(position_.size()) ? position_[node.id()] : -1;
      if (position < 0 || position >= before) return false;  // Part of a cycle.
      const auto [known, is_new] =
          left.emplace(Position(position, node.IsSwitch() ? edge.src_output() : 0), is_gradient_only);
      if (is_new && is_gradient_only) ++num_gradient_only;
      if (!is_new && known->second && !is_gradient_only) {
        known->second = false;
        --num_gradient_only;
      }
      return true;
    };
    for (const Edge* edge : op.in_edges()) {
      const bool is_gradient_only = !edge->IsControlEdge() && edge->dst_input() != output;
      if (!add(*edge, is_gradient_only, std::numeric_limits<int>::max())) return false;
    }
    while (num_gradient_only > 0) {
      const auto [key, is_gradient_only] = *left.begin();
      left.erase(left.begin());
      if (is_gradient_only) --num_gradient_only;
      Node* const node = order_[key.first];
      if (++steps_ > kMaxSteps) return false;
      if (is_gradient_only && !MayBeDropped(*node)) return false;
      if (is_gradient_only && !IsPure(*node)) {
        // The walk ends here: the identity waits for this node, so all that it depends on still runs.
        if (effects->insert(node).second) steps_ += kStepsOfEdge;
      } else if (!node->IsControlFlow()) {  // Whether the value runs, the control flow nearest to it decides.
        for (const Edge* edge : node->in_edges()) {
          if (!add(*edge, is_gradient_only, key.first)) return false;
        }
      }
    }
    return true;
  }

  std::vector<Node*> order_;
  std::vector<int> position_;  // By the node's id.
  int64_t steps_ = 0;
};

// Replaces the op by an identity with the same name, device and colocation, because it can be fed and fetched.
bool ReplaceByIdentity(Node* op, const std::set<Node*>& effects, Graph* graph) {
  NodeDef def;
  for (const auto& [name, value] : op->attrs()) {
    if (name[0] == '_') (*def.mutable_attr())[name] = value;
  }
  if (op->num_outputs() == 1) {
    def.set_op("Identity");
    tensorflow::AddNodeAttr("T", op->output_type(0), &def);
  } else {
    def.set_op("IdentityN");
    tensorflow::AddNodeAttr("T", op->output_types(), &def);
  }
  Node* const identity = ReplaceNode(op, std::move(def), /*num_inputs=*/op->num_outputs(), graph);
  if (identity == nullptr) return false;
  for (Node* effect : effects) graph->AddControlEdge(effect, identity);
  return true;
}

// Prunes a graph and copies of the functions that it runs. The functions themselves do not change, because gradients
// and saved models can need them.
class Pruner {
 public:
  Pruner(Graph* graph, FunctionLibraryDefinition* library) : graph_(graph), library_(library), search_(*library) {}

  void Prune() { Prune(graph_, /*depth=*/0); }

 private:
  // Returns whether anything was pruned.
  bool Prune(Graph* graph, int depth) {
    std::vector<Node*> ops, callers;
    for (Node* node : graph->op_nodes()) {
      if (HasCustomGradient(node->type_string())) ops.push_back(node);
      if ((IsFunctionCall(node->type_string()) || IsLoopOrConditional(node->type_string())) &&
          !IsNotInlined(node->attrs()))
        callers.push_back(node);
    }
    bool pruned = false;
    if (!ops.empty()) {
      tensorflow::FixupSourceAndSinkEdges(graph);
      // Decides for all ops in the unchanged graph.
      std::vector<std::pair<Node*, std::set<Node*>>> replaced;
      GradientOnlyInputs inputs(*graph);
      for (Node* op : ops) {
        std::set<Node*> effects;
        if (inputs.MayBePruned(*op, &effects)) replaced.emplace_back(op, std::move(effects));
      }
      for (const auto& [op, effects] : replaced) pruned = ReplaceByIdentity(op, effects, graph) || pruned;
    }
    for (Node* caller : callers) pruned = PruneFunctionsOf(caller, depth) || pruned;
    return pruned;
  }

  // Whether TensorFlow does not inline the function. Then XLA compiles it and drops unused values, or it is called, and
  // this pass will see its graph.
  static bool IsNotInlined(const tensorflow::AttrSlice& attributes) {
    bool is_set = false;
    for (const char* name : {"_noinline", "_XlaMustCompile"}) {
      if (tensorflow::TryGetNodeAttr(attributes, name, &is_set) && is_set) return true;
    }
    return false;
  }

  bool PruneFunctionsOf(Node* caller, int depth) {
    std::map<std::string, AttrValue> changed;
    for (const auto& [name, value] : caller->attrs()) {
      AttrValue with_pruned = value;
      bool is_changed = false;
      const auto prune = [&](tensorflow::NameAttrList* function) {
        const std::string pruned = Pruned(function->name(), depth);
        is_changed = is_changed || pruned != function->name();
        function->set_name(pruned);
      };
      if (value.has_func()) prune(with_pruned.mutable_func());
      for (int i = 0; i < value.list().func_size(); ++i) prune(with_pruned.mutable_list()->mutable_func(i));
      if (is_changed) changed[name] = std::move(with_pruned);
    }
    for (const auto& [name, value] : changed) {
      caller->ClearAttr(name);
      caller->AddAttr(name, value);
    }
    return !changed.empty();
  }

  // The name of the pruned copy of the function, or of the function itself if there is nothing to prune.
  std::string Pruned(const std::string& function, int depth) {
    if (depth >= kMaxFunctionDepth && pruned_.count(function) == 0) return function;  // Another chain can be shorter.
    // Entered before its body is read, so that a function that calls itself finds itself and is not read again.
    const auto [known, is_new] = pruned_.emplace(function, function);
    if (is_new && search_.FindsOpIn(function)) {
      std::string copy;
      const absl::Status status = MakePruned(function, depth, &copy);
      if (!status.ok()) VLOG(1) << "tf_cg_ops: function " << function << " stays as it is: " << status;
      if (status.ok() && !copy.empty()) known->second = copy;
    }
    return known->second;
  }

  absl::Status MakePruned(const std::string& function, int depth, std::string* copy) {
    auto record = library_->FindRecord(function);
    const tensorflow::FunctionDef old = record->fdef();
    if (old.signature().attr_size() > 0) return absl::OkStatus();  // Not a concrete function.
    std::unique_ptr<tensorflow::FunctionBody> body;
    TF_RETURN_IF_ERROR(tensorflow::FunctionDefToBodyHelper(std::move(record), {}, library_, &body));
    if (!Prune(body->graph, depth + 1)) return absl::OkStatus();

    std::map<std::string, std::string> control_outputs;  // By node.
    for (const auto& [name, node] : old.control_ret()) control_outputs[node] = name;
    const auto control_output = [&](const Node* node) -> std::optional<std::string> {
      const auto found = control_outputs.find(node->name());
      return found == control_outputs.end() ? std::nullopt : std::make_optional(found->second);
    };
    const std::string name = library_->UniqueFunctionName(function + "_without_gradients_");
    tensorflow::FunctionDef changed;
    TF_RETURN_IF_ERROR(tensorflow::GraphToFunctionDef(*body->graph, name, control_output, &changed));
    *changed.mutable_attr() = old.attr();
    changed.mutable_signature()->set_is_stateful(old.signature().is_stateful());
    // A session's graph has its own library. When TensorFlow lowers conditionals, it looks functions up in both.
    if (&graph_->flib_def() != library_) TF_RETURN_IF_ERROR(graph_->mutable_flib_def()->AddFunctionDef(changed));
    TF_RETURN_IF_ERROR(library_->AddFunctionDef(std::move(changed)));
    *copy = name;
    return absl::OkStatus();
  }

  Graph* const graph_;
  FunctionLibraryDefinition* const library_;
  OpSearch search_;
  std::map<std::string, std::string> pruned_;
};

// Whether the graph is a single op of eager mode, which TensorFlow runs as a function with such a name. The op stays,
// because it checks the shapes.
bool IsEagerOp(const GraphOptimizationPassOptions& options) {
  return options.function_def != nullptr && options.function_def->signature().name().rfind("__wrapped__", 0) == 0;
}

class PruneGradients : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    const bool has_graph = options.graph != nullptr && *options.graph != nullptr && options.flib_def != nullptr;
    if (has_graph && !IsEagerOp(options) && !PassesAreDisabled())
      Pruner(options.graph->get(), options.flib_def).Prune();
    return absl::OkStatus();
  }
};

// Before TensorFlow inlines calls, loops and conditionals in phase 10, so that no node of a function runs
// conditionally.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 9, PruneGradients);

}  // namespace
}  // namespace tf_cg_ops
