#ifndef TF_CG_OPS_CC_PASSES_FUNCTION_BODIES_H_
#define TF_CG_OPS_CC_PASSES_FUNCTION_BODIES_H_

#include <map>
#include <string>

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {

// Replaces ops with custom gradients by their values in the branches and bodies of the loops and conditionals that run
// as functions. TensorFlow shows these to no pass; calls, which it does show, are left alone. The functions stay as
// they are, since gradients and saved models may need them: the nodes get new ones.
class FunctionBodies {
 public:
  explicit FunctionBodies(tensorflow::FunctionLibraryDefinition* library) : library_(library) {}

  absl::Status ReplaceIn(tensorflow::Graph* graph);

 private:
  absl::Status ReplaceIn(tensorflow::Graph* graph, int depth, bool* replaced);
  absl::Status Replace(const std::string& function, int depth, std::string* replacement);

  tensorflow::FunctionLibraryDefinition* library_;
  std::map<std::string, std::string> replacements_;  // By the function's name, which stands for itself if it may stay.
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_FUNCTION_BODIES_H_
