#include "cc/gradients/split_function.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "cc/gradients/flat_function.h"
#include "cc/gradients/live_part.h"
#include "cc/gradients/repeatable.h"
#include "cc/lib/messages.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeVector;
using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::NodeDef;
using ::tensorflow::OpDef;

// Marks what was made here to be differentiated. Where TensorFlow could not optimise a graph, it stays a function, and
// would be split again in each graph of a function that differentiates it, without end.
constexpr char kIsSplit[] = "_tf_cg_ops_is_split";

// As TensorFlow has it in its own gradients of functions.
DataType FloatIfResource(DataType type) { return type == tensorflow::DT_RESOURCE ? tensorflow::DT_FLOAT : type; }

void AddArgument(const std::string& name, DataType type, FunctionDef* function) {
  OpDef::ArgDef* argument = function->mutable_signature()->add_input_arg();
  argument->set_name(name);
  argument->set_type(type);
}

void AddResult(const std::string& reference, DataType type, FunctionDef* function) {
  OpDef::ArgDef* result = function->mutable_signature()->add_output_arg();
  result->set_name("result_" + std::to_string(function->signature().output_arg_size() - 1));
  result->set_type(type);
  (*function->mutable_ret())[result->name()] = reference;
}

NodeDef* AddNode(const std::string& op, const std::vector<std::string>& inputs, FunctionDef* function) {
  NodeDef* node = function->add_node_def();
  node->set_name(FlatFunction::kReserved + op + "_" + std::to_string(function->node_def_size()));
  node->set_op(op);
  for (const std::string& input : inputs) node->add_input(input);
  return node;
}

// Adds a constant that is no number, in the place of a gradient that nobody can read.
std::string AddNothing(FunctionDef* function) {
  NodeDef* node = AddNode("Const", {}, function);
  tensorflow::AddNodeAttr("dtype", tensorflow::DT_STRING, node);
  tensorflow::AddNodeAttr("value", tensorflow::Tensor(tensorflow::DT_STRING, {}), node);
  return node->name() + ":output:0";
}

std::string AddSum(const std::vector<std::string>& terms, DataType type, FunctionDef* function) {
  NodeDef* node = AddNode("AddN", terms, function);
  tensorflow::AddNodeAttr("N", static_cast<int64_t>(terms.size()), node);
  tensorflow::AddNodeAttr("T", type, node);
  return node->name() + ":sum:0";
}

// Zeros of the shape of the argument, or of its variable.
std::string AddZeros(std::string argument, DataType argument_type, DataType type, FunctionDef* function) {
  if (argument_type == tensorflow::DT_RESOURCE) {
    NodeDef* read = AddNode("ReadVariableOp", {argument}, function);
    tensorflow::AddNodeAttr("dtype", type, read);
    argument = read->name() + ":value:0";
  }
  NodeDef* zeros = AddNode("ZerosLike", {argument}, function);
  tensorflow::AddNodeAttr("T", type, zeros);
  return zeros->name() + ":y:0";
}

// Makes the two functions of a live part: the one that is differentiated, and the one that is called.
class Splitter {
 public:
  Splitter(const FlatFunction& flat, const LivePart& live, const DataTypeVector& gradient_types)
      : flat_(flat), live_(live), gradient_types_(gradient_types) {}

  // From the live arguments and the given values to the results.
  absl::Status MakeLive(FunctionDef* function) {
    for (const int i : live_.arguments()) {
      AddArgument(FlatFunction::ArgumentName(i), flat_.argument_types()[i], function);
    }
    for (const LivePart::Given& given : live_.given()) AddArgument(given.name, given.type, function);
    for (const auto& [name, node] : live_.nodes()) *function->add_node_def() = node.def;
    for (size_t i = 0; i < live_.results().size(); ++i) {
      TF_RETURN_IF_ERROR(flat_.TypeOf(flat_.results()[i], &result_types_.emplace_back()));
      AddResult(live_.results()[i], result_types_.back(), function);
    }
    return absl::OkStatus();
  }

  // Computes the given values and differentiates.
  void MakeGradient(const std::string& differentiated, FunctionDef* function) {
    const DataTypeVector& types = flat_.argument_types();
    for (size_t i = 0; i < types.size(); ++i) AddArgument(FlatFunction::ArgumentName(i), types[i], function);
    for (size_t i = 0; i < result_types_.size(); ++i) AddArgument(Upstream(i), result_types_[i], function);
    for (const NodeDef* node : live_.before()) *function->add_node_def() = *node;
    if (!live_.arguments().empty() || !live_.values_of().empty()) AddSymbolicGradient(differentiated, function);
    for (size_t i = 0; i < types.size(); ++i) {
      if (gradient_types_[i] == tensorflow::DT_RESOURCE) {
        AddResult(AddNothing(function), tensorflow::DT_STRING, function);
      } else {
        AddResult(GradientOf(i, function), gradient_types_[i], function);
      }
    }
  }

 private:
  static std::string Upstream(int i) { return FlatFunction::kReserved + ("upstream_" + std::to_string(i)); }

