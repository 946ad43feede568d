#ifndef TF_CG_OPS_CC_PASSES_OP_SEARCH_H_
#define TF_CG_OPS_CC_PASSES_OP_SEARCH_H_

#include <map>
#include <string>
#include <utility>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

// A limit for graphs from malformed files, whose functions may call each other without end.
constexpr int kMaxFunctionDepth = 64;

// Whether TF_CG_OPS_DISABLE_PASSES switches the graph passes off. An invalid value counts as not set.
bool PassesAreDisabled();

bool IsFunctionCall(const std::string& op);
bool IsLoopOrConditional(const std::string& op);

// Searches the functions of a library for ops with custom gradients, each function once.
class OpSearch {
 public:
  explicit OpSearch(const tensorflow::FunctionLibraryDefinition& library) : library_(library) {}

  // Whether the function or one that it runs has such an op.
  bool FindsOpIn(const std::string& function) { return Finds(function, /*counts=*/true, 0); }

  // Whether a loop or conditional that the function runs has such an op.
  bool FindsOpInControlFlowOf(const std::string& function) { return Finds(function, /*counts=*/false, 0); }

 private:
  bool Finds(const std::string& function, bool counts, int depth);

  const tensorflow::FunctionLibraryDefinition& library_;
  std::map<std::pair<std::string, bool>, bool>
      found_;  // By function, and whether an op outside of control flow counts.
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_OP_SEARCH_H_
