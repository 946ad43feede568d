#ifndef TF_CG_OPS_CC_PASSES_SIDE_EFFECTS_H_
#define TF_CG_OPS_CC_PASSES_SIDE_EFFECTS_H_

#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {

// Whether it can be told, other than by what the node returns, that it ran.
bool HasSideEffects(const tensorflow::Node& node);

// Finds the side effects that come before a value.
class SideEffectsBefore {
 public:
  explicit SideEffectsBefore(const tensorflow::Graph& graph);

  // What has to run before a value that is no longer computed from the dropped inputs, but still from the kept ones, so
  // that all side effects that came before it still do: nodes that have them, or, where these are in another frame or
  // branch, the nodes of control flow on the way.
  std::vector<tensorflow::Node*> OnlyBehind(const std::vector<const tensorflow::Edge*>& dropped,
                                            const std::vector<const tensorflow::Edge*>& kept) const;

 private:
  bool ComesAfter(const tensorflow::Node& node) const;
  void Walk(const std::vector<const tensorflow::Edge*>& from, std::vector<bool>* visited,
            std::vector<tensorflow::Node*>* found) const;

  std::vector<bool> comes_after_;  // By the node's id: whether there is a side effect before it, or it has one.
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_SIDE_EFFECTS_H_
