// The library's arithmetic behind a C function, for tests that have to choose the vectors, the addresses and how the
// work is cut, none of which TensorFlow lets them choose.

#include "cc/lib/contraction.h"

#include <complex>
#include <cstdint>
#include <functional>
#include <string>

#include "cc/lib/alignment.h"
#include "cc/lib/block_kernels.h"
#include "cc/lib/contraction_plan.h"

namespace {

using tf_cg_ops::Dims;

struct Request {
  tf_cg_ops::ContractionPlan plan;
  bool conjugate;
  const void* lhs;
  const void* rhs;
  void* out;
  tf_cg_ops::Vectors vectors;
  int64_t pieces;
};

template <typename T>
void Run(const Request& request) {
  const auto in_pieces = [&](int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& work) {
    for (int64_t i = 0; i < request.pieces; ++i) {
      const int64_t begin = total * i / request.pieces, end = total * (i + 1) / request.pieces;
      if (begin < end) work(begin, end);
    }
  };
  tf_cg_ops::Contract(request.plan, request.conjugate, static_cast<const T*>(request.lhs),
                      static_cast<const T*>(request.rhs), static_cast<T*>(request.out), request.vectors, in_pieces);
}

}  // namespace

extern "C" {

int widest_vectors() { return static_cast<int>(tf_cg_ops::WidestVectors()); }

// The gradient of the form by the operand `wrt`. `shapes` has a row of `rank` numbers for each of fx, gx and x, of any
// shapes that broadcast. Returns 0 if that went well.
int contract(const char* dtype, int rank, const int64_t* shapes, int wrt, const void* lhs, const void* rhs, void* out,
             int vectors, int64_t pieces) {
  tf_cg_ops::Alignment alignment;
  alignment.joint.assign(rank, 1);
  for (int role = 0; role < tf_cg_ops::kNumRoles; ++role) {
    Dims& dims = alignment.operands[role];
    dims.assign(shapes + role * rank, shapes + (role + 1) * rank);
    for (int i = 0; i < rank; ++i) {
      if (dims[i] != 1) alignment.joint[i] = dims[i];
    }
  }
  const auto role = static_cast<tf_cg_ops::Role>(wrt);
  const Request request = {PlanContraction(alignment, role),
                           role != tf_cg_ops::kFx,
                           lhs,
                           rhs,
                           out,
                           static_cast<tf_cg_ops::Vectors>(vectors),
                           pieces};
  const std::string name = dtype;
  if (name == "float16") {
    Run<tf_cg_ops::Half>(request);
  } else if (name == "bfloat16") {
    Run<tf_cg_ops::BFloat16>(request);
  } else if (name == "float32") {
    Run<float>(request);
  } else if (name == "float64") {
    Run<double>(request);
  } else if (name == "complex64") {
    Run<std::complex<float>>(request);
  } else if (name == "complex128") {
    Run<std::complex<double>>(request);
  } else {
    return 2;
  }
  return 0;
}

}  // extern "C"
