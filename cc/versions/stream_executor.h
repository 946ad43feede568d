// StreamExecutor's header, in TensorFlow 2.18 to 2.21. This folder has all that the sources know of these versions.

#ifndef TF_CG_OPS_CC_VERSIONS_STREAM_EXECUTOR_H_
#define TF_CG_OPS_CC_VERSIONS_STREAM_EXECUTOR_H_

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

#include "xla/stream_executor/stream.h"

#endif  // TF_CG_OPS_CC_VERSIONS_STREAM_EXECUTOR_H_
