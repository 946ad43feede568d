// The arguments of a contraction in C, for tests with and without a GPU.

#ifndef TF_CG_OPS_TESTS_SUPPORT_CONTRACTION_REQUEST_H_
#define TF_CG_OPS_TESTS_SUPPORT_CONTRACTION_REQUEST_H_

#include <complex>
#include <cstdint>
#include <string>

#include "cc/lib/alignment.h"
#include "cc/lib/arithmetic.h"
#include "cc/lib/contraction_plan.h"

namespace tf_cg_ops {

// The plan for the gradient with respect to `wrt`. `shapes` has a row of `rank` numbers for each of fx, gx and x, which
// must broadcast.
inline ContractionPlan PlanFor(int rank, const int64_t* shapes, Role wrt) {
  Alignment alignment;
  alignment.iteration_space.assign(rank, 1);
  for (int role = 0; role < kNumRoles; ++role) {
    Dims& dims = alignment.operands[role];
    dims.assign(shapes + role * rank, shapes + (role + 1) * rank);
    for (int i = 0; i < rank; ++i) {
      if (dims[i] != 1) alignment.iteration_space[i] = dims[i];
    }
  }
  return PlanContraction(alignment, wrt);
}

// Calls run with a null pointer to the element type that NumPy calls `dtype`. Returns whether there is such a type.
template <typename F>
bool WithElement(const std::string& dtype, const F& run) {
  if (dtype == "float16") {
    run(static_cast<Half*>(nullptr));
  } else if (dtype == "bfloat16") {
    run(static_cast<BFloat16*>(nullptr));
  } else if (dtype == "float32") {
    run(static_cast<float*>(nullptr));
  } else if (dtype == "float64") {
    run(static_cast<double*>(nullptr));
  } else if (dtype == "complex64") {
    run(static_cast<std::complex<float>*>(nullptr));
  } else if (dtype == "complex128") {
    run(static_cast<std::complex<double>*>(nullptr));
  } else {
    return false;
  }
  return true;
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_TESTS_SUPPORT_CONTRACTION_REQUEST_H_
