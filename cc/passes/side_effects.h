#ifndef TF_CG_OPS_CC_PASSES_SIDE_EFFECTS_H_
#define TF_CG_OPS_CC_PASSES_SIDE_EFFECTS_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {

// Whether it can be told, other than by what the node returns, that it ran.
bool HasSideEffects(const tensorflow::Node& node);

// Finds the side effects that come before a value.
class SideEffectsBefore {
 public:
  explicit SideEffectsBefore(const tensorflow::Graph& graph);

  // What has to run before the value of the op, which is no longer computed from the dropped inputs, but still from the
  // kept ones, so that all side effects that came before it still do: nodes that have them, or, where these are in
  // another frame or branch, the nodes of control flow on the way. Where side effects follow, reads of variables count
  // among them: an assignment may have waited for the op. False if that would be too much.
  bool OnlyBehind(const tensorflow::Node& op, const std::vector<const tensorflow::Edge*>& dropped,
                  const std::vector<const tensorflow::Edge*>& kept, std::vector<tensorflow::Node*>* found);

 private:
  int Position(const tensorflow::Node& node) const;

  int64_t room_ = 10'000'000;  // For all ops together: each may come after all side effects.
  std::vector<tensorflow::Node*> order_;
  // By the node's id: its place in the order, if it is or comes after a side effect or a read.
  std::vector<int> position_;
  std::vector<bool> is_before_;  // By the node's id: whether it has a side effect, or one comes after it.
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_SIDE_EFFECTS_H_
