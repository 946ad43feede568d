#include "cc/functions/function_builder.h"

namespace tf_cg_ops {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeString;
using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionDefHelper;

std::string FunctionBuilder::Argument(DataType type) {
  const std::string name = "argument_" + std::to_string(arguments_.size());
  arguments_.push_back(name + ": " + DataTypeString(type));
  return name;
}

std::vector<std::string> FunctionBuilder::Arguments(const tensorflow::DataTypeVector& types) {
  std::vector<std::string> references;
  for (const DataType type : types) references.push_back(Argument(type));
  return references;
}

std::string FunctionBuilder::Value(const std::string& op, const std::vector<std::string>& inputs,
                                   const std::string& output, const Attributes& attributes) {
  return Values(op, inputs, output, 1, attributes)[0];
}

std::vector<std::string> FunctionBuilder::Values(const std::string& op, const std::vector<std::string>& inputs,
                                                 const std::string& output, size_t count,
                                                 const Attributes& attributes) {
  const std::string name = NextName();
  FunctionDefHelper::Node& node = nodes_.emplace_back();
  node.ret = {name};
  node.op = op;
  node.arg = inputs;
  node.attr = attributes;
  std::vector<std::string> references;
  for (size_t i = 0; i < count; ++i) references.push_back(name + ":" + output + ":" + std::to_string(i));
  return references;
}

std::string FunctionBuilder::Cast(const std::string& value, DataType from, DataType to) {
  return from == to ? value : Value("Cast", {value}, "y", {{"SrcT", from}, {"DstT", to}});
}

void FunctionBuilder::Return(const std::string& reference, DataType type) {
  const std::string name = "result_" + std::to_string(results_.size());
  results_.push_back(name + ": " + DataTypeString(type));
  returned_.emplace_back(name, reference);
}

FunctionDef FunctionBuilder::Build(const std::string& name) const {
  return FunctionDefHelper::Create(name, arguments_, results_, /*attr_def=*/{}, nodes_, returned_);
}

}  // namespace tf_cg_ops
