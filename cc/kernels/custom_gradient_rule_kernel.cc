#include "tensorflow/core/framework/op_kernel.h"

namespace tf_cg_ops {
namespace {

// Hands the results on. It reads no element, so one kernel serves every dtype.
class CustomGradientRuleKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
  }

  // Cheap enough to run where its inputs were computed.
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("CustomGradientRule").Device(tensorflow::DEVICE_CPU), CustomGradientRuleKernel);

}  // namespace
}  // namespace tf_cg_ops
