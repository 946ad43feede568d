// The arithmetic on one block, a matrix of products, for each element type and for each kind of vector registers.
//
// All kinds give the same bits: they add in the same order and contract nothing into fused operations. Only the payload
// of a nan may differ.

#ifndef TF_CG_OPS_CC_LIB_BLOCK_KERNELS_H_
#define TF_CG_OPS_CC_LIB_BLOCK_KERNELS_H_

#include <cstdint>

#include "cc/lib/arithmetic.h"

namespace tf_cg_ops {

// Rows with at most so many columns are worth packing.
inline constexpr int64_t kNarrow = 16;

// Where an operand's elements are, in a block of rows and columns.
template <typename T>
struct Strided {
  const T* data;
  int64_t row_step;  // In elements.
  bool is_row;       // Whether it moves along a row, element by element. If not, it is the same all along.
};

template <typename T>
struct Block {
  Strided<T> lhs;
  Strided<T> rhs;
  int64_t rows;
  int64_t columns;
  bool is_narrow;  // Packs rows side by side, since each for itself would fill no vectors: for at most kNarrow columns.
  bool conjugate;  // Multiplies by the conjugate of rhs.
};

// Sums of complex numbers are pairs of `Sum`.
template <typename T>
struct BlockKernels {
  using Sum = typename Arithmetic<T>::Sum;

  // out = lhs * rhs, row after row without a gap. out may be lhs or rhs, where that is laid out alike. `stream` keeps a
  // large out from driving everything else out of the caches.
  void (*multiply)(const Block<T>& block, bool stream, T* out);
  // sums[column] += the products in each column, from the first row to the last.
  void (*add_to_columns)(const Block<T>& block, Sum* sums);
  // sums[row] += the sum of the products in each row.
  void (*add_to_rows)(const Block<T>& block, Sum* sums);
  void (*round)(const Sum* sums, int64_t count, T* out);
};

// Kinds of vector registers. Each can do what those before it can.
enum class Vectors { kBaseline, kAvx2, kAvx512 };

// The widest that this machine has.
Vectors WidestVectors();

template <typename T>
const BlockKernels<T>& BlockKernelsFor(Vectors vectors);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_BLOCK_KERNELS_H_
