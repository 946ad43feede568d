#include "cc/gradients/flat_function.h"

#include "tensorflow/core/framework/node_def_util.h"

namespace tf_cg_ops {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeVector;
using ::tensorflow::FunctionDef;
using ::tensorflow::NodeDef;
using ::tensorflow::OpDef;

namespace {

// The node of a reference such as node:output:0; the argument, if it is one.
std::string NodeOf(const std::string& reference) { return reference.substr(0, reference.find(':')); }

}  // namespace

bool FlatFunction::Flatten(const FunctionDef& function) {
  std::vector<std::string> arguments;
  for (int i = 0; i < function.signature().input_arg_size(); ++i) {
    arguments.push_back(ArgumentName(i));
    argument_types_.push_back(function.signature().input_arg(i).type());
  }
  if (!Add(function, "", arguments, &results_)) return false;
  for (auto& [name, node] : nodes_) {
    for (std::string& input : *node.mutable_input()) input = Resolve(input);
  }
  for (std::string& result : results_) result = Resolve(result);
  return true;
}

const NodeDef* FlatFunction::Find(const std::string& reference) const {
  const auto found = nodes_.find(NodeOf(reference));
  return found == nodes_.end() ? nullptr : &found->second;
}

absl::Status FlatFunction::TypeOf(const std::string& reference, DataType* type) const {
  for (size_t i = 0; i < argument_types_.size(); ++i) {
    if (reference == ArgumentName(i)) {
      *type = argument_types_[i];
      return absl::OkStatus();
    }
  }
  const NodeDef& node = *Find(reference);
  const OpDef* op;
  TF_RETURN_IF_ERROR(library_.LookUpOpDef(node.op(), &op));
  tensorflow::NameRangeMap ranges;
  TF_RETURN_IF_ERROR(tensorflow::NameRangesForNode(tensorflow::AttrSlice(node), *op, nullptr, &ranges));
  DataTypeVector types;
  TF_RETURN_IF_ERROR(tensorflow::OutputTypesForNode(node, *op, &types));
  const size_t first = reference.find(':'), last = reference.rfind(':');
  *type = types[ranges[reference.substr(first + 1, last - first - 1)].first + std::stoi(reference.substr(last + 1))];
  return absl::OkStatus();
}

bool FlatFunction::Add(const FunctionDef& function, const std::string& prefix,
                       const std::vector<std::string>& arguments, std::vector<std::string>* results) {
  const OpDef& signature = function.signature();
  std::map<std::string, std::string> argument_of;
  for (int i = 0; i < signature.input_arg_size(); ++i) {
    if (signature.input_arg(i).type() == tensorflow::DT_INVALID) return false;
    argument_of[signature.input_arg(i).name()] = arguments[i];
  }
  const auto global = [&](const std::string& reference) {
    const auto argument = argument_of.find(NodeOf(reference));
    return argument == argument_of.end() ? prefix + reference : argument->second;
  };
  for (NodeDef node : function.node_def()) {
    std::vector<std::string> inputs;
    for (const std::string& input : node.input()) {
      if (input.front() != '^') inputs.push_back(global(input));
    }
    for (const auto& [name, value] : node.attr()) {
      if (!value.placeholder().empty()) return false;
    }
    node.set_name(prefix + node.name());
    if (node.op() == "PartitionedCall" || node.op() == "StatefulPartitionedCall") {
      const auto called = library_.FindRecord(node.attr().at("f").func().name());
      std::vector<std::string> inner;
      if (called == nullptr || static_cast<int>(inputs.size()) != called->fdef().signature().input_arg_size() ||
          !Add(called->fdef(), node.name() + "/", inputs, &inner)) {
        return false;
      }
      for (size_t i = 0; i < inner.size(); ++i) replaced_[node.name() + ":output:" + std::to_string(i)] = inner[i];
      continue;
    }
    node.clear_input();
    for (const std::string& input : inputs) node.add_input(input);
    node.mutable_attr()->erase("_class");  // It names nodes of the function that this one came from.
    const OpDef* op;
    if (!library_.LookUpOpDef(node.op(), &op).ok()) return false;
    tensorflow::AddDefaultsToNodeDef(*op, &node);
    nodes_[node.name()] = node;
  }
  for (const auto& result : signature.output_arg()) results->push_back(global(function.ret().at(result.name())));
  return true;
}

std::string FlatFunction::Resolve(std::string reference) const {
  for (auto found = replaced_.find(reference); found != replaced_.end(); found = replaced_.find(reference)) {
    reference = found->second;
  }
  return reference;
}

}  // namespace tf_cg_ops
