// The names of each op's operands in error messages.

#ifndef TF_CG_OPS_CC_LIB_OPERAND_NAMES_H_
#define TF_CG_OPS_CC_LIB_OPERAND_NAMES_H_

#include <string>

#include "cc/lib/alignment.h"
#include "cc/lib/op_names.h"

namespace tf_cg_ops {

// The names of CustomGradientEmbed's i-th pair, which are the arguments of the Python function.
inline OperandNames EmbedNames(int i, int pairs) {
  const std::string index = pairs == 1 ? "" : "[" + std::to_string(i) + "]";
  return {"embed_gradient", {"fx", "gx" + index, "x" + index}};
}

// The fx of the gradient op can be the upstream gradient.
inline OperandNames EmbedGradNames() { return {kEmbedGradOp, {"fx (or its upstream)", "gx", "x"}}; }

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_OPERAND_NAMES_H_
