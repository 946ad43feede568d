#ifndef TF_CG_OPS_CC_PASSES_UNREAD_H_
#define TF_CG_OPS_CC_PASSES_UNREAD_H_

#include <set>
#include <string>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {

// Removes, of these nodes and what comes before them, whatever has no side effects and leads to nothing else. Loops go
// round by round of what they carry. Nodes of the given names stay.
void RemoveUnread(const std::vector<tensorflow::Node*>& nodes, const std::set<std::string>& names,
                  tensorflow::Graph* graph);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_UNREAD_H_
