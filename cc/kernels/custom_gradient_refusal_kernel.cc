#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_cg_ops {
namespace {

class CustomGradientRefusalKernel : public tensorflow::OpKernel {
 public:
  explicit CustomGradientRefusalKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("message", &message_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    context->SetStatus(absl::UnimplementedError(message_));
  }

 private:
  std::string message_;
};

REGISTER_KERNEL_BUILDER(Name("CustomGradientRefusal").Device(tensorflow::DEVICE_CPU), CustomGradientRefusalKernel);
REGISTER_KERNEL_BUILDER(Name("CustomGradientRefusal").Device(tensorflow::DEVICE_GPU), CustomGradientRefusalKernel);

}  // namespace
}  // namespace tf_cg_ops
