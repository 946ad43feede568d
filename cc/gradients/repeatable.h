#ifndef TF_CG_OPS_CC_GRADIENTS_REPEATABLE_H_
#define TF_CG_OPS_CC_GRADIENTS_REPEATABLE_H_

#include <set>
#include <string>
#include <utility>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

// What may be computed once more: what a gradient needs of the forward pass is.
class Repeatable {
 public:
  explicit Repeatable(const tensorflow::FunctionLibraryDefinition& library) : library_(library) {}

  // Whether the node gives the same value again, with all that its functions hold, or is not used and changes nothing
  // that others read.
  bool Allows(const tensorflow::NodeDef& node, bool is_used);

  bool IsStateful(const tensorflow::NodeDef& node) const;

 private:
  const tensorflow::FunctionLibraryDefinition& library_;
  std::set<std::pair<std::string, bool>> visited_;  // Functions, as used or not.
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_GRADIENTS_REPEATABLE_H_
