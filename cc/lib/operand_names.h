// How the error messages of each op call its operands.

#ifndef TF_CG_OPS_CC_LIB_OPERAND_NAMES_H_
#define TF_CG_OPS_CC_LIB_OPERAND_NAMES_H_

#include <string>

#include "cc/lib/alignment.h"

namespace tf_cg_ops {

// The names of CustomGradientEmbed's i-th pair, which are those of the Python function's arguments.
inline OperandNames EmbedNames(int i, int pairs) {
  const std::string index = pairs == 1 ? "" : "[" + std::to_string(i) + "]";
  return {"embed_gradient", {"fx", "gx" + index, "x" + index}};
}

// In the place of fx the gradient op has the upstream gradient.
inline OperandNames EmbedGradNames() { return {"CustomGradientEmbedGrad", {"fx (or its upstream)", "gx", "x"}}; }

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_OPERAND_NAMES_H_
