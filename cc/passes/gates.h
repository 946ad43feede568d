#ifndef TF_CG_OPS_CC_PASSES_GATES_H_
#define TF_CG_OPS_CC_PASSES_GATES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tf_cg_ops {

// Which branches and loops the nodes of a graph with lowered control flow are in. A gate is one output of the Switches
// of one predicate. What comes behind a gate that is shut does not run; so a node that loses an input may run where it
// did not before, and then, for example, a loop does not end which hands on what is constant in it.
class Gates {
 public:
  explicit Gates(const tensorflow::Graph& graph);

  // Whether what comes in by the kept edges runs only where that of the dropped ones does. False if it is not known.
  bool AreKept(const std::vector<const tensorflow::Edge*>& dropped,
               const std::vector<const tensorflow::Edge*>& kept) const;

 private:
  using Set = std::shared_ptr<const std::vector<int>>;  // Sorted; nullptr for one that is not known.

  struct Branch {
    int node, output;  // The predicate.
    int count;         // Of all branches of a Switch.
  };

  // Whether one of the inputs of a Merge runs where all the gates are open that they have in common: they are all the
  // branches of one predicate.
  bool OneRuns(const std::vector<Set>& inputs, size_t num_common) const;
  Set Of(const tensorflow::Edge& edge) const;
  Set Union(const Set& a, const Set& b);
  Set Intersection(const Set& a, const Set& b);
  Set Before(const tensorflow::Node& node);
  void Add(const tensorflow::Node& node);

  bool has_gates_ = false;
  int64_t room_ = 10'000'000;                       // For all sets together: graphs come from files, too.
  std::map<std::tuple<int, int, int>, int> gates_;  // By the predicate, as node and output, and the Switch's output.
  std::vector<Branch> branches_;                    // By the gate.
  std::vector<Set> before_;                         // By the node's id.
  std::map<std::pair<int, int>, Set> behind_;       // By the Switch's id, and its output.
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_PASSES_GATES_H_
