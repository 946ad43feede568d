#include "tensorflow/core/common_runtime/input_colocation_exemption_registry.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_cg_ops {
namespace {

// Hands its first inputs on. It reads no element, so one kernel serves every dtype, both ops, and every device.
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

// On a GPU all is in device memory, int32 too, but for what TensorFlow keeps on the host by itself: strings and the
// handles of resources. So does TensorFlow's IdentityN.
REGISTER_KERNEL_BUILDER(Name("CustomGradientRule").Device(tensorflow::DEVICE_GPU), HandOnKernel);
REGISTER_KERNEL_BUILDER(Name("CustomGradientBarrier").Device(tensorflow::DEVICE_GPU), HandOnKernel);

// Handles are handed on and never used here, so that those of resources on several devices may come together.
using ::tensorflow::input_colocation_exemption_registration::InputColocationExemptionRegistration;
const InputColocationExemptionRegistration exempt_rule("CustomGradientRule");
const InputColocationExemptionRegistration exempt_barrier("CustomGradientBarrier");

}  // namespace
}  // namespace tf_cg_ops
