// What all kernels of CustomGradientEmbedGrad share: from the inputs to the plan of the contraction.

#ifndef TF_CG_OPS_CC_KERNELS_EMBED_GRAD_PLAN_H_
#define TF_CG_OPS_CC_KERNELS_EMBED_GRAD_PLAN_H_

#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/alignment.h"
#include "cc/lib/arithmetic.h"
#include "cc/lib/contraction_plan.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_cg_ops {

// The type of cc/lib with the layout of TensorFlow's T.
template <typename T>
struct ElementOf {
  using Type = T;
};
template <>
struct ElementOf<Eigen::half> {
  using Type = Half;
};
template <>
struct ElementOf<Eigen::bfloat16> {
  using Type = BFloat16;
};

// Calls a macro for each type that the op takes.
#define TF_CG_OPS_CALL_FOR_EACH_TYPE(MACRO) \
  MACRO(Eigen::half)                        \
  MACRO(Eigen::bfloat16)                    \
  MACRO(float)                              \
  MACRO(double)                             \
  MACRO(tensorflow::complex64)              \
  MACRO(tensorflow::complex128)

// The shapes of one call.
struct EmbedGradShapes {
  tensorflow::TensorShape out;
  // Whether lhs, rhs and out have the same nonempty shape, without an axis, so nothing has to be aligned.
  bool all_equal = false;
  Alignment alignment;  // Empty if all_equal.
};

// Checks the shapes of the inputs against each other.
absl::Status AlignInputs(tensorflow::OpKernelContext* context, const GradAttributes& attributes,
                         EmbedGradShapes* shapes);

ContractionPlan PlanContraction(const EmbedGradShapes& shapes, const GradAttributes& attributes);

// Allocates the output, or reuses an operand's memory if the plan allows it and only this kernel uses it.
absl::Status AllocateOut(tensorflow::OpKernelContext* context, const ContractionPlan& plan,
                         const tensorflow::TensorShape& shape, tensorflow::Tensor** out);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_KERNELS_EMBED_GRAD_PLAN_H_
