#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace tf_cg_ops {
namespace {

// Hands the results on: the rule has been inlined wherever a gradient was asked for.
class CustomGradientRuleXlaOp : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tensorflow::XlaOpKernelContext* context) override {
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, context->Input(i));
  }
};

// Captures may be resources, which only the rule reads.
REGISTER_XLA_OP(Name("CustomGradientRule").AllowResourceTypes().AllowVariantTypes(), CustomGradientRuleXlaOp);

}  // namespace
}  // namespace tf_cg_ops
