// The cases that are checked and timed: shapes of the operands and of out for a size n.

#ifndef TF_CG_OPS_CUDA_CHECK_FORMS_H_
#define TF_CG_OPS_CUDA_CHECK_FORMS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cc/lib/alignment.h"

namespace tf_cg_ops::cuda::check {

// The shapes of a gradient with respect to x, all of one rank.
struct Shapes {
  Dims lhs;
  Dims rhs;
  Dims out;
};

struct Form {
  std::string name;
  std::function<Shapes(int64_t n)> shapes;
};

// Every path through the kernels, for sizes that do and do not fill vectors, rows and blocks.
inline std::vector<Form> CheckedForms() {
  return {
      {"same", [](int64_t n) { return Shapes{{n}, {n}, {n}}; }},
      {"scalar", [](int64_t n) { return Shapes{{n}, {1}, {n}}; }},
      {"rows by row", [](int64_t n) { return Shapes{{5, n}, {1, n}, {5, n}}; }},
      {"rows by column", [](int64_t n) { return Shapes{{5, 1}, {5, n}, {5, n}}; }},
      {"strided", [](int64_t n) { return Shapes{{3, 1, 2, n}, {3, 4, 1, n}, {3, 4, 2, n}}; }},
      {"outer", [](int64_t n) { return Shapes{{3, 1}, {3, 1}, {3, n}}; }},
      {"sum", [](int64_t n) { return Shapes{{n}, {n}, {1}}; }},
      {"sum of long rows", [](int64_t n) { return Shapes{{2, 40 * n}, {2, 40 * n}, {2, 1}}; }},
      {"sum of rows", [](int64_t n) { return Shapes{{7, n}, {7, n}, {7, 1}}; }},
      {"sum of rows by row", [](int64_t n) { return Shapes{{7, n}, {1, n}, {7, 1}}; }},
      {"sum of columns", [](int64_t n) { return Shapes{{37, n}, {37, n}, {1, n}}; }},
      {"sum of many columns", [](int64_t n) { return Shapes{{10 * n, 3}, {10 * n, 3}, {1, 3}}; }},
      {"sum of columns by column", [](int64_t n) { return Shapes{{n, 1}, {n, 12}, {1, 12}}; }},
      {"sum over 1 and 3", [](int64_t n) { return Shapes{{2, 3, 4, n}, {2, 3, 4, n}, {2, 1, 4, 1}}; }},
      {"sum over 0 and 2", [](int64_t n) { return Shapes{{2, 3, 4, n}, {2, 3, 4, n}, {1, 3, 1, n}}; }},
  };
}

// The usual cases, with about n elements in the largest operand; n is a multiple of 65,536.
inline std::vector<Form> TimedForms() {
  return {
      {"[n] * [n]", [](int64_t n) { return Shapes{{n}, {n}, {n}}; }},
      {"[n] * scalar", [](int64_t n) { return Shapes{{n}, {1}, {n}}; }},
      {"[n, 1024] * [1024]", [](int64_t n) { return Shapes{{n / 1024, 1024}, {1, 1024}, {n / 1024, 1024}}; }},
      {"[n, 1] * [n, 1024]", [](int64_t n) { return Shapes{{n / 1024, 1}, {n / 1024, 1024}, {n / 1024, 1024}}; }},
      {"sum to a scalar", [](int64_t n) { return Shapes{{n}, {n}, {1}}; }},
      {"sum of 64 rows", [](int64_t n) { return Shapes{{64, n / 64}, {64, n / 64}, {64, 1}}; }},
      {"sum of rows of 1024", [](int64_t n) { return Shapes{{n / 1024, 1024}, {n / 1024, 1024}, {n / 1024, 1}}; }},
      {"sum of rows of 32", [](int64_t n) { return Shapes{{n / 32, 32}, {n / 32, 32}, {n / 32, 1}}; }},
      {"sum of 16 columns", [](int64_t n) { return Shapes{{n / 16, 16}, {n / 16, 16}, {1, 16}}; }},
      {"sum of 1024 columns", [](int64_t n) { return Shapes{{n / 1024, 1024}, {n / 1024, 1024}, {1, 1024}}; }},
      {"[n, 1] * [n, 1024] to 1024", [](int64_t n) { return Shapes{{n / 1024, 1}, {n / 1024, 1024}, {1, 1024}}; }},
      // Rows that do not end with a whole vector.
      {"[n, 1001] * [1001]", [](int64_t n) { return Shapes{{n / 1001, 1001}, {1, 1001}, {n / 1001, 1001}}; }},
      {"sum of rows of 1001", [](int64_t n) { return Shapes{{n / 1001, 1001}, {n / 1001, 1001}, {n / 1001, 1}}; }},
      {"sum of 1001 columns", [](int64_t n) { return Shapes{{n / 1001, 1001}, {n / 1001, 1001}, {1, 1001}}; }},
      {"sum over 1 and 3",
       [](int64_t n) { return Shapes{{n / 32768, 8, 64, 64}, {n / 32768, 8, 64, 64}, {n / 32768, 1, 64, 1}}; }},
      {"sum over 0 and 2",
       [](int64_t n) { return Shapes{{n / 32768, 8, 64, 64}, {n / 32768, 8, 64, 64}, {1, 8, 1, 64}}; }},
  };
}

}  // namespace tf_cg_ops::cuda::check

#endif  // TF_CG_OPS_CUDA_CHECK_FORMS_H_
