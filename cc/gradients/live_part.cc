#include "cc/gradients/live_part.h"

#include <algorithm>

#include "cc/gradients/gradient_inputs.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_cg_ops {

using ::tensorflow::NodeDef;

absl::Status LivePart::Find() {
  TF_RETURN_IF_ERROR(FindNodes());
  TF_RETURN_IF_ERROR(CheckGradients());
  FindBefore();
  return absl::OkStatus();
}

// From the results on backwards.
absl::Status LivePart::FindNodes() {
  results_ = flat_.results();
  for (std::string& result : results_) TF_RETURN_IF_ERROR(Take(/*flows=*/true, &result));
  for (auto node = flat_.nodes().rbegin(); node != flat_.nodes().rend(); ++node) {
    const auto live = nodes_.find((*node)->name());
    if (live == nodes_.end()) continue;
    auto& [def, has_gradient] = live->second;
    has_custom_gradient_ |= def.op().rfind("CustomGradient", 0) == 0;
    TF_RETURN_IF_ERROR(InputsWithGradients(def.op(), def, def.input_size(), &has_gradient));
    for (int i = 0; i < def.input_size(); ++i) TF_RETURN_IF_ERROR(Take(has_gradient[i], def.mutable_input(i)));
  }
  return absl::OkStatus();
}

// Sees to it that the live part has the value, and makes the reference the name that it has there.
absl::Status LivePart::Take(bool flows, std::string* reference) {
  if (const int argument = flat_.ArgumentAt(*reference); argument >= 0) {
    arguments_.insert(argument);
    return absl::OkStatus();
  }
  const int variable = VariableReadBy(*reference);
  if (flows && variable < 0) {
    const NodeDef* node = flat_.Find(*reference);
    nodes_.try_emplace(node->name(), LiveNode{*node, {}});
    return absl::OkStatus();
  }
  int position;
  TF_RETURN_IF_ERROR(Give(reference, &position));
  if (flows) values_of_[variable].insert(position);
  return absl::OkStatus();
}

absl::Status LivePart::Give(std::string* reference, int* position) {
  const auto [at, is_new] = position_in_given_.emplace(*reference, given_.size());
  *position = at->second;
  if (is_new) {
    Given& given = given_.emplace_back();
    given.reference = *reference;
    given.name = FlatFunction::kReserved + ("given_" + std::to_string(*position));
    TF_RETURN_IF_ERROR(flat_.TypeOf(*reference, &given.type));
  }
  *reference = given_[*position].name;
  return absl::OkStatus();
}

// The position of the argument whose variable the reference reads; -1 if it does not.
int LivePart::VariableReadBy(const std::string& reference) const {
  const NodeDef* node = flat_.Find(reference);
  return node != nullptr && node->op() == "ReadVariableOp" ? flat_.ArgumentAt(node->input(0)) : -1;
}

// Fails if an op between the results and an argument has no gradient, or none for its attributes. TensorFlow says
// the same while it differentiates, but not always: it may try again without end, or end the process.
absl::Status LivePart::CheckGradients() const {
  std::set<const NodeDef*> dependent;  // Those that a gradient flows through, to an argument.
  for (const NodeDef* node : flat_.nodes()) {
    const auto live = nodes_.find(node->name());
    if (live == nodes_.end()) continue;
    bool depends = false;
    for (int i = 0; i < node->input_size(); ++i) {
      const NodeDef* input = flat_.Find(node->input(i));
      const bool is_of_interest = input == nullptr || VariableReadBy(node->input(i)) >= 0 || dependent.count(input) > 0;
      depends |= live->second.has_gradient[i] && is_of_interest;
    }
    if (depends) dependent.insert(node);
    // Those of this library fail for attributes that fit nothing, whether a gradient is asked for or not.
    if (!depends && node->op().rfind("CustomGradient", 0) != 0) continue;
    tensorflow::gradient::Creator creator;
    TF_RETURN_IF_ERROR(tensorflow::gradient::GetOpGradientCreator(node->op(), &creator));
    tensorflow::FunctionDef gradient;
    if (creator != nullptr) TF_RETURN_IF_ERROR(creator(tensorflow::AttrSlice(*node), &gradient));
  }
  return absl::OkStatus();
}

void LivePart::FindBefore() {
  std::set<const NodeDef*> needed;
  for (const Given& given : given_) needed.insert(flat_.Find(given.reference));
  for (auto node = flat_.nodes().rbegin(); node != flat_.nodes().rend(); ++node) {
    if (needed.count(*node) == 0) continue;
    before_.push_back(*node);
    for (const std::string& input : (*node)->input()) needed.insert(flat_.Find(input));
  }
  std::reverse(before_.begin(), before_.end());
}

}  // namespace tf_cg_ops
