#include "cc/lib/messages.h"

#include <limits>
#include <optional>
#include <utility>

namespace tf_cg_ops {
namespace {

// The numbers in brackets, with a question mark for `unknown`.
std::string Bracketed(const Dims& numbers, std::optional<int64_t> unknown) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ",";
    text += numbers[i] == unknown ? "?" : std::to_string(numbers[i]);
  }
  return text + "]";
}

// An axis of -1 is the last dimension, not an unknown one.
std::string Describe(const Axis& axis) { return axis.all ? "None" : Bracketed(axis.dims, std::nullopt); }

// "fx of shape [3], gx of shape [3,3] and x of shape [3,3], with axis []"
std::string Describe(const ShapeError& error) {
  std::string text;
  for (int role = 0; role < kNumRoles; ++role) {
    text += role == 0 ? "" : role == kNumRoles - 1 ? " and " : ", ";
    text += error.names.roles[role] + " of shape " + ToString(*error.shapes[role]);
  }
  return text + ", with axis " + Describe(error.axis);
}

// Whether `part` is `whole` without some of its dimensions.
bool IsSubsequence(const Dims& part, const Dims& whole) {
  size_t next = 0;
  for (const int64_t dim : whole) {
    if (next < part.size() && part[next] == dim) ++next;
  }
  return next == part.size();
}

// Whether fx still has the event dimensions, with size 1, as after a reduction with keepdims=True.
bool KeepsEventDimensions(const Dims& fx, const Dims& x, const std::vector<bool>& is_event) {
  bool keeps = fx.size() == x.size();
  for (size_t i = 0; keeps && i < fx.size(); ++i) keeps = !is_event[i] || fx[i] == 1;
  return keeps;
}

// The likely mistake, and how to fix it.
std::string Hint(const ShapeError& error) {
  const auto& [fx_name, gx_name, x_name] = error.names.roles;
  const Dims &fx = *error.shapes[kFx], &gx = *error.shapes[kGx], &x = *error.shapes[kX];
  const bool has_axis = error.axis.all || !error.axis.dims.empty();
  if (has_axis && KeepsEventDimensions(fx, x, error.is_event)) {
    return "If " + fx_name + " was reduced with keepdims=True, drop the dimensions of axis from it.";
  }
  if (!has_axis && gx.size() > x.size()) {
    return "If " + gx_name + " is a Jacobian, with the shape of " + fx_name + " followed by the shape of " + x_name +
           ", pass axis=None.";
  }
  if (has_axis && gx.size() > x.size()) {
    return "Shapes are aligned from the right: if " + gx_name + " is a Jacobian for each example, [batch, outputs, " +
           "inputs], give " + x_name + " a dimension of size 1 for the outputs, as in x[:, None, :].";
  }
  if (!has_axis && fx.size() < x.size() && IsSubsequence(fx, x)) {
    return "If each element of " + fx_name + " is a function of several elements of " + x_name +
           ", name their dimensions with axis.";
  }
  return "Shapes are aligned from the right, as in NumPy. Check the shapes of " + fx_name + ", " + gx_name + " and " +
         x_name + ".";
}

}  // namespace

std::string ToString(const Dims& dims) { return Bracketed(dims, kUnknownDim); }

std::string AxisOutOfRange(const OperandNames& names, int64_t axis, const Dims& x) {
  const std::string rank = std::to_string(x.size());
  const std::string range =
      x.empty() ? "empty, because " + names.roles[kX] + " is a scalar"
                : "in [-" + rank + ", " + rank + ") for " + names.roles[kX] + " of shape " + ToString(x);
  return names.api + ": axis must be " + range + ", got " + std::to_string(axis) + ". Name dimensions of " +
         names.roles[kX] + ", or pass None for all of them.";
}

std::string DuplicateAxis(const OperandNames& names, int64_t dimension, const Axis& axis, const Dims& x) {
  return names.api + ": axis must name each dimension of " + names.roles[kX] + " at most once, got " + Describe(axis) +
         ", which names dimension " + std::to_string(dimension) + " of shape " + ToString(x) +
         " twice. Remove one of the two.";
}

std::string AxisWithAllAxes(const OperandNames& names, const Axis& axis) {
  return names.api + ": axis must be empty if all_axes is true, got " + Bracketed(axis.dims, std::nullopt) +
         ". Set only one of the two attributes.";
}

std::string DoNotBroadcast(const ShapeError& error) {
  const auto& [fx, gx, x] = error.names.roles;
  return error.names.api + ": the shapes must broadcast together, with sizes that are equal or 1 once " + fx + " and " +
         gx + " are aligned with " + x + ", got " + Describe(error) + ". " + Hint(error);
}

std::string WrongFxShape(const ShapeError& error, const Dims& expected) {
  return error.names.api + ": " + error.names.roles[kFx] + " must have shape " + ToString(expected) +
         " (the broadcast shape without the dimensions of axis), got " + Describe(error) + ". " + Hint(error);
}

std::string TooManyProducts(const ShapeError& error) {
  return error.names.api + ": the shapes must broadcast to at most " +
         std::to_string(std::numeric_limits<int64_t>::max()) + " elements, got " + Describe(error) +
         ". Split the operands and compute in parts.";
}

std::string ZeroXWithoutX(const OperandNames& names) {
  return names.api + ": wrt must be 'fx' or 'gx' if zero_x is true, got 'x'. Set zero_x to false.";
}

std::string ShapeIsNotAVector(const std::string& api, int64_t rank) {
  return api + ": shape must be a vector, got a tensor of rank " + std::to_string(rank) +
         ". Pass the result of tf.shape.";
}

std::string ShapeOfTooHighARank(const std::string& api, int64_t rank, int64_t highest) {
  return api + ": shape must have at most " + std::to_string(highest) + " dimensions, got " + std::to_string(rank) +
         ". Pass the result of tf.shape.";
}

std::string TooLargeForBuiltInOps(const std::string& api, const Dims& shape) {
  return api + ": without CUDA kernels, dimensions on a GPU must be at most " +
         std::to_string(std::numeric_limits<int32_t>::max()) + ", got shape " + ToString(shape) +
         ". Build the library with CUDA, or compute on the CPU.";
}

std::string NoFunctionRuntime(const std::string& api) {
  return api +
         ": without CUDA kernels, a gradient on a GPU needs a runtime that calls functions, but this one only runs "
         "single kernels. Build the library with CUDA, or compute on the CPU.";
}

std::string GradientLostInControlFlow(const std::string& function) {
  return "tf_cg_ops: TensorFlow cannot differentiate loops and conditionals without Python, and function '" + function +
         "' has a custom gradient in one. Differentiate it in Python, after tf.saved_model.load, or save a function "
         "without that loop or conditional.";
}

std::string TooManyPairs(int64_t pairs, int64_t limit) {
  return "CustomGradientEmbed: N must be at most " + std::to_string(limit) + ", got " + std::to_string(pairs) +
         ". The graph was changed after it was saved.";
}

std::string FillIn(const std::string& message, const Dims& expected, const Dims& got) {
  std::string filled = message;
  for (const auto& [place, dims] : {std::pair<std::string, const Dims&>("{expected}", expected), {"{got}", got}}) {
    const size_t at = filled.find(place);
    if (at != std::string::npos) filled.replace(at, place.size(), ToString(dims));
  }
  return filled;
}

}  // namespace tf_cg_ops
