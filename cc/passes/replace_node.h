#ifndef TF_CG_OPS_CC_PASSES_REPLACE_NODE_H_
#define TF_CG_OPS_CC_PASSES_REPLACE_NODE_H_

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {

// Replaces the node by one of `def`, which gets its name, requested device and stack trace, its first `num_inputs`
// inputs, its control inputs and all its outputs. Returns the new node. If TensorFlow refuses that, logs the reason and
// returns null, without changing the graph.
tensorflow::Node* ReplaceNode(tensorflow::Node* node, tensorflow::NodeDef def, int num_inputs,
                              tensorflow::Graph* graph);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_REPLACE_NODE_H_
