#include "tensorflow/core/common_runtime/input_colocation_exemption_registry.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_cg_ops {
namespace {

// Forwards its first inputs. It reads no elements, so one kernel serves both ops, all dtypes and all devices.
class ForwardKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
  }

  // So cheap that the thread that computed the inputs runs it.
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("CustomGradientRule").Device(tensorflow::DEVICE_CPU), ForwardKernel);
REGISTER_KERNEL_BUILDER(Name("CustomGradientBarrier").Device(tensorflow::DEVICE_CPU), ForwardKernel);

// On a GPU, inputs and outputs are in device memory, even int32; TensorFlow itself keeps strings and resource handles
// on the host. TensorFlow's IdentityN does the same.
REGISTER_KERNEL_BUILDER(Name("CustomGradientRule").Device(tensorflow::DEVICE_GPU), ForwardKernel);
REGISTER_KERNEL_BUILDER(Name("CustomGradientBarrier").Device(tensorflow::DEVICE_GPU), ForwardKernel);

// The kernel forwards resource handles without using them, so the resources can be on several devices.
using ::tensorflow::input_colocation_exemption_registration::InputColocationExemptionRegistration;
const InputColocationExemptionRegistration exempt_rule("CustomGradientRule");
const InputColocationExemptionRegistration exempt_barrier("CustomGradientBarrier");

}  // namespace
}  // namespace tf_cg_ops
