// Every error message that the C++ side can give, each written once:
// `<api>: <what is wrong>; expected <X>, got <Y>. <remedy>`.

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
std::string AxisGivenTwice(const OperandNames& names, int64_t dimension, const Axis& axis, const Dims& x);
std::string AxisWithAllAxes(const OperandNames& names, const Axis& axis);
// What does not fit: the shapes of the operands, the axis, and for each dimension of x whether the axis names it.
struct Misfit {
  const OperandNames& names;
  const OperandShapes& shapes;
  const Axis& axis;
  const std::vector<bool>& in_domain;
};

std::string DoNotBroadcast(const Misfit& misfit);

// `expected` is B without the dimensions of `axis`.
std::string WrongFxShape(const Misfit& misfit, const Dims& expected);

// The broadcast shape has more elements than can be counted.
std::string TooManyProducts(const Misfit& misfit);

// For a gradient by x that claims that x is zero, but does not have it.
std::string ZeroXWithoutX(const OperandNames& names);

// For the tensor that gives the shape of a gradient, in the op `api`.
std::string ShapeIsNotAVector(const std::string& api, int64_t rank);
std::string ShapeOfTooHighARank(const std::string& api, int64_t rank, int64_t highest);

// For a gradient that TensorFlow's own operations compute, where one of them cannot be told its shape.
std::string TooLargeForStockOps(const std::string& api, const Dims& shape);

// For a gradient by TensorFlow's own operations in a runtime that runs single kernels and no functions.
std::string NoFunctionsHere(const std::string& api);

// For a gradient without Python of a function that has a custom gradient in a loop or a conditional.
std::string GradientLostInControlFlow(const std::string& function);

// For an op with more operands than it can have.
std::string TooManyPairs(int64_t pairs, int64_t limit);

// A message that Python wrote, with the shapes in the places of {expected} and {got}.
std::string FillIn(const std::string& message, const Dims& expected, const Dims& got);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_MESSAGES_H_
