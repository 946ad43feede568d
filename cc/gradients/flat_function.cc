#include "cc/gradients/flat_function.h"

#include <utility>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"

namespace tf_cg_ops {

using ::tensorflow::AttrSlice;
using ::tensorflow::DataType;
using ::tensorflow::DataTypeVector;
using ::tensorflow::FunctionDef;
using ::tensorflow::NodeDef;
using ::tensorflow::OpDef;

namespace {

// Calls double what they call, so that a small file may stand for a function that fits into no memory. The bound is on
// the memory that all names, inputs and attributes take, in bytes, about: a million nodes.
constexpr int64_t kMaxSize = int64_t{1} << 30;
constexpr int64_t kSizeOfOne = 200;
// Functions that are called within each other. Each is a level of recursion here.
constexpr size_t kMaxDepth = 1000;
// The number in an attribute that stands for as many inputs or outputs.
constexpr int64_t kMaxLength = 1000000;

bool IsCall(const NodeDef& node) { return node.op() == "PartitionedCall" || node.op() == "StatefulPartitionedCall"; }

// Not a list, and not a variable by reference, which no function of TensorFlow 2 takes or returns.
bool IsOneTensor(const OpDef::ArgDef& argument) {
  return argument.type() != tensorflow::DT_INVALID && argument.number_attr().empty() && !argument.is_ref();
}

// Whether all attributes are there, and none is to be filled in. TensorFlow fails to optimise a function that lacks
// one, also one that nothing reads.
bool HasAllAttributes(const NodeDef& node) {
  for (const auto& [name, value] : node.attr()) {
    if (value.value_case() == tensorflow::AttrValue::VALUE_NOT_SET || !value.placeholder().empty()) return false;
  }
  return true;
}

// Whether the node has sane numbers of inputs and outputs: TensorFlow makes lists of that length before it checks more.
bool HasSaneLengths(const NodeDef& node, const OpDef& op) {
  for (const auto* arguments : {&op.input_arg(), &op.output_arg()}) {
    for (const OpDef::ArgDef& argument : *arguments) {
      const auto length = node.attr().find(argument.number_attr());
      if (length != node.attr().end() && length->second.i() > kMaxLength) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> FunctionsOf(const NodeDef& node) {
  std::vector<std::string> functions;
  for (const auto& [name, value] : node.attr()) {
    if (value.has_func()) functions.push_back(value.func().name());
    for (const auto& one : value.list().func()) functions.push_back(one.name());
  }
  return functions;
}

// What the names in a function stand for in the flat one.
class FlatFunction::Names {
 public:
  // Whether each name stands for one thing.
  bool Read(const FunctionDef& function, const std::string& prefix, const std::vector<std::string>& arguments) {
    prefix_ = prefix;
    for (int i = 0; i < function.signature().input_arg_size(); ++i) {
      const std::string& name = function.signature().input_arg(i).name();
      if (!IsOneTensor(function.signature().input_arg(i)) || !arguments_.emplace(name, arguments[i]).second)
        return false;
    }
    for (const NodeDef& node : function.node_def()) {
      const std::string& name = node.name();
      if (name.empty() || name.rfind(kReserved, 0) == 0 || arguments_.count(name) > 0 || !nodes_.insert(name).second) {
        return false;
      }
    }
    return true;
  }

  // Whether the reference is to an argument, or looks as if it were to what a node computes.
  bool Translate(const std::string& reference, std::string* flat) const {
    const std::string name = reference.substr(0, reference.find(':'));
    const auto argument = arguments_.find(name);
    const bool is_argument = argument != arguments_.end() && (reference == name || reference == name + ":0");
    *flat = is_argument ? argument->second : prefix_ + reference;
    return is_argument || nodes_.count(name) > 0;
  }

 private:
  std::string prefix_;
  std::unordered_map<std::string, std::string> arguments_;
  std::set<std::string> nodes_;
};

bool FlatFunction::Flatten(const FunctionDef& function) {
  const OpDef& signature = function.signature();
  std::vector<std::string> arguments;
  for (int i = 0; i < signature.input_arg_size(); ++i) {
    arguments.push_back(ArgumentName(i));
    argument_types_.push_back(signature.input_arg(i).type());
    values_[ArgumentName(i)] = {argument_types_[i], nullptr, i};
  }
  if (!Add(function, "", arguments, &results_)) return false;
  for (auto& [name, node] : nodes_) {
    for (std::string& input : *node.mutable_input()) {
      if (!Resolve(&input)) return false;
    }
    if (!HasRightInputs(node)) return false;
  }
  for (int i = 0; i < signature.output_arg_size(); ++i) {
    DataType type;
    if (!Resolve(&results_[i]) || !TypeOf(results_[i], &type).ok() || type != signature.output_arg(i).type()) {
      return false;
    }
  }
  return Sort();
}

int FlatFunction::ArgumentAt(const std::string& reference) const {
  const auto found = values_.find(reference);
  return found == values_.end() ? -1 : found->second.argument;
}

const NodeDef* FlatFunction::Find(const std::string& reference) const {
  const auto found = values_.find(reference);
  return found == values_.end() ? nullptr : found->second.node;
}

absl::Status FlatFunction::TypeOf(const std::string& reference, DataType* type) const {
  const auto found = values_.find(reference);
  if (found == values_.end()) return absl::InvalidArgumentError("No node computes '" + reference + "'.");
  *type = found->second.type;
  return absl::OkStatus();
}

bool FlatFunction::Add(const FunctionDef& function, const std::string& prefix,
                       const std::vector<std::string>& arguments, std::vector<std::string>* results) {
  const OpDef& signature = function.signature();
  calls_itself_ |= on_the_way_.count(signature.name()) > 0;
  if (calls_itself_ || on_the_way_.size() >= kMaxDepth) return false;
  on_the_way_.insert(signature.name());
  Names names;
  if (!names.Read(function, prefix, arguments)) return false;
  for (const NodeDef& node : function.node_def()) {
    // Each name is counted as soon as it is there: one node may have thousands of inputs, of names as long.
    NodeDef flat = node;
    flat.clear_input();
    flat.set_name(prefix + node.name());
    if (!Spend(node.ByteSizeLong() + flat.name().size() + kSizeOfOne * node.attr_size())) return false;
    for (const std::string& input : node.input()) {
      if (input.rfind('^', 0) == 0) continue;
      if (!names.Translate(input, flat.add_input()) || !Spend(flat.input(flat.input_size() - 1).size())) return false;
    }
    if (!HasAllAttributes(flat) || !(IsCall(flat) ? AddCalled(flat) : AddNode(std::move(flat)))) return false;
  }
  for (const auto& result : signature.output_arg()) {
    const auto returned = function.ret().find(result.name());
    if (!IsOneTensor(result) || returned == function.ret().end() ||
        !names.Translate(returned->second, &results->emplace_back()) || !Spend(results->back().size())) {
      return false;
    }
  }
  on_the_way_.erase(signature.name());
  return true;
}

bool FlatFunction::AddCalled(const NodeDef& call) {
  const auto function = call.attr().find("f");
  if (function == call.attr().end()) return false;
  const auto called = library_.FindRecord(function->second.func().name());
  if (called == nullptr || call.input_size() != called->fdef().signature().input_arg_size()) return false;
  std::vector<std::string> results;
  const std::vector<std::string> inputs(call.input().begin(), call.input().end());
  if (!Add(called->fdef(), call.name() + "/", inputs, &results)) return false;
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string output = call.name() + ":output:" + std::to_string(i);
    if (!Spend(output.size()) || !replaced_.emplace(output, results[i]).second) return false;
  }
  return true;
}

bool FlatFunction::AddNode(NodeDef node) {
  // A function as an op has a gradient in the library, and none among the ops.
  const OpDef* op;
  if (library_.Contains(node.op()) || !library_.LookUpOpDef(node.op(), &op).ok()) return false;
  node.mutable_attr()->erase("_class");  // It names nodes of the function that this one came from.
  tensorflow::AddDefaultsToNodeDef(*op, &node);
  tensorflow::NameRangeMap outputs;
  DataTypeVector types;
  if (!HasSaneLengths(node, *op) || !tensorflow::ValidateNodeDef(node, *op).ok() ||
      !tensorflow::NameRangesForNode(AttrSlice(node), *op, nullptr, &outputs).ok() ||
      !tensorflow::OutputTypesForNode(node, *op, &types).ok()) {
    return false;
  }
  const auto [added, is_new] = nodes_.emplace(node.name(), std::move(node));
  if (!is_new) return false;
  for (const auto& [output, range] : outputs) {
    for (int i = range.first; i < range.second; ++i) {
      const std::string reference = added->first + ":" + std::string(output) + ":" + std::to_string(i - range.first);
      if (!Spend(reference.size()) || !values_.emplace(reference, Value{types[i], &added->second, -1}).second) {
        return false;
      }
    }
  }
  return true;
}

// Follows the reference from call to call. It ends nowhere if they return each other's outputs.
bool FlatFunction::Resolve(std::string* reference) {
  std::vector<std::string*> trail;
  for (auto at = replaced_.find(*reference); at != replaced_.end(); at = replaced_.find(at->second)) {
    if (trail.size() > replaced_.size()) return false;
    trail.push_back(&at->second);
  }
  if (!trail.empty()) *reference = *trail.back();
  for (std::string* step : trail) *step = *reference;  // So that a long trail is gone once.
  return Spend((1 + trail.size()) * reference->size());
}

bool FlatFunction::HasRightInputs(const NodeDef& node) const {
  const OpDef* op;
  DataTypeVector types;
  if (!library_.LookUpOpDef(node.op(), &op).ok() || !tensorflow::InputTypesForNode(node, *op, &types).ok())
    return false;
  for (int i = 0; i < node.input_size(); ++i) {
    DataType type;
    if (!TypeOf(node.input(i), &type).ok() || tensorflow::BaseType(type) != tensorflow::BaseType(types[i]))
      return false;
  }
  return true;
}

// Fails if nodes read each other's values in a circle.
bool FlatFunction::Sort() {
  std::unordered_map<const NodeDef*, std::vector<const NodeDef*>> readers;
  std::unordered_map<const NodeDef*, int> missing;
  for (const auto& [name, node] : nodes_) {
    for (const std::string& input : node.input()) {
      if (const NodeDef* read = Find(input); read != nullptr) {
        readers[read].push_back(&node);
        ++missing[&node];
      }
    }
    if (missing[&node] == 0) sorted_.push_back(&node);
  }
  for (size_t i = 0; i < sorted_.size(); ++i) {
    for (const NodeDef* reader : readers[sorted_[i]]) {
      if (--missing[reader] == 0) sorted_.push_back(reader);
    }
  }
  return sorted_.size() == nodes_.size();
}

bool FlatFunction::Spend(int64_t size) {
  spent_ += kSizeOfOne + size;
  return spent_ <= kMaxSize;
}

}  // namespace tf_cg_ops
