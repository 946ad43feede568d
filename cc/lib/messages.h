// Every error message that the C++ side can give, each written once:
// `<api>: <what is wrong>; expected <X>, got <Y>. <remedy>`.

#ifndef TF_CG_OPS_CC_LIB_MESSAGES_H_
#define TF_CG_OPS_CC_LIB_MESSAGES_H_

#include <cstdint>
#include <string>

#include "cc/lib/alignment.h"

namespace tf_cg_ops {

// "[2,?,3]", as TensorFlow prints a shape.
std::string ToString(const Dims& dims);

std::string AxisOutOfRange(const OperandNames& names, int64_t axis, const Dims& x);
std::string AxisGivenTwice(const OperandNames& names, int64_t dimension, const Axis& axis, const Dims& x);
std::string AxisWithAllAxes(const OperandNames& names, const Axis& axis);
std::string DoNotBroadcast(const OperandNames& names, const OperandShapes& shapes, const Axis& axis);

// `expected` is B without the dimensions of `axis`; `name_the_domain` adds the advice to use `axis`.
std::string WrongFxShape(const OperandNames& names, const OperandShapes& shapes, const Axis& axis, const Dims& expected,
                         bool name_the_domain);

// For the tensor that gives the shape of a gradient.
std::string ShapeIsNoVector(const OperandNames& names, int64_t rank);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_MESSAGES_H_
