// The error messages of the C++ code: `<api>: <argument> must be <X>, got <Y>. <hint>`.

#ifndef TF_CG_OPS_CC_LIB_MESSAGES_H_
#define TF_CG_OPS_CC_LIB_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/lib/alignment.h"

namespace tf_cg_ops {

// "[2,?,3]", as TensorFlow prints a shape.
std::string ToString(const Dims& dims);

std::string AxisOutOfRange(const OperandNames& names, int64_t axis, const Dims& x);
std::string DuplicateAxis(const OperandNames& names, int64_t dimension, const Axis& axis, const Dims& x);
std::string AxisWithAllAxes(const OperandNames& names, const Axis& axis);

// Shapes that do not fit, with the axis. `is_event` says for each dimension of x whether the axis names it.
struct ShapeError {
  const OperandNames& names;
  const OperandShapes& shapes;
  const Axis& axis;
  const std::vector<bool>& is_event;
};

std::string DoNotBroadcast(const ShapeError& error);

// `expected` is the iteration space without the event dimensions.
std::string WrongFxShape(const ShapeError& error, const Dims& expected);

// For an iteration space with 2^63 elements or more.
std::string TooManyProducts(const ShapeError& error);

// For the attribute zero_x in a gradient with respect to x, which has no operand x.
std::string ZeroXWithoutX(const OperandNames& names);

// For the input `shape` of the op `api`.
std::string ShapeIsNotAVector(const std::string& api, int64_t rank);
std::string ShapeOfTooHighARank(const std::string& api, int64_t rank, int64_t highest);

// For a shape that does not fit into the int32 inputs of built-in ops.
std::string TooLargeForBuiltInOps(const std::string& api, const Dims& shape);

// For a gradient by built-in ops, in a runtime that runs single kernels but no functions.
std::string NoFunctionRuntime(const std::string& api);

// For a gradient without Python of a function with a custom gradient in a loop or a conditional.
std::string GradientLostInControlFlow(const std::string& function);

// For an attribute N of CustomGradientEmbed above the limit.
std::string TooManyPairs(int64_t pairs, int64_t limit);

// A message from the Python code, with {expected} and {got} replaced by the shapes.
std::string FillIn(const std::string& message, const Dims& expected, const Dims& got);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_MESSAGES_H_
