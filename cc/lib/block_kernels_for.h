// The block kernels of each instruction set. Each set has a source of its own, which names its instructions by a pragma
// and not on the command line: inline functions of the standard library have to run everywhere, and the linker keeps
// one copy of each.

#ifndef TF_CG_OPS_CC_LIB_BLOCK_KERNELS_FOR_H_
#define TF_CG_OPS_CC_LIB_BLOCK_KERNELS_FOR_H_

#include <algorithm>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "cc/lib/block_kernels.h"

namespace tf_cg_ops {

namespace baseline {
template <typename T>
const BlockKernels<T>& Kernels();
}
#if defined(__x86_64__)
namespace avx2 {
template <typename T>
const BlockKernels<T>& Kernels();
}
namespace avx512 {
template <typename T>
const BlockKernels<T>& Kernels();
}
#endif

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_BLOCK_KERNELS_FOR_H_
