// TensorFlow's headers for XLA kernels, in TensorFlow 2.18 to 2.21: all that the sources have to know of these
// versions.

#ifndef TF_CG_OPS_CC_XLA_XLA_HEADERS_H_
#define TF_CG_OPS_CC_XLA_XLA_HEADERS_H_

// In the wheels of 2.18 and 2.19 this defines TF_MINOR_VERSION. In later ones no header tells the version.
#include "tensorflow/core/public/version.h"

// The wheel of 2.19 has a header that includes two of LLVM's, which it has not. StreamExecutor takes that header's
// class by value in one virtual function, an inline one, for which the class has to be complete. Here is one in its
// place, and the header is taken for included. No code can make, copy or hand on an object of it: its layout, which is
// another one, is never used.
#if TF_MINOR_VERSION == 19
#define XLA_STREAM_EXECUTOR_GPU_TMA_METADATA_H_
namespace stream_executor::gpu {
class TmaDescriptor {
 public:
  TmaDescriptor() = delete;
  TmaDescriptor(const TmaDescriptor&) = delete;
  TmaDescriptor& operator=(const TmaDescriptor&) = delete;
};
}  // namespace stream_executor::gpu
#endif

#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

// The builder's folder until 2.18, and since.
#if TF_MINOR_VERSION == 18
#include "xla/client/lib/arithmetic.h"
#include "xla/client/lib/constants.h"
#include "xla/client/lib/math.h"
#include "xla/client/xla_builder.h"
#else
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/math.h"
#include "xla/hlo/builder/xla_builder.h"
#endif

#endif  // TF_CG_OPS_CC_XLA_XLA_HEADERS_H_
