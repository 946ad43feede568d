// The library's arithmetic behind a C function, for tests that have to choose the vectors, the addresses and how the
// work is cut, none of which TensorFlow lets them choose.

#include "cc/lib/contraction.h"

#include <cstdint>
#include <functional>
#include <type_traits>

#include "cc/lib/block_kernels.h"
#include "tests/support/contraction_request.h"

extern "C" {

int widest_vectors() { return static_cast<int>(tf_cg_ops::WidestVectors()); }

// Returns 0 if that went well.
int contract(const char* dtype, int rank, const int64_t* shapes, int wrt, const void* lhs, const void* rhs, void* out,
             int vectors, int64_t pieces) {
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
                        static_cast<T*>(out), static_cast<tf_cg_ops::Vectors>(vectors), in_pieces);
  });
  return known ? 0 : 2;
}

}  // extern "C"
