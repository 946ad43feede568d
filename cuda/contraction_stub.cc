// Replaces the CUDA kernels in a build without nvcc.

#include <complex>

#include "cc/lib/arithmetic.h"
#include "cuda/contraction.h"

namespace tf_cg_ops::cuda {

const std::string& WhyUnusable() {
  static const auto* const why = new std::string("the library was built without nvcc");
  return *why;
}

template <typename T>
int64_t ScratchBytes(const ContractionPlan&) {
  return 0;
}

template <typename T>
std::string Contract(const ContractionPlan&, bool, const T*, const T*, T*, void*, Stream) {
  return WhyUnusable();
}

#define INSTANTIATE(T)                                      \
  template int64_t ScratchBytes<T>(const ContractionPlan&); \
  template std::string Contract<T>(const ContractionPlan&, bool, const T*, const T*, T*, void*, Stream);
TF_CG_OPS_FOR_EACH_ELEMENT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace tf_cg_ops::cuda
