// StreamExecutor's streams, in TensorFlow 2.19 to 2.22.

#ifndef TF_CG_OPS_CC_VERSIONS_STREAM_EXECUTOR_H_
#define TF_CG_OPS_CC_VERSIONS_STREAM_EXECUTOR_H_

#include "cc/versions/tma_metadata.h"  // Before the others.
#include "xla/stream_executor/stream.h"

#endif  // TF_CG_OPS_CC_VERSIONS_STREAM_EXECUTOR_H_
