#include "tensorflow/core/framework/op_kernel.h"

namespace tf_cg_ops {
namespace {

// Hands its first inputs on. It reads no element, so one kernel serves every dtype and both ops.
class HandOnKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
  }

  // Cheap enough to run where its inputs were computed.
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("CustomGradientRule").Device(tensorflow::DEVICE_CPU), HandOnKernel);
REGISTER_KERNEL_BUILDER(Name("CustomGradientBarrier").Device(tensorflow::DEVICE_CPU), HandOnKernel);

}  // namespace
}  // namespace tf_cg_ops
