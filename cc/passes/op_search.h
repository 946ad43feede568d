#ifndef TF_CG_OPS_CC_PASSES_OP_SEARCH_H_
#define TF_CG_OPS_CC_PASSES_OP_SEARCH_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

// Whether TF_CG_OPS_DISABLE_PASSES switches the graph passes off. It is read before the first graph; an invalid value
// counts as not set.
bool PassesAreDisabled();

bool IsFunctionCall(const std::string& op);
bool IsLoopOrConditional(const std::string& op);

// Searches the functions of a library for ops with custom gradients, each function once. Functions from malformed files
// can call each other in rings, and in chains of any length.
class OpSearch {
 public:
  explicit OpSearch(const tensorflow::FunctionLibraryDefinition& library) : library_(library) {}

  // Whether the function or one that it runs has such an op.
  bool FindsOpIn(const std::string& function) { return Finds({function, /*counts=*/true}); }

  // Whether a loop or conditional that the function runs has such an op.
  bool FindsOpInControlFlowOf(const std::string& function) { return Finds({function, /*counts=*/false}); }

 private:
  // A function, and whether an op outside of control flow counts.
  using Key = std::pair<std::string, bool>;

  bool Finds(const Key& key);

  // Whether the function itself has an op that counts. Appends what it runs.
  bool HasOp(const Key& key, std::vector<Key>* runs) const;

  const tensorflow::FunctionLibraryDefinition& library_;
  std::map<Key, bool> found_;
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_OP_SEARCH_H_
