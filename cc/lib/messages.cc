#include "cc/lib/messages.h"

#include <optional>

namespace tf_cg_ops {
namespace {

// Numbers in brackets; `unknown` is written as a question mark.
std::string Bracketed(const Dims& numbers, std::optional<int64_t> unknown) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ",";
    text += numbers[i] == unknown ? "?" : std::to_string(numbers[i]);
  }
  return text + "]";
}

// An axis of -1 is the last dimension, and no unknown one.
std::string Describe(const Axis& axis) { return axis.all ? "None" : Bracketed(axis.dims, std::nullopt); }

// "fx of shape [3], gx of shape [3,3] and x of shape [3,3], with axis []"
std::string Describe(const OperandNames& names, const OperandShapes& shapes, const Axis& axis) {
  std::string text;
  for (int role = 0; role < kNumRoles; ++role) {
    text += role == 0 ? "" : role == kNumRoles - 1 ? " and " : ", ";
    text += names.roles[role] + " of shape " + (shapes[role] ? ToString(*shapes[role]) : "<unknown>");
  }
  return text + ", with axis " + Describe(axis);
}

}  // namespace

std::string ToString(const Dims& dims) { return Bracketed(dims, kUnknownDim); }

std::string AxisOutOfRange(const OperandNames& names, int64_t axis, const Dims& x) {
  const std::string rank = std::to_string(x.size());
  const std::string range =
      x.empty() ? "no axis, since " + names.roles[kX] + " is a scalar"
                : "a value in [-" + rank + ", " + rank + ") for " + names.roles[kX] + " of shape " + ToString(x);
  return names.api + ": axis names no dimension of " + names.roles[kX] + "; expected " + range + ", got " +
         std::to_string(axis) + ". Name dimensions of " + names.roles[kX] + ", or pass None for all of them.";
}

std::string AxisGivenTwice(const OperandNames& names, int64_t dimension, const Axis& axis, const Dims& x) {
  return names.api + ": axis names dimension " + std::to_string(dimension) + " of " + names.roles[kX] +
         " twice; expected each dimension of shape " + ToString(x) + " at most once, got " + Describe(axis) +
         ". Remove one of the two.";
}

std::string AxisWithAllAxes(const OperandNames& names, const Axis& axis) {
  return names.api + ": all_axes leaves no choice of axis; expected an empty axis beside it, got " +
         Bracketed(axis.dims, std::nullopt) + ". Set only one of the two attributes.";
}

std::string DoNotBroadcast(const OperandNames& names, const OperandShapes& shapes, const Axis& axis) {
  return names.api + ": the shapes do not broadcast together; expected sizes that are equal or 1 once " +
         names.roles[kFx] + " and " + names.roles[kGx] + " are aligned with " + names.roles[kX] + ", got " +
         Describe(names, shapes, axis) + ". Reshape " + names.roles[kGx] + " to the shape of " + names.roles[kX] +
         ", or name the domain of the function with axis.";
}

std::string WrongFxShape(const OperandNames& names, const OperandShapes& shapes, const Axis& axis, const Dims& expected,
                         bool name_the_domain) {
  std::string text = names.api + ": " + names.roles[kFx] + " has the wrong shape; expected " + ToString(expected) +
                     " (the broadcast shape without the dimensions of axis), got " + Describe(names, shapes, axis) +
                     ". ";
  if (name_the_domain) {
    return text + "If each element of " + names.roles[kFx] + " is a function of several elements of " +
           names.roles[kX] + ", name their dimensions with axis.";
  }
  return text + "Broadcast " + names.roles[kFx] + " to that shape before the call.";
}

std::string ShapeIsNoVector(const OperandNames& names, int64_t rank) {
  return names.api + ": shape is no vector; expected a tensor of rank 1, got one of rank " + std::to_string(rank) +
         ". Pass tf.shape of the operand that wrt names.";
}

}  // namespace tf_cg_ops
