// CustomGradientEmbedGrad by operations of TensorFlow itself, on the device of the kernel that asks for it.

#ifndef TF_CG_OPS_CC_KERNELS_STOCK_EMBED_GRAD_H_
#define TF_CG_OPS_CC_KERNELS_STOCK_EMBED_GRAD_H_

#include <complex>
#include <type_traits>

#include "cc/kernels/embed_grad_plan.h"
#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/arithmetic.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_cg_ops {

// The types of the operands, of a product that will be summed up, and of the sum.
struct StockTypes {
  tensorflow::DataType operand;
  tensorflow::DataType sum;
};

// As cc/lib/arithmetic.h has them.
template <typename T>
StockTypes StockTypesOf() {
  using Kept = Arithmetic<typename ElementOf<T>::Type>;
  const auto type_of = [](auto real) {
    using Real = decltype(real);
    using Number = std::conditional_t<Kept::kReals == 2, std::complex<Real>, Real>;
    return tensorflow::DataTypeToEnum<Number>::value;
  };
  return {tensorflow::DataTypeToEnum<T>::value, type_of(typename Kept::Sum())};
}

// Sets the output. The work is done, or enqueued on a GPU, when it returns, all of it by the thread that calls it: it
// waits for no other thread, so that it cannot wait for ever.
absl::Status ContractByStockOps(tensorflow::OpKernelContext* context, const StockTypes& types,
                                const GradAttributes& attributes, const EmbedGradShapes& shapes);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_KERNELS_STOCK_EMBED_GRAD_H_
