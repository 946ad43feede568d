#include <cstdint>
#include <string>

#include "cc/kernels/composed_embed_grad.h"
#include "cc/kernels/embed_grad_plan.h"
#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/contraction_plan.h"
#include "cc/versions/stream_executor.h"
#include "cuda/contraction.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Whether this library's CUDA kernels can run. If not, logs the reason, once per process.
bool HasCudaKernels() {
  static const bool has_them = [] {
    const std::string& why = cuda::WhyUnusable();
    if (!why.empty()) LOG(INFO) << "tf_cg_ops: built-in ops compute gradients on GPUs, because " << why << ".";
    return why.empty();
  }();
  return has_them;
}

// Computes with this library's CUDA kernels if they can run, otherwise with built-in ops.
template <typename T>
class CustomGradientEmbedGradGpuKernel : public OpKernel {
 public:
  explicit CustomGradientEmbedGradGpuKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetGradAttributes(context, &attributes_));
    const bool is_labelled = context->def().attr().count("_kernel") > 0;
    uses_cuda_ = !is_labelled && context->device_type() == tensorflow::DEVICE_GPU && HasCudaKernels();
  }

  void Compute(OpKernelContext* context) override {
    EmbedGradShapes shapes;
    OP_REQUIRES_OK(context, AlignInputs(context, attributes_, &shapes));
    OP_REQUIRES_OK(context, uses_cuda_ ? ContractByCuda(context, shapes)
                                       : ContractByBuiltInOps(context, ComposedTypesOf<T>(), attributes_, shapes));
  }

 private:
  using Element = typename ElementOf<T>::Type;

  absl::Status ContractByCuda(OpKernelContext* context, const EmbedGradShapes& shapes) const {
    const ContractionPlan plan = PlanContraction(shapes, attributes_);
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(AllocateOut(context, plan, shapes.out, &out));
    // Whoever gets this memory next is enqueued on the same stream, after the kernel that reads the sums.
    Tensor scratch;
    const int64_t scratch_bytes = cuda::ScratchBytes<Element>(plan);
    if (scratch_bytes > 0) {
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT8, TensorShape({scratch_bytes}), &scratch));
    }
    const auto* const lhs = static_cast<const Element*>(context->input(0).data());
    const auto* const rhs = static_cast<const Element*>(context->input(1).data());
    for (const std::string& why :
         {cuda::WhyMisaligned("the first input", lhs), cuda::WhyMisaligned("the second input", rhs)}) {
      if (!why.empty()) return absl::InvalidArgumentError("CustomGradientEmbedGrad: " + why);
    }
    void* const stream = context->op_device_context()->stream()->platform_specific_handle().stream;
    const std::string error =
        cuda::Contract(plan, /*conjugate=*/attributes_.wrt != kFx, lhs, rhs, static_cast<Element*>(out->data()),
                       scratch_bytes > 0 ? scratch.data() : nullptr, static_cast<cuda::Stream>(stream));
    return error.empty() ? absl::OkStatus() : absl::InternalError(error);
  }

  GradAttributes attributes_;
  bool uses_cuda_ = false;
};

// With the label, tests choose built-in ops on any device.
#define REGISTER(T)                                                                                              \
  REGISTER_KERNEL_BUILDER(                                                                                       \
      Name("CustomGradientEmbedGrad").Device(tensorflow::DEVICE_GPU).TypeConstraint<T>("T").HostMemory("shape"), \
      CustomGradientEmbedGradGpuKernel<T>);                                                                      \
  REGISTER_KERNEL_BUILDER(Name("CustomGradientEmbedGrad")                                                        \
                              .Device(tensorflow::DEVICE_GPU)                                                    \
                              .TypeConstraint<T>("T")                                                            \
                              .HostMemory("shape")                                                               \
                              .Label("built_in"),                                                                \
                          CustomGradientEmbedGradGpuKernel<T>);                                                  \
  REGISTER_KERNEL_BUILDER(                                                                                       \
      Name("CustomGradientEmbedGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T").Label("built_in"),   \
      CustomGradientEmbedGradGpuKernel<T>);
TF_CG_OPS_CALL_FOR_EACH_TYPE(REGISTER)
#undef REGISTER

}  // namespace
}  // namespace tf_cg_ops

// For tf_cg_ops.sysconfig.gpu_kernels: why the CUDA kernels cannot run in this process; empty if they can.
extern "C" const char* tf_cg_ops_why_no_gpu_kernels() { return tf_cg_ops::cuda::WhyUnusable().c_str(); }
