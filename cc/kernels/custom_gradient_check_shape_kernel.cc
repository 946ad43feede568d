#include <string>

#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/messages.h"
#include "cc/lib/op_names.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::TensorShape;

// Compares shapes and forwards the gradient. It reads no elements, so one kernel serves all dtypes.
class CustomGradientCheckShapeKernel : public OpKernel {
 public:
  explicit CustomGradientCheckShapeKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("message", &message_));
  }

  void Compute(OpKernelContext* context) override {
    const TensorShape& gradient = context->input(0).shape();
    TensorShape expected;
    OP_REQUIRES_OK(context, ShapeFromTensor(context->input(1), kCheckShapeOp, &expected));
    OP_REQUIRES(context, gradient == expected,
                absl::InvalidArgumentError(FillIn(message_, ToDims(expected), ToDims(gradient))));
    context->set_output(0, context->input(0));
  }

  // So cheap that the thread that computed the inputs runs it.
  bool IsExpensive() override { return false; }

 private:
  std::string message_;
};

REGISTER_KERNEL_BUILDER(Name("CustomGradientCheckShape").Device(tensorflow::DEVICE_CPU),
                        CustomGradientCheckShapeKernel);
REGISTER_KERNEL_BUILDER(Name("CustomGradientCheckShape").Device(tensorflow::DEVICE_GPU).HostMemory("shape"),
                        CustomGradientCheckShapeKernel);

}  // namespace
}  // namespace tf_cg_ops
