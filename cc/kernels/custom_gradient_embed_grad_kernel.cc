#include <string>

#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/alignment.h"
#include "cc/lib/arithmetic.h"
#include "cc/lib/block_kernels.h"
#include "cc/lib/contraction.h"
#include "cc/lib/contraction_plan.h"
#include "cc/lib/messages.h"
#include "cc/lib/operand_names.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// The type of cc/lib that has the layout of TensorFlow's T.
template <typename T>
struct ElementOf {
  using Type = T;
};
template <>
struct ElementOf<Eigen::half> {
  using Type = Half;
};
template <>
struct ElementOf<Eigen::bfloat16> {
  using Type = BFloat16;
};

template <typename T>
class CustomGradientEmbedGradKernel : public OpKernel {
 public:
  explicit CustomGradientEmbedGradKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetGradAttributes(context, &attributes_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& lhs = context->input(0);
    const Tensor& rhs = context->input(1);
    TensorShape out_shape;
    OP_REQUIRES_OK(context, ShapeFromTensor(context->input(2), EmbedGradNames().api, &out_shape));
    ContractionPlan plan;
    if (attributes_.axis.dims.empty() && !attributes_.axis.all && lhs.shape() == rhs.shape() &&
        lhs.shape() == out_shape && out_shape.num_elements() > 0) {
      // By far the most frequent case, and always right.
      plan = PlanElementwise(out_shape.num_elements());
    } else {
      Alignment alignment;
      const std::string error =
          Align(InRoleOrder(attributes_.wrt, ToDims(lhs.shape()), ToDims(rhs.shape()), ToDims(out_shape)),
                attributes_.axis, EmbedGradNames(), &alignment);
      OP_REQUIRES(context, error.empty(), absl::InvalidArgumentError(error));
      plan = PlanContraction(alignment, attributes_.wrt);
    }
    if (attributes_.zero_x) plan.reduced_size = 0;
    std::vector<int> reusable;
    if (plan.LhsIsElementwise()) reusable.push_back(0);
    if (plan.RhsIsElementwise()) reusable.push_back(1);
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(reusable, 0, out_shape, &out));

    // Shard is the same in every version of TensorFlow; the thread pool's own functions come and go.
    const auto* const threads = context->device()->tensorflow_cpu_worker_threads();
    const ParallelFor parallel_for = [threads](int64_t total, int64_t cost, const auto& work) {
      tensorflow::Shard(threads->num_threads, threads->workers, total, cost, work);
    };
    const auto* l = static_cast<const Element*>(lhs.data());
    const auto* r = static_cast<const Element*>(rhs.data());
    auto* o = static_cast<Element*>(out->data());
    Contract(plan, /*conjugate=*/attributes_.wrt != kFx, l, r, o, WidestVectors(), parallel_for);
  }

 private:
  using Element = typename ElementOf<T>::Type;

  GradAttributes attributes_;
};

#define REGISTER_CPU(T)                                                                                          \
  REGISTER_KERNEL_BUILDER(Name("CustomGradientEmbedGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
                          CustomGradientEmbedGradKernel<T>)
REGISTER_CPU(Eigen::half);
REGISTER_CPU(Eigen::bfloat16);
REGISTER_CPU(float);
REGISTER_CPU(double);
REGISTER_CPU(tensorflow::complex64);
REGISTER_CPU(tensorflow::complex128);
#undef REGISTER_CPU

}  // namespace
}  // namespace tf_cg_ops
