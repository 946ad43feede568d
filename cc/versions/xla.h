// The headers for XLA kernels, in TensorFlow 2.18 to 2.21.

#ifndef TF_CG_OPS_CC_VERSIONS_XLA_H_
#define TF_CG_OPS_CC_VERSIONS_XLA_H_

// First: the others include it, too.
#include "cc/versions/stream_executor.h"
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

#endif  // TF_CG_OPS_CC_VERSIONS_XLA_H_
