#include "cc/graph_gradients/gradient_inputs.h"

#include "cc/lib/op_names.h"

namespace tf_cg_ops {

using ::tensorflow::AttrSlice;
using ::tensorflow::GetNodeAttr;

namespace {

// The inputs [begin, end), of which some may not exist, have no gradients.
void Stop(size_t begin, size_t end, std::vector<bool>* has_gradient) {
  for (size_t i = begin; i < end && i < has_gradient->size(); ++i) (*has_gradient)[i] = false;
}

absl::Status OfRule(const AttrSlice& attributes, std::vector<bool>* has_gradient) {
  std::string error;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "error", &error));
  if (!error.empty()) return absl::FailedPreconditionError(error);
  tensorflow::DataTypeVector result_types;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tresults", &result_types));
  std::vector<int64_t> differentiated_inputs;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "differentiated_inputs", &differentiated_inputs));
  has_gradient->assign(has_gradient->size(), false);
  for (const int64_t position : differentiated_inputs) {
    const size_t input = result_types.size() + position;
    if (input < has_gradient->size()) (*has_gradient)[input] = true;  // The gradient function rejects other positions.
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status InputsWithGradients(const std::string& op, const AttrSlice& attributes, int num_inputs,
                                 std::vector<bool>* has_gradient) {
  has_gradient->assign(num_inputs, true);
  if (op == kRuleOp) return OfRule(attributes, has_gradient);
  if (op == kCheckShapeOp) {
    Stop(1, 2, has_gradient);
  } else if (op == kBarrierOp) {
    tensorflow::DataTypeVector value_types;
    TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tvalues", &value_types));
    Stop(value_types.size(), num_inputs, has_gradient);
  } else if (op == kEmbedOp || op == kEmbedGradOp) {
    bool manually_stopped;
    TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "fx_gx_manually_stopped", &manually_stopped));
    if (op == kEmbedOp) {
      if (!manually_stopped) Stop(0, (num_inputs + 1) / 2, has_gradient);  // fx and gx.
    } else {
      std::string wrt;
      TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "wrt", &wrt));
      const size_t gx = wrt == "fx" ? 0 : 1;
      if (wrt != "gx" && !manually_stopped) Stop(gx, gx + 1, has_gradient);
      Stop(2, 3, has_gradient);  // shape.
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_cg_ops
