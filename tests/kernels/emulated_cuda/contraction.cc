// The library's arithmetic as a C function, for tests that choose the instruction set, the addresses and the pieces of
// the work, which TensorFlow does not let them choose.

#include "cc/lib/contraction.h"

#include <cstdint>
#include <functional>
#include <type_traits>

#include "cc/lib/block_kernels.h"
#include "tests/kernels/emulated_cuda/contraction_request.h"

extern "C" {

int best_instruction_set() { return static_cast<int>(tf_cg_ops::BestInstructionSet()); }

// Returns 0 on success.
int contract(const char* dtype, int rank, const int64_t* shapes, int wrt, const void* lhs, const void* rhs, void* out,
             int instruction_set, int64_t pieces) {
  const auto in_pieces = [pieces](int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& work) {
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t begin = total * i / pieces, end = total * (i + 1) / pieces;
      if (begin < end) work(begin, end);
    }
  };
  const auto role = static_cast<tf_cg_ops::Role>(wrt);
  const auto plan = tf_cg_ops::PlanFor(rank, shapes, role);
  const bool known = tf_cg_ops::WithElement(dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    tf_cg_ops::Contract(plan, role != tf_cg_ops::kFx, static_cast<const T*>(lhs), static_cast<const T*>(rhs),
                        static_cast<T*>(out), static_cast<tf_cg_ops::InstructionSet>(instruction_set), in_pieces);
  });
  return known ? 0 : 2;
}

}  // extern "C"
