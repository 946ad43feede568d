// The block kernels of each instruction set. Each set has its own source, which selects the instructions with a pragma,
// not on the command line: the linker keeps one copy of each inline function of the standard library, and that copy has
// to run everywhere.

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
