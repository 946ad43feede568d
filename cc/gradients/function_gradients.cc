// The gradients of the library's ops for programs without Python, as functions. TensorFlow's SymbolicGradient looks
// them up when it differentiates a function, such as each call in a SavedModel. The Python code has the same rules, in
// the same order.
//
// Each function takes the inputs of its op, then the upstream gradients of all outputs, and returns one gradient for
// each input.

#include <array>
#include <string>
#include <vector>

#include "cc/functions/function_builder.h"
#include "cc/lib/alignment.h"
#include "cc/lib/messages.h"
#include "cc/lib/op_names.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::AttrSlice;
using ::tensorflow::DataType;
using ::tensorflow::DataTypeVector;
using ::tensorflow::FunctionDef;
using ::tensorflow::GetNodeAttr;

constexpr std::array<const char*, kNumRoles> kRoleNames = {"fx", "gx", "x"};
constexpr int64_t kMaxPairs = 100000;

// Returns zeros as the gradient of the input `reference`; for a resource, TensorFlow expects a float.
void ReturnZeros(const std::string& reference, DataType type, FunctionBuilder* function) {
  if (type == tensorflow::DT_RESOURCE) {
    function->Return(function->Constant<float>(0), tensorflow::DT_FLOAT);
  } else {
    function->Return(function->Value("ZerosLike", {reference}, "y", {{"T", type}}), type);
  }
}

// The attributes that CustomGradientEmbed and CustomGradientEmbedGrad share.
struct FormAttributes {
  DataType type;
  bool manually_stopped;
  std::vector<int64_t> axis;
  bool all_axes;
};

absl::Status GetFormAttributes(const AttrSlice& attributes, FormAttributes* form) {
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "T", &form->type));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "fx_gx_manually_stopped", &form->manually_stopped));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "axis", &form->axis));
  return GetNodeAttr(attributes, "all_axes", &form->all_axes);
}

// Returns the gradient with respect to `wrt`, in the shape of `like`.
void ReturnGradientOfForm(const FormAttributes& form, Role wrt, const std::array<std::string, kNumRoles>& operands,
                          const std::string& like, bool zero_x, FunctionBuilder* function) {
  const std::string shape =
      function->Value("Shape", {like}, "output", {{"T", form.type}, {"out_type", tensorflow::DT_INT64}});
  const std::string gradient =
      function->Value(kEmbedGradOp, {operands[LhsRole(wrt)], operands[RhsRole(wrt)], shape}, "out",
                      {{"T", form.type},
                       {"Tshape", tensorflow::DT_INT64},
                       {"wrt", std::string(kRoleNames[wrt])},
                       {"zero_x", zero_x},
                       {"fx_gx_manually_stopped", form.manually_stopped},
                       {"axis", absl::Span<const int64_t>(form.axis)},
                       {"all_axes", form.all_axes}});
  function->Return(gradient, form.type);
}

absl::Status EmbedGradient(const AttrSlice& attributes, FunctionDef* result) {
  FormAttributes form;
  TF_RETURN_IF_ERROR(GetFormAttributes(attributes, &form));
  int64_t pairs;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "N", &pairs));
  // TensorFlow has not yet compared N with the number of inputs.
  if (pairs > kMaxPairs) return absl::InvalidArgumentError(TooManyPairs(pairs, kMaxPairs));
  FunctionBuilder function;
  const std::string fx = function.Argument(form.type);
  std::vector<std::string> gx, x;
  for (int64_t i = 0; i < pairs; ++i) gx.push_back(function.Argument(form.type));
  for (int64_t i = 0; i < pairs; ++i) x.push_back(function.Argument(form.type));
  const std::string dy = function.Argument(form.type);
  if (form.manually_stopped) {
    function.Return(dy, form.type);
    for (int64_t i = 0; i < pairs; ++i) {
      ReturnGradientOfForm(form, kGx, {dy, "", x[i]}, gx[i], /*zero_x=*/true, &function);
    }
  } else {
    ReturnZeros(fx, form.type, &function);
    for (int64_t i = 0; i < pairs; ++i) ReturnZeros(gx[i], form.type, &function);
  }
  for (int64_t i = 0; i < pairs; ++i) {
    ReturnGradientOfForm(form, kX, {dy, gx[i], ""}, x[i], /*zero_x=*/false, &function);
  }
  *result = function.Build("");
  return absl::OkStatus();
}

absl::Status EmbedGradGradient(const AttrSlice& attributes, FunctionDef* result) {
  FormAttributes form;
  TF_RETURN_IF_ERROR(GetFormAttributes(attributes, &form));
  std::string wrt_name;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "wrt", &wrt_name));
  bool zero_x;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "zero_x", &zero_x));
  DataType shape_type;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tshape", &shape_type));
  const Role wrt = RoleFromName(wrt_name);
  const std::array<Role, 2> others = {LhsRole(wrt), RhsRole(wrt)};

  FunctionBuilder function;
  std::array<std::string, kNumRoles> operands;
  for (const Role role : others) operands[role] = function.Argument(form.type);
  const std::string shape = function.Argument(shape_type);
  operands[wrt] = function.Argument(form.type);
  for (const Role role : others) {
    if (role == kGx && !form.manually_stopped) {
      ReturnZeros(operands[role], form.type, &function);
    } else {
      // The derivative with respect to x is not zero: d(x - stop(x)) = dx.
      ReturnGradientOfForm(form, role, operands, operands[role], zero_x && role != kX, &function);
    }
  }
  ReturnZeros(shape, shape_type, &function);
  *result = function.Build("");
  return absl::OkStatus();
}

