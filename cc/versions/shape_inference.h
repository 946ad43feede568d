// tensorflow/core/framework/shape_inference.h, in TensorFlow 2.19 to 2.22.

#ifndef TF_CG_OPS_CC_VERSIONS_SHAPE_INFERENCE_H_
#define TF_CG_OPS_CC_VERSIONS_SHAPE_INFERENCE_H_

#include "absl/base/config.h"
#include "tensorflow/core/framework/shape_inference.h"

// The header has checks that log an int or an unsigned long, with two instances of a template that TensorFlow's library
// exports. Before 2.21 it exports them under Clang 18's names, which other compilers do not look for. The macros with
// TensorFlow's version are empty since 2.20, but absl has one.
#if ABSL_LTS_RELEASE_VERSION < 20250814
#include "absl/log/internal/log_message.h"

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace log_internal {
template LogMessage& LogMessage::operator<<(const int&);
template LogMessage& LogMessage::operator<<(const unsigned long&);  // NOLINT(runtime/int)
}  // namespace log_internal
ABSL_NAMESPACE_END
}  // namespace absl
#endif

#endif  // TF_CG_OPS_CC_VERSIONS_SHAPE_INFERENCE_H_
