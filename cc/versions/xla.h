// The headers for XLA kernels, in TensorFlow 2.19 to 2.22.

#ifndef TF_CG_OPS_CC_VERSIONS_XLA_H_
#define TF_CG_OPS_CC_VERSIONS_XLA_H_

#include "cc/versions/tma_metadata.h"  // Before the others.

// xla_op_kernel.h includes the headers of XLA's compiler and clients, which take as long to compile as everything else,
// but only uses pointers to their classes. Defining their include guards skips them. If a version of TensorFlow names a
// guard differently, the header is included after all.
#define TENSORFLOW_COMPILER_TF2XLA_XLA_COMPILER_H_
#define TENSORFLOW_COMPILER_TF2XLA_XLA_CONTEXT_H_
#define XLA_CLIENT_CLIENT_H_
namespace tensorflow {
class XlaCompiler;
class XlaContext;
}  // namespace tensorflow
namespace xla {
class Client;
}  // namespace xla

#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/math.h"
#include "xla/hlo/builder/xla_builder.h"

#endif  // TF_CG_OPS_CC_VERSIONS_XLA_H_
