// Computes CustomGradientEmbedGrad with TensorFlow's built-in ops, on the device of the calling kernel.

#ifndef TF_CG_OPS_CC_KERNELS_COMPOSED_EMBED_GRAD_H_
#define TF_CG_OPS_CC_KERNELS_COMPOSED_EMBED_GRAD_H_

#include <complex>
#include <type_traits>

#include "cc/kernels/embed_grad_plan.h"
#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/arithmetic.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_cg_ops {

// The types of the operands and of sums.
struct ComposedTypes {
  tensorflow::DataType operand;
  tensorflow::DataType sum;
};

// The types of cc/lib/arithmetic.h.
template <typename T>
ComposedTypes ComposedTypesOf() {
  using Kept = Arithmetic<typename ElementOf<T>::Type>;
  const auto type_of = [](auto real) {
    using Real = decltype(real);
    using Number = std::conditional_t<Kept::kReals == 2, std::complex<Real>, Real>;
    return tensorflow::DataTypeToEnum<Number>::value;
  };
  return {tensorflow::DataTypeToEnum<T>::value, type_of(typename Kept::Sum())};
}

// Sets the output. When it returns, the work is done, or enqueued on a GPU. The calling thread does all the work
// without waiting for another thread, so it cannot deadlock.
absl::Status ContractByBuiltInOps(tensorflow::OpKernelContext* context, const ComposedTypes& types,
                                  const GradAttributes& attributes, const EmbedGradShapes& shapes);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_KERNELS_COMPOSED_EMBED_GRAD_H_
