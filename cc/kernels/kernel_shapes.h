// What the kernels share: attributes and shapes in the terms of cc/lib.

#ifndef TF_CG_OPS_CC_KERNELS_KERNEL_SHAPES_H_
#define TF_CG_OPS_CC_KERNELS_KERNEL_SHAPES_H_

#include "cc/lib/alignment.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_cg_ops {

inline Dims ToDims(const tensorflow::TensorShape& shape) {
  const auto sizes = shape.dim_sizes();
  return Dims(sizes.begin(), sizes.end());
}

// The attributes `axis` and `all_axes`.
inline absl::Status GetAxis(tensorflow::OpKernelConstruction* context, Axis* axis) {
  TF_RETURN_IF_ERROR(context->GetAttr("axis", &axis->dims));
  return context->GetAttr("all_axes", &axis->all);
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_KERNELS_KERNEL_SHAPES_H_
