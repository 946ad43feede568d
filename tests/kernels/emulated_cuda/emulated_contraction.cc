// The CUDA kernels on the emulated CUDA, as C functions.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "cuda/contraction.h"
#include "cuda/indexing.h"
#include "cuda/schedule.h"
#include "tests/kernels/emulated_cuda/contraction_request.h"
#include "tests/kernels/emulated_cuda/cuda_runtime.h"

extern "C" {

struct EmulatedSchedule {
  int kernel;
  bool has_narrow_indices;
  bool is_vectorized;
  bool rhs_moves;
  bool swaps_operands;
  int64_t parts;  // Of each sum.
};

void emulated_set_order(uint64_t seed, unsigned max_blocks) { emulated_cuda::SetOrder(seed, max_blocks); }

int64_t emulated_divide(int64_t n, int64_t divisor) { return tf_cg_ops::cuda::Divisor<int64_t>(divisor).Divide(n); }

// Divides by a 32-bit divisor.
uint32_t emulated_divide_narrow(uint32_t n, uint32_t divisor) {
  return tf_cg_ops::cuda::Divisor<uint32_t>(divisor).Divide(n);
}

// The schedule of a plan for operands and out at these addresses.
void emulated_schedule(int element_bytes, int rank, const int64_t* shapes, int wrt, const void* lhs, const void* rhs,
                       const void* out, EmulatedSchedule* found) {
  const auto plan = tf_cg_ops::PlanFor(rank, shapes, static_cast<tf_cg_ops::Role>(wrt));
  const auto schedule = tf_cg_ops::cuda::MakeSchedule(plan, element_bytes, false, lhs, rhs, out);
  *found = {static_cast<int>(schedule.kernel), schedule.has_narrow_indices, schedule.is_vectorized, schedule.rhs_moves,
            schedule.swaps_operands,           schedule.layout.parts};
}

// Returns 0 on success.
int emulated_contract(const char* dtype, int rank, const int64_t* shapes, int wrt, const void* lhs, const void* rhs,
                      void* out) {
  const auto role = static_cast<tf_cg_ops::Role>(wrt);
  const auto plan = tf_cg_ops::PlanFor(rank, shapes, role);
  std::string error = "unknown dtype";
  tf_cg_ops::WithElement(dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    error = tf_cg_ops::cuda::WhyMisaligned("lhs", static_cast<const T*>(lhs)) +
            tf_cg_ops::cuda::WhyMisaligned("rhs", static_cast<const T*>(rhs)) +
            tf_cg_ops::cuda::WhyMisaligned("out", static_cast<const T*>(out));
    if (!error.empty()) return;
    const int64_t bytes = tf_cg_ops::cuda::ScratchBytes<T>(plan);
    void* scratch = nullptr;
    // Writes beyond its end are detected.
    constexpr int kGuard = 4096;
    if (bytes > 0) {
      cudaMallocBytes(&scratch, bytes + kGuard);
      cudaMemset(scratch, 0xa5, bytes + kGuard);
    }
    error = tf_cg_ops::cuda::Contract(plan, role != tf_cg_ops::kFx, static_cast<const T*>(lhs),
                                      static_cast<const T*>(rhs), static_cast<T*>(out), scratch, nullptr);
    for (int64_t i = bytes; scratch != nullptr && i < bytes + kGuard; ++i) {
      if (static_cast<unsigned char*>(scratch)[i] != 0xa5) error = "written beyond the scratch memory";
    }
    cudaFree(scratch);
  });
  if (!error.empty()) std::fprintf(stderr, "%s\n", error.c_str());
  return error.empty() ? 0 : 1;
}

}  // extern "C"
