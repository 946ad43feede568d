#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/alignment.h"
#include "cc/lib/operand_names.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::TensorShape;

// Checks the shapes and forwards fx. It reads no elements, so one kernel serves all dtypes.
class CustomGradientEmbedKernel : public OpKernel {
 public:
  explicit CustomGradientEmbedKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetAxis(context, &axis_));
  }

  void Compute(OpKernelContext* context) override {
    const int pairs = (context->num_inputs() - 1) / 2;
    const TensorShape& fx = context->input(0).shape();
    for (int i = 0; i < pairs; ++i) {
      const TensorShape& gx = context->input(1 + i).shape();
      const TensorShape& x = context->input(1 + pairs + i).shape();
      // By far the most frequent case, and always correct.
      if (!axis_.all && axis_.dims.empty() && fx == gx && fx == x) continue;
      const std::string error =
          Align({ToDims(fx), ToDims(gx), ToDims(x)}, axis_, EmbedNames(i, pairs), /*alignment=*/nullptr);
      OP_REQUIRES(context, error.empty(), absl::InvalidArgumentError(error));
    }
    context->set_output(0, context->input(0));
  }

 private:
  Axis axis_;
};

REGISTER_KERNEL_BUILDER(Name("CustomGradientEmbed").Device(tensorflow::DEVICE_CPU), CustomGradientEmbedKernel);
REGISTER_KERNEL_BUILDER(Name("CustomGradientEmbed").Device(tensorflow::DEVICE_GPU), CustomGradientEmbedKernel);

}  // namespace
}  // namespace tf_cg_ops
