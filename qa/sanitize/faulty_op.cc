// An op with faults, which tests that the sanitizers detect faults of op libraries inside of TensorFlow.

#include <algorithm>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_cg_ops {
namespace {

// Copies its input through the heap, and `beyond` more numbers; leaks memory `leaks` times.
class FaultyKernel : public tensorflow::OpKernel {
 public:
  explicit FaultyKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("beyond", &beyond_));
    OP_REQUIRES_OK(context, context->GetAttr("leaks", &leaks_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const auto in = context->input(0).flat<float>();
    const std::vector<float> copy(in.data(), in.data() + in.size());
    for (int i = 0; i < leaks_; ++i) lost_ = new float[16];
    tensorflow::Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({in.size() + beyond_}), &out));
    std::copy_n(copy.data(), in.size() + beyond_, out->flat<float>().data());
  }

 private:
  int beyond_;
  int leaks_;
  // Only the last allocation is reachable.
  float* lost_ = nullptr;
};

REGISTER_OP("Faulty").Input("numbers: float").Output("copy: float").Attr("beyond: int = 0").Attr("leaks: int = 0");
REGISTER_KERNEL_BUILDER(Name("Faulty").Device(tensorflow::DEVICE_CPU), FaultyKernel);

}  // namespace
}  // namespace tf_cg_ops