  void AddSymbolicGradient(const std::string& differentiated, FunctionDef* function) {
    NodeDef* node = AddNode("SymbolicGradient", {}, function);
    DataTypeVector in_types, out_types;
    const auto add = [&](const std::string& input, DataType type, DataType gradient_type) {
      node->add_input(input);
      in_types.push_back(type);
      out_types.push_back(FloatIfResource(gradient_type));
      return node->name() + ":output:" + std::to_string(out_types.size() - 1);
    };
    for (const int i : live_.arguments()) {
      const DataType type = flat_.argument_types()[i];
      const std::string gradient = add(FlatFunction::ArgumentName(i), type, type);
      // The live part only hands a variable on, as a rule captures it; where it is read, the value is given.
      if (type != tensorflow::DT_RESOURCE) gradient_of_argument_[i] = gradient;
    }
    for (const auto& [reference, name, type] : live_.given()) {
      gradient_of_given_.push_back(add(reference, type, type));
    }
    for (size_t i = 0; i < result_types_.size(); ++i) {
      node->add_input(Upstream(i));
      in_types.push_back(result_types_[i]);
    }
    tensorflow::AddNodeAttr("Tin", in_types, node);
    tensorflow::AddNodeAttr("Tout", out_types, node);
    tensorflow::NameAttrList called;
    called.set_name(differentiated);
    tensorflow::AddNodeAttr("f", called, node);
  }

  std::string GradientOf(int argument, FunctionDef* function) {
    const auto found = gradient_of_argument_.find(argument);
    if (found != gradient_of_argument_.end()) return found->second;
    const auto values = live_.values_of().find(argument);
    if (values == live_.values_of().end()) {
      return AddZeros(FlatFunction::ArgumentName(argument), flat_.argument_types()[argument], gradient_types_[argument],
                      function);
    }
    std::vector<std::string> terms;
    for (const int given : values->second) terms.push_back(gradient_of_given_[given]);
    return AddSum(terms, gradient_types_[argument], function);
  }

  const FlatFunction& flat_;
  const LivePart& live_;
  const DataTypeVector& gradient_types_;
  DataTypeVector result_types_;
  std::map<int, std::string> gradient_of_argument_;
  std::vector<std::string> gradient_of_given_;
};

absl::Status RefuseWhatCannotBeRepeated(const std::string& function, const FlatFunction& flat, const LivePart& live,
                                        const FunctionLibraryDefinition& library, bool* is_stateful) {
  Repeatable repeatable(library);
  const std::set<const NodeDef*> before(live.before().begin(), live.before().end());
  *is_stateful = false;
  for (const NodeDef* node : flat.nodes()) {
    const bool is_used = live.nodes().count(node->name()) > 0 || before.count(node) > 0;
    if (!repeatable.Allows(*node, is_used)) {
      return absl::UnimplementedError(CannotBeRepeated(function, "'" + node->name() + "' (" + node->op() + ")"));
    }
    *is_stateful |= is_used && repeatable.IsStateful(*node);
  }
  return absl::OkStatus();
}

// Whether all functions that the nodes run are of a form that can be flattened. TensorFlow may end the process when it
// calls one that holds a function that is not valid, as a rule may be.
bool AreSound(std::vector<const NodeDef*> nodes, const FunctionLibraryDefinition& library) {
  std::set<std::string> visited;
  while (!nodes.empty()) {
    const std::vector<std::string> functions = FunctionsOf(*nodes.back());
    nodes.pop_back();
    for (const std::string& function : functions) {
      const auto record = library.FindRecord(function);
      if (record == nullptr) return false;
      if (!visited.insert(function).second) continue;
      if (!FlatFunction(library).Flatten(record->fdef())) return false;
      for (const NodeDef& node : record->fdef().node_def()) nodes.push_back(&node);  // The library keeps them.
    }
  }
  return true;
}

// Whether the node that differentiates has inputs of the right types: the arguments and an upstream for each result.
bool Takes(const FlatFunction& flat, const DataTypeVector& input_types) {
  DataTypeVector types = flat.argument_types();
  for (const std::string& result : flat.results()) {
    if (!flat.TypeOf(result, &types.emplace_back()).ok()) return false;
  }
  return input_types == types;
}

}  // namespace

absl::Status SplitGradient(const std::string& function, const DataTypeVector& input_types,
                           const DataTypeVector& gradient_types, FunctionLibraryDefinition* library, std::string* split,
                           bool* is_stateful) {
  const auto record = library->FindRecord(function);
  // A function may have a gradient of its own, in graphs of TensorFlow 1.
  if (record == nullptr || !library->FindGradient(function).empty()) return absl::OkStatus();
  if (record->fdef().attr().count(kIsSplit) > 0) return absl::OkStatus();
  FlatFunction flat(*library);
  if (!flat.Flatten(record->fdef())) {
    return flat.calls_itself() ? absl::InvalidArgumentError(CallsItself(function)) : absl::OkStatus();
  }
  if (!Takes(flat, input_types) || flat.argument_types().size() != gradient_types.size()) return absl::OkStatus();
  LivePart live(flat);
  TF_RETURN_IF_ERROR(live.Find());
  if (!live.has_custom_gradient()) return absl::OkStatus();
  TF_RETURN_IF_ERROR(RefuseWhatCannotBeRepeated(function, flat, live, *library, is_stateful));
  std::vector<const NodeDef*> nodes = live.before();
  for (const auto& [name, node] : live.nodes()) nodes.push_back(&node.def);
  if (!AreSound(std::move(nodes), *library)) return absl::OkStatus();

  Splitter splitter(flat, live, gradient_types);
  FunctionDef differentiated, gradient;
  differentiated.mutable_signature()->set_name(library->UniqueFunctionName("tf_cg_ops_differentiated"));
  (*differentiated.mutable_attr())[kIsSplit].set_b(true);
  TF_RETURN_IF_ERROR(splitter.MakeLive(&differentiated));
  gradient.mutable_signature()->set_name(library->UniqueFunctionName("tf_cg_ops_gradient"));
  splitter.MakeGradient(differentiated.signature().name(), &gradient);
  *split = gradient.signature().name();
  TF_RETURN_IF_ERROR(library->AddFunctionDef(std::move(differentiated)));
  return library->AddFunctionDef(std::move(gradient));
}

}  // namespace tf_cg_ops
