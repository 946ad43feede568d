#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/live_tokens.h"
#include "cc/lib/op_names.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// The contents of a token tensor. It stays on the host, and is never written to a file or sent to another process.
struct TokenVariant {
  std::shared_ptr<Token> token;

  std::string TypeName() const { return "tf_cg_ops::Token"; }
  std::string DebugString() const { return TypeName(); }
  void Encode(tensorflow::VariantTensorData* data) const { data->set_type_name(TypeName()); }
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

class CustomGradientTokenKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TensorShape shape;
    OP_REQUIRES_OK(context, ShapeFromTensor(context->input(0), kTokenOp, &shape));
    Tensor* ids = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &ids));
    TokenVariant variant{std::make_shared<Token>(shape.num_elements())};
    auto flat = ids->flat<int64_t>();
    std::iota(flat.data(), flat.data() + flat.size(), variant.token->first_id());
    Tensor token(tensorflow::DT_VARIANT, {});
    token.scalar<tensorflow::Variant>()() = std::move(variant);
    context->set_output(0, token);
  }

  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("CustomGradientToken").Device(tensorflow::DEVICE_CPU), CustomGradientTokenKernel);

absl::Status CopyToken(const TokenVariant& from, TokenVariant* to,
                       const tensorflow::UnaryVariantOpRegistry::AsyncTensorDeviceCopyFn&) {
  *to = from;
  return absl::OkStatus();
}

// TensorFlow makes zeros for every variant that a function returns to its gradient, but never reads them.
absl::Status NoToken(OpKernelContext*, const TokenVariant&, TokenVariant* zero) {
  *zero = TokenVariant();
  return absl::OkStatus();
}

}  // namespace
}  // namespace tf_cg_ops

// The macros use names as if they were inside the namespace tensorflow.
namespace tensorflow {

INTERNAL_REGISTER_UNARY_VARIANT_DEVICE_COPY_FUNCTION(tf_cg_ops::TokenVariant,
                                                     VariantDeviceCopyDirection::HOST_TO_DEVICE, tf_cg_ops::CopyToken);
INTERNAL_REGISTER_UNARY_VARIANT_DEVICE_COPY_FUNCTION(tf_cg_ops::TokenVariant,
                                                     VariantDeviceCopyDirection::DEVICE_TO_HOST, tf_cg_ops::CopyToken);
INTERNAL_REGISTER_UNARY_VARIANT_DEVICE_COPY_FUNCTION(tf_cg_ops::TokenVariant,
                                                     VariantDeviceCopyDirection::DEVICE_TO_DEVICE,
                                                     tf_cg_ops::CopyToken);
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(ZEROS_LIKE_VARIANT_UNARY_OP, DEVICE_CPU, tf_cg_ops::TokenVariant,
                                         tf_cg_ops::NoToken);
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(ZEROS_LIKE_VARIANT_UNARY_OP, DEVICE_GPU, tf_cg_ops::TokenVariant,
                                         tf_cg_ops::NoToken);

}  // namespace tensorflow
