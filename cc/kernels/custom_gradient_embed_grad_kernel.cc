#include "cc/kernels/embed_grad_plan.h"
#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/alignment.h"
#include "cc/lib/block_kernels.h"
#include "cc/lib/contraction.h"
#include "cc/lib/contraction_plan.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

template <typename T>
class CustomGradientEmbedGradKernel : public OpKernel {
 public:
  explicit CustomGradientEmbedGradKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetGradAttributes(context, &attributes_));
  }

  void Compute(OpKernelContext* context) override {
    EmbedGradShapes shapes;
    OP_REQUIRES_OK(context, AlignInputs(context, attributes_, &shapes));
    const ContractionPlan plan = PlanContraction(shapes, attributes_);
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, AllocateOut(context, plan, shapes.out, &out));

    // Unlike the thread pool's methods, Shard has the same interface in every version of TensorFlow.
    const auto* const threads = context->device()->tensorflow_cpu_worker_threads();
    const ParallelFor parallel_for = [threads](int64_t total, int64_t cost, const auto& work) {
      tensorflow::Shard(threads->num_threads, threads->workers, total, cost, work);
    };
    const auto* l = static_cast<const Element*>(context->input(0).data());
    const auto* r = static_cast<const Element*>(context->input(1).data());
    auto* o = static_cast<Element*>(out->data());
    Contract(plan, /*conjugate=*/attributes_.wrt != kFx, l, r, o, BestInstructionSet(), parallel_for);
  }

 private:
  using Element = typename ElementOf<T>::Type;

  GradAttributes attributes_;
};

#define REGISTER_CPU(T)                                                                                          \
  REGISTER_KERNEL_BUILDER(Name("CustomGradientEmbedGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
                          CustomGradientEmbedGradKernel<T>);
TF_CG_OPS_CALL_FOR_EACH_TYPE(REGISTER_CPU)
#undef REGISTER_CPU

}  // namespace
}  // namespace tf_cg_ops
