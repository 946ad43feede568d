// The gradients of the library's ops for programs without Python, as functions: what TensorFlow's SymbolicGradient
// looks up when it differentiates a function, as it does for each call in a SavedModel. The rules are those of the
// Python side, in the same order.

#include <array>
#include <string>
#include <vector>

#include "cc/gradients/gradient_function.h"
#include "cc/lib/alignment.h"
#include "cc/lib/messages.h"
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

// The attributes that the op of the form and the op of its gradient share.
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

// Adds the gradient of the form with respect to `wrt`, of the shape of `like`, to the function and its results.
void ReturnGradientOfForm(const FormAttributes& form, Role wrt, const std::array<std::string, kNumRoles>& operands,
                          const std::string& like, bool zero_x, GradientFunction* function) {
  const std::string shape = function->Node("Shape", {like}, {{"T", form.type}, {"out_type", tensorflow::DT_INT64}});
  const std::string gradient =
      function->Node("CustomGradientEmbedGrad",
                     {operands[wrt == kFx ? kGx : kFx], operands[wrt == kX ? kGx : kX], shape + ":output:0"},
                     {{"T", form.type},
                      {"Tshape", tensorflow::DT_INT64},
                      {"wrt", std::string(kRoleNames[wrt])},
                      {"zero_x", zero_x},
                      {"fx_gx_manually_stopped", form.manually_stopped},
                      {"axis", absl::Span<const int64_t>(form.axis)},
                      {"all_axes", form.all_axes}});
  function->Return(gradient + ":out:0", form.type);
}

absl::Status EmbedGradient(const AttrSlice& attributes, FunctionDef* result) {
  FormAttributes form;
  TF_RETURN_IF_ERROR(GetFormAttributes(attributes, &form));
  int64_t pairs;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "N", &pairs));
  // Nobody has compared it with the number of inputs yet.
  if (pairs > kMaxPairs) return absl::InvalidArgumentError(TooManyPairs(pairs, kMaxPairs));
  GradientFunction function;
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
    function.ReturnNothing(fx, form.type);
    for (int64_t i = 0; i < pairs; ++i) function.ReturnNothing(gx[i], form.type);
  }
  for (int64_t i = 0; i < pairs; ++i) {
    ReturnGradientOfForm(form, kX, {dy, gx[i], ""}, x[i], /*zero_x=*/false, &function);
  }
  *result = function.Build();
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
  const std::array<Role, 2> given = {wrt == kFx ? kGx : kFx, wrt == kX ? kGx : kX};

  GradientFunction function;
  std::array<std::string, kNumRoles> operands;
  for (const Role role : given) operands[role] = function.Argument(form.type);
  const std::string shape = function.Argument(shape_type);
  operands[wrt] = function.Argument(form.type);
  for (const Role role : given) {
    if (role == kGx && !form.manually_stopped) {
      function.ReturnNothing(operands[role], form.type);
    } else {
      // d(x - stop(x)) = dx: with respect to x itself the form is no longer zero.
      ReturnGradientOfForm(form, role, operands, operands[role], zero_x && role != kX, &function);
    }
  }
  function.ReturnNothing(shape, shape_type);
  *result = function.Build();
  return absl::OkStatus();
}

std::vector<std::string> Arguments(const DataTypeVector& types, GradientFunction* function) {
  std::vector<std::string> arguments;
  for (const DataType type : types) arguments.push_back(function->Argument(type));
  return arguments;
}

