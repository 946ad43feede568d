// Reads the kernels' attributes and shapes into the types of cc/lib.

#ifndef TF_CG_OPS_CC_KERNELS_KERNEL_SHAPES_H_
#define TF_CG_OPS_CC_KERNELS_KERNEL_SHAPES_H_

#include <string>

#include "cc/lib/alignment.h"
#include "cc/lib/messages.h"
#include "cc/lib/operand_names.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_cg_ops {

inline Dims ToDims(const tensorflow::TensorShape& shape) {
  const auto sizes = shape.dim_sizes();
  return Dims(sizes.begin(), sizes.end());
}

// The shape in a tensor, which is an input of the op `api`.
inline absl::Status ShapeFromTensor(const tensorflow::Tensor& tensor, const std::string& api,
                                    tensorflow::TensorShape* shape) {
  using ::tensorflow::TensorShapeUtils;
  if (!TensorShapeUtils::IsVector(tensor.shape())) {
    return absl::InvalidArgumentError(ShapeIsNotAVector(api, tensor.dims()));
  }
  return tensor.dtype() == tensorflow::DT_INT32 ? TensorShapeUtils::MakeShape(tensor.vec<int32_t>(), shape)
                                                : TensorShapeUtils::MakeShape(tensor.vec<int64_t>(), shape);
}

// The attributes `axis` and `all_axes`.
inline absl::Status GetAxis(tensorflow::OpKernelConstruction* context, Axis* axis) {
  TF_RETURN_IF_ERROR(context->GetAttr("axis", &axis->dims));
  return context->GetAttr("all_axes", &axis->all);
}

// The attributes of CustomGradientEmbedGrad.
struct GradAttributes {
  Axis axis;
  Role wrt = kX;
  bool zero_x = false;
};

inline absl::Status GetGradAttributes(tensorflow::OpKernelConstruction* context, GradAttributes* attributes) {
  TF_RETURN_IF_ERROR(GetAxis(context, &attributes->axis));
  TF_RETURN_IF_ERROR(context->GetAttr("zero_x", &attributes->zero_x));
  std::string wrt;
  TF_RETURN_IF_ERROR(context->GetAttr("wrt", &wrt));
  attributes->wrt = RoleFromName(wrt);
  if (attributes->zero_x && attributes->wrt == kX) return absl::InvalidArgumentError(ZeroXWithoutX(EmbedGradNames()));
  return absl::OkStatus();
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_KERNELS_KERNEL_SHAPES_H_
