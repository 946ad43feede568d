#include "cc/gradients/gradient_function.h"

namespace tf_cg_ops {

using ::tensorflow::DataType;
using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionDefHelper;

std::string GradientFunction::Argument(DataType type) {
  const std::string name = "argument_" + std::to_string(arguments_.size());
  arguments_.push_back(name + ": " + tensorflow::DataTypeString(type));
  return name;
}

std::string GradientFunction::Node(const std::string& op, const std::vector<std::string>& inputs,
                                   const Attributes& attributes) {
  const std::string name = "node_" + std::to_string(nodes_.size());
  FunctionDefHelper::Node& node = nodes_.emplace_back();
  node.ret = {name};
  node.op = op;
  node.arg = inputs;
  node.attr = attributes;
  return name;
}

std::string GradientFunction::Constant(int value) {
  const std::string name = "node_" + std::to_string(nodes_.size());
  nodes_.push_back(FunctionDefHelper::Const<int>(name, value));
  return name;
}

void GradientFunction::Return(const std::string& reference, DataType type) {
  const std::string name = "gradient_" + std::to_string(results_.size());
  results_.push_back(name + ": " + tensorflow::DataTypeString(type));
  returned_.emplace_back(name, reference);
}

void GradientFunction::ReturnNothing(const std::string& reference, DataType type) {
  if (type == tensorflow::DT_RESOURCE) {
    const std::string name = "node_" + std::to_string(nodes_.size());
    nodes_.push_back(FunctionDefHelper::Const<float>(name, 0));
    Return(name + ":output:0", tensorflow::DT_FLOAT);
  } else {
    Return(Node("ZerosLike", {reference}, {{"T", type}}) + ":y:0", type);
  }
}

FunctionDef GradientFunction::Build() const {
  return FunctionDefHelper::Create("", arguments_, results_, /*attr_def=*/{}, nodes_, returned_);
}

}  // namespace tf_cg_ops
