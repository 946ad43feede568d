#ifndef TF_CG_OPS_CC_FUNCTIONS_FUNCTION_BUILDER_H_
#define TF_CG_OPS_CC_FUNCTIONS_FUNCTION_BUILDER_H_

#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

// Builds the definition of a function, and names its arguments, nodes and results by their positions. The methods
// return strings that refer to values.
class FunctionBuilder {
 public:
  using Attributes = std::vector<std::pair<std::string, tensorflow::FunctionDefHelper::AttrValueWrapper>>;

  std::string Argument(tensorflow::DataType type);
  std::vector<std::string> Arguments(const tensorflow::DataTypeVector& types);

  // Adds a node, and returns a reference to the only tensor of the output `output`.
  std::string Value(const std::string& op, const std::vector<std::string>& inputs, const std::string& output,
                    const Attributes& attributes);
  // Adds a node, and returns references to the `count` tensors of the output `output`.
  std::vector<std::string> Values(const std::string& op, const std::vector<std::string>& inputs,
                                  const std::string& output, size_t count, const Attributes& attributes);

  // Adds a constant vector of one element.
  template <typename T>
  std::string Constant(T value) {
    nodes_.push_back(tensorflow::FunctionDefHelper::Const<T>(NextName(), value));
    return nodes_.back().ret[0] + ":output:0";
  }

  std::string Cast(const std::string& value, tensorflow::DataType from, tensorflow::DataType to);

  // Adds a result.
  void Return(const std::string& reference, tensorflow::DataType type);

  tensorflow::FunctionDef Build(const std::string& name) const;

 private:
  std::string NextName() const { return "node_" + std::to_string(nodes_.size()); }

  std::vector<std::string> arguments_;
  std::vector<std::string> results_;
  std::vector<tensorflow::FunctionDefHelper::Node> nodes_;
  std::vector<std::pair<std::string, std::string>> returned_;
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_FUNCTIONS_FUNCTION_BUILDER_H_
