// StreamExecutor's header, in TensorFlow 2.18 to 2.21. This folder has all that the sources know of these versions.

#ifndef TF_CG_OPS_CC_VERSIONS_STREAM_EXECUTOR_H_
#define TF_CG_OPS_CC_VERSIONS_STREAM_EXECUTOR_H_

// In the wheels of 2.18 and 2.19 this defines TF_MINOR_VERSION. In later ones no header tells the version.
#include "tensorflow/core/public/version.h"

// The wheel of 2.19 lacks two headers of LLVM that tma_metadata.h includes. StreamExecutor takes that header's class by
// value in one inline virtual function, so it has to be complete. This is a second definition of a class of TensorFlow,
// which the language forbids; no other way was found, since a copy of LLVM's headers would be one, too. It does no
// harm: no code can make, copy or pass an object of it, so its layout is never used, and the vtable that holds the
// function is emitted where TensorFlow defines the class's key function, not here.
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
