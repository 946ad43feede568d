#ifndef TF_CG_OPS_CC_GRAPH_GRADIENTS_GRADIENT_INPUTS_H_
#define TF_CG_OPS_CC_GRAPH_GRADIENTS_GRADIENT_INPUTS_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/node_def_util.h"

namespace tf_cg_ops {

// Sets, for each input of an op of this library, whether it has a gradient, by the same rules as in Python. Fails with
// the reason if the op has no gradient.
absl::Status InputsWithGradients(const std::string& op, const tensorflow::AttrSlice& attributes, int num_inputs,
                                 std::vector<bool>* has_gradient);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_GRAPH_GRADIENTS_GRADIENT_INPUTS_H_
