#ifndef TF_CG_OPS_CC_GRADIENTS_SPLIT_FUNCTION_H_
#define TF_CG_OPS_CC_GRADIENTS_SPLIT_FUNCTION_H_

#include <string>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

// Adds a function to the library that computes what SymbolicGradient of `function` stands for: from its arguments and
// the upstream gradients to the gradients, of `gradient_types`; a resource among them stands for none, and is a string.
// TensorFlow would send zeros back through all that computed a value with a custom gradient: they may turn into nan
// there, and what is there needs a gradient in C++. The new function computes such values first, and differentiates the
// rest of `function` with them as arguments.
//
// `split` stays empty if there is nothing to split, if the function is not of the form that TensorFlow 2 traces, or if
// it is not valid, or does not fit the node's `input_types`: TensorFlow says what is wrong when it differentiates it.
absl::Status SplitGradient(const std::string& function, const tensorflow::DataTypeVector& input_types,
                           const tensorflow::DataTypeVector& gradient_types,
                           tensorflow::FunctionLibraryDefinition* library, std::string* split, bool* is_stateful);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_GRADIENTS_SPLIT_FUNCTION_H_
