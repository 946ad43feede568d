// A substitute for XLA's tma_metadata.h in TensorFlow 2.19. Include it before any header of XLA or StreamExecutor. The
// folder cc/versions has everything in which TensorFlow 2.19 to 2.22 differ.

#ifndef TF_CG_OPS_CC_VERSIONS_TMA_METADATA_H_
#define TF_CG_OPS_CC_VERSIONS_TMA_METADATA_H_

// In the wheel of 2.19 this defines TF_MINOR_VERSION. Later wheels have the version in no header.
#include "tensorflow/core/public/version.h"

// The wheel of 2.19 lacks two headers of LLVM that tma_metadata.h includes. StreamExecutor takes that header's class by
// value in one inline virtual function, so the class has to be complete. This second definition of a class of
// TensorFlow violates the one-definition rule; a copy of LLVM's headers would, too. It is harmless: no code can make,
// copy or pass an object of the class, so its layout is never used, and the vtable that holds the function is emitted
// where TensorFlow defines the class's key function, not here.
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

#endif  // TF_CG_OPS_CC_VERSIONS_TMA_METADATA_H_
