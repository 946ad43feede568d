#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "xla/hlo/builder/xla_builder.h"

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

// Keeps XLA from merging what is computed from the outputs with what is computed from the values, for as long as the
// backend keeps the barrier.
class CustomGradientBarrierXlaOp : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tensorflow::XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> operands;
    for (int i = 0; i < context->num_inputs(); ++i) operands.push_back(context->Input(i));
    const xla::XlaOp barrier = xla::OptimizationBarrier(xla::Tuple(context->builder(), operands));
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, xla::GetTupleElement(barrier, i));
  }
};

REGISTER_XLA_OP(Name("CustomGradientBarrier"), CustomGradientBarrierXlaOp);

// Captures may be resources, which only the rule reads.
REGISTER_XLA_OP(Name("CustomGradientRule").AllowResourceTypes().AllowVariantTypes(), CustomGradientRuleXlaOp);

}  // namespace
}  // namespace tf_cg_ops
