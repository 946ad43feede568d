#ifndef TF_CG_OPS_CC_PASSES_OP_SEARCH_H_
#define TF_CG_OPS_CC_PASSES_OP_SEARCH_H_

#include <map>
#include <string>
#include <utility>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

// Functions may call one another without end: a graph may come from a file.
constexpr int kMaxFunctionDepth = 64;

// Whether TF_CG_OPS_DISABLE_PASSES switches off all that the library does to graphs.
bool PassesAreDisabled();

// Whether it is one of the ops that return their first inputs, and have a gradient of their own.
bool HasCustomGradient(const std::string& op);

bool IsFunctionCall(const std::string& op);
bool IsLoopOrConditional(const std::string& op);

// Looks for ops with custom gradients in the functions of a library, in each function once.
class OpSearch {
 public:
  explicit OpSearch(const tensorflow::FunctionLibraryDefinition& library) : library_(library) {}

  // Whether there is one in the function or in those that it runs.
  bool FindsOpIn(const std::string& function) { return Finds(function, /*counts=*/true, 0); }

  // Whether there is one in a loop or conditional that the function runs.
  bool FindsOpInControlFlowOf(const std::string& function) { return Finds(function, /*counts=*/false, 0); }

 private:
  bool Finds(const std::string& function, bool counts, int depth);

  const tensorflow::FunctionLibraryDefinition& library_;
  std::map<std::pair<std::string, bool>, bool> found_;  // By the function, and whether an op in itself counts.
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_OP_SEARCH_H_
