// A function that computes the gradient of one op: from the op's inputs and the upstream gradients of its outputs to
// one gradient for each input.

#ifndef TF_CG_OPS_CC_GRADIENTS_GRADIENT_FUNCTION_H_
#define TF_CG_OPS_CC_GRADIENTS_GRADIENT_FUNCTION_H_

#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

class GradientFunction {
 public:
  using Attributes = std::vector<std::pair<std::string, tensorflow::FunctionDefHelper::AttrValueWrapper>>;

  // Adds an argument and returns the reference to it: first the op's inputs, in their order, then the upstream
  // gradients of all its outputs.
  std::string Argument(tensorflow::DataType type);

  // Adds a node and returns its name; its outputs are `name:output:index`.
  std::string Node(const std::string& op, const std::vector<std::string>& inputs, const Attributes& attributes);

  // Adds an int32 constant and returns the node's name.
  std::string Constant(int value);

  // The gradients of the inputs, in their order: what a reference stands for, or nothing.
  void Return(const std::string& reference, tensorflow::DataType type);
  // No gradient: zeros of the shape of the input `reference`. TensorFlow wants a float for a resource.
  void ReturnNothing(const std::string& reference, tensorflow::DataType type);

  tensorflow::FunctionDef Build() const;

 private:
  std::vector<std::string> arguments_;
  std::vector<std::string> results_;
  std::vector<tensorflow::FunctionDefHelper::Node> nodes_;
  std::vector<std::pair<std::string, std::string>> returned_;
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_GRADIENTS_GRADIENT_FUNCTION_H_
