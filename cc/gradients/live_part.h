#ifndef TF_CG_OPS_CC_GRADIENTS_LIVE_PART_H_
#define TF_CG_OPS_CC_GRADIENTS_LIVE_PART_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cc/gradients/flat_function.h"

namespace tf_cg_ops {

// The part of a function that gradients flow through, and the values that are given to it: those that no gradient flows
// into, and those of variables, since TensorFlow can neither differentiate two reads of one nor those that are not
// float32.
class LivePart {
 public:
  struct Given {
    std::string reference;  // In the flat function.
    std::string name;       // In the live part.
    tensorflow::DataType type;
  };
  struct LiveNode {
    tensorflow::NodeDef def;  // With the names of given values as inputs.
    std::vector<bool> has_gradient;
  };

  explicit LivePart(const FlatFunction& flat) : flat_(flat) {}

  // Fails if something without a gradient is in the way.
  absl::Status Find();

  bool has_custom_gradient() const { return has_custom_gradient_; }
  const std::map<std::string, LiveNode>& nodes() const { return nodes_; }
  const std::vector<std::string>& results() const { return results_; }
  const std::vector<Given>& given() const { return given_; }
  // The arguments of the flat function that the live part reads.
  const std::set<int>& arguments() const { return arguments_; }
  // Which of the given values were read from the variable that is the argument, and want a gradient.
  const std::map<int, std::set<int>>& values_of() const { return values_of_; }
  // What computes the given values, in an order in which that can be done.
  const std::vector<const tensorflow::NodeDef*>& before() const { return before_; }

 private:
  int VariableReadBy(const std::string& reference) const;
  absl::Status Take(bool flows, std::string* reference);
  absl::Status Give(std::string* reference, int* position);
  absl::Status FindNodes();
  absl::Status CheckGradients() const;
  void FindBefore();

  const FlatFunction& flat_;
  bool has_custom_gradient_ = false;
  std::map<std::string, LiveNode> nodes_;
  std::vector<std::string> results_;
  std::vector<Given> given_;
  std::map<std::string, int> position_in_given_;
  std::set<int> arguments_;
  std::map<int, std::set<int>> values_of_;
  std::vector<const tensorflow::NodeDef*> before_;
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_GRADIENTS_LIVE_PART_H_