// Calls the rule that the op names.
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
      "CustomGradientRule: an attribute names no input or result; expected positions of "
      "inputs and results, got others. The graph was changed after it was saved.";

  GradientFunction function;
  const std::vector<std::string> results = Arguments(result_types, &function);
  const std::vector<std::string> inputs = Arguments(input_types, &function);
  const std::vector<std::string> captures = Arguments(capture_types, &function);
  const std::vector<std::string> dys = Arguments(result_types, &function);

  std::vector<std::string> given;
  DataTypeVector given_types, returned_types;
  for (const int64_t i : differentiated_results) {
    if (i < 0 || i >= static_cast<int64_t>(dys.size())) return absl::InvalidArgumentError(bad_position);
    given.push_back(dys[i]);
    given_types.push_back(result_types[i]);
  }
  given.insert(given.end(), captures.begin(), captures.end());
  given_types.insert(given_types.end(), capture_types.begin(), capture_types.end());

  std::vector<std::string> gradients(inputs.size());
  std::vector<bool> is_sliced(inputs.size(), false);
  for (const int64_t i : sliced_inputs) {
    if (i < 0 || i >= static_cast<int64_t>(inputs.size())) return absl::InvalidArgumentError(bad_position);
    is_sliced[i] = true;
  }
  for (const int64_t i : differentiated_inputs) {
    if (i < 0 || i >= static_cast<int64_t>(inputs.size())) return absl::InvalidArgumentError(bad_position);
    gradients[i] = std::to_string(returned_types.size());
    returned_types.push_back(input_types[i]);
    if (is_sliced[i]) returned_types.insert(returned_types.end(), 2, tensorflow::DT_INT64);  // Indices, dense shape.
  }
  const std::string call =
      function.Node("PartitionedCall", given, {{"Tin", given_types}, {"Tout", returned_types}, {"f", rule}}) +
      ":output:";

  for (size_t i = 0; i < results.size(); ++i) function.ReturnNothing(results[i], result_types[i]);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (gradients[i].empty()) {
      function.ReturnNothing(inputs[i], input_types[i]);
    } else if (is_sliced[i]) {
      const int first = std::stoi(gradients[i]);
      const std::string last_dimension = function.Constant(-1) + ":output:0";
      const std::string rows = function.Node("ExpandDims", {call + std::to_string(first + 1), last_dimension},
                                             {{"T", tensorflow::DT_INT64}, {"Tdim", tensorflow::DT_INT32}});
      const std::string dense =
          function.Node("ScatterNd", {rows + ":output:0", call + gradients[i], call + std::to_string(first + 2)},
                        {{"T", input_types[i]}, {"Tindices", tensorflow::DT_INT64}});
      function.Return(dense + ":output:0", input_types[i]);
    } else {
      function.Return(call + gradients[i], input_types[i]);
    }
  }
  for (size_t i = 0; i < captures.size(); ++i) function.ReturnNothing(captures[i], capture_types[i]);
  *result = function.Build();
  return absl::OkStatus();
}

absl::Status BarrierGradient(const AttrSlice& attributes, FunctionDef* result) {
  DataTypeVector value_types, after_types;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tvalues", &value_types));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tafter", &after_types));
  GradientFunction function;
  Arguments(value_types, &function);
  const std::vector<std::string> after = Arguments(after_types, &function);
  const std::vector<std::string> dys = Arguments(value_types, &function);
  for (size_t i = 0; i < dys.size(); ++i) function.Return(dys[i], value_types[i]);
  for (size_t i = 0; i < after.size(); ++i) function.ReturnNothing(after[i], after_types[i]);
  *result = function.Build();
  return absl::OkStatus();
}

absl::Status CheckShapeGradient(const AttrSlice& attributes, FunctionDef* result) {
  DataType type, shape_type;
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "T", &type));
  TF_RETURN_IF_ERROR(GetNodeAttr(attributes, "Tshape", &shape_type));
  GradientFunction function;
  function.Argument(type);
  const std::string shape = function.Argument(shape_type);
  const std::string dy = function.Argument(type);
  function.Return(dy, type);
  function.ReturnNothing(shape, shape_type);
  *result = function.Build();
  return absl::OkStatus();
}

REGISTER_OP_GRADIENT("CustomGradientBarrier", BarrierGradient);
REGISTER_OP_GRADIENT("CustomGradientCheckShape", CheckShapeGradient);
REGISTER_OP_GRADIENT("CustomGradientEmbed", EmbedGradient);
REGISTER_OP_GRADIENT("CustomGradientEmbedGrad", EmbedGradGradient);
REGISTER_OP_GRADIENT("CustomGradientRule", RuleGradient);

}  // namespace
}  // namespace tf_cg_ops