// Calls the function that the attribute `rule` names.
absl::Status RuleGradient(const AttrSlice& attributes, FunctionDef* result) {
  std::string error;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "error", &error));
  if (!error.empty()) return absl::FailedPreconditionError(error);
  DataTypeVector result_types, input_types, capture_types;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tresults", &result_types));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tinputs", &input_types));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tcaptures", &capture_types));
  std::vector<int64_t> differentiated_results, differentiated_inputs, sliced_inputs;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "differentiated_results", &differentiated_results));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "differentiated_inputs", &differentiated_inputs));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "sliced_inputs", &sliced_inputs));
  tensorflow::NameAttrList rule;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "rule", &rule));
  const std::string bad_position =
      "CustomGradientRule: an attribute has a position that no input or result has. The graph was changed after it was "
      "saved.";

  FunctionBuilder function;
  const std::vector<std::string> results = function.Arguments(result_types);
  const std::vector<std::string> inputs = function.Arguments(input_types);
  const std::vector<std::string> captures = function.Arguments(capture_types);
  const std::vector<std::string> dys = function.Arguments(result_types);

  std::vector<std::string> arguments;
  DataTypeVector argument_types, returned_types;
  for (const int64_t i : differentiated_results) {
    if (i < 0 || i >= static_cast<int64_t>(dys.size())) return absl::InvalidArgumentError(bad_position);
    arguments.push_back(dys[i]);
    argument_types.push_back(result_types[i]);
  }
  arguments.insert(arguments.end(), captures.begin(), captures.end());
  argument_types.insert(argument_types.end(), capture_types.begin(), capture_types.end());

  constexpr int kNone = -1;
  std::vector<int> gradients(inputs.size(), kNone);  // Positions in the results of the rule.
  std::vector<bool> is_sliced(inputs.size(), false);
  for (const int64_t i : sliced_inputs) {
    if (i < 0 || i >= static_cast<int64_t>(inputs.size())) return absl::InvalidArgumentError(bad_position);
    is_sliced[i] = true;
  }
  for (const int64_t i : differentiated_inputs) {
    if (i < 0 || i >= static_cast<int64_t>(inputs.size())) return absl::InvalidArgumentError(bad_position);
    gradients[i] = static_cast<int>(returned_types.size());
    returned_types.push_back(input_types[i]);
    if (is_sliced[i]) returned_types.insert(returned_types.end(), 2, tensorflow::DT_INT64);  // Indices, dense shape.
  }
  const std::vector<std::string> returned =
      function.Values("PartitionedCall", arguments, "output", returned_types.size(),
                      {{"Tin", argument_types}, {"Tout", returned_types}, {"f", rule}});

  for (size_t i = 0; i < results.size(); ++i) ReturnZeros(results[i], result_types[i], &function);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int first = gradients[i];
    if (first == kNone) {
      ReturnZeros(inputs[i], input_types[i], &function);
    } else if (is_sliced[i]) {
      const std::string rows = function.Value("ExpandDims", {returned[first + 1], function.Constant<int>(-1)}, "output",
                                              {{"T", tensorflow::DT_INT64}, {"Tdim", tensorflow::DT_INT32}});
      const std::string dense = function.Value("ScatterNd", {rows, returned[first], returned[first + 2]}, "output",
                                               {{"T", input_types[i]}, {"Tindices", tensorflow::DT_INT64}});
      function.Return(dense, input_types[i]);
    } else {
      function.Return(returned[first], input_types[i]);
    }
  }
  for (size_t i = 0; i < captures.size(); ++i) ReturnZeros(captures[i], capture_types[i], &function);
  *result = function.Build("");
  return absl::OkStatus();
}

absl::Status BarrierGradient(const AttrSlice& attributes, FunctionDef* result) {
  DataTypeVector value_types, after_types;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tvalues", &value_types));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tafter", &after_types));
  FunctionBuilder function;
  function.Arguments(value_types);
  const std::vector<std::string> after = function.Arguments(after_types);
  const std::vector<std::string> dys = function.Arguments(value_types);
  for (size_t i = 0; i < dys.size(); ++i) function.Return(dys[i], value_types[i]);
  for (size_t i = 0; i < after.size(); ++i) ReturnZeros(after[i], after_types[i], &function);
  *result = function.Build("");
  return absl::OkStatus();
}

absl::Status CheckShapeGradient(const AttrSlice& attributes, FunctionDef* result) {
  DataType type, shape_type;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "T", &type));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tshape", &shape_type));
  FunctionBuilder function;
  function.Argument(type);
  const std::string shape = function.Argument(shape_type);
  const std::string dy = function.Argument(type);
  function.Return(dy, type);
  ReturnZeros(shape, shape_type, &function);
  *result = function.Build("");
  return absl::OkStatus();
}

REGISTER_OP_GRADIENT(kBarrierOp, BarrierGradient);
REGISTER_OP_GRADIENT(kCheckShapeOp, CheckShapeGradient);
REGISTER_OP_GRADIENT(kEmbedOp, EmbedGradient);
REGISTER_OP_GRADIENT(kEmbedGradOp, EmbedGradGradient);
REGISTER_OP_GRADIENT(kRuleOp, RuleGradient);

}  // namespace
}  // namespace tf_cg_ops
