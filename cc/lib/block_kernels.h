// The arithmetic on one block, a matrix of products, for each element type and each instruction set.
//
// All instruction sets give the same bits: they add in the same order and do not fuse operations. Only the payload of a
// nan can differ.

#ifndef TF_CG_OPS_CC_LIB_BLOCK_KERNELS_H_
#define TF_CG_OPS_CC_LIB_BLOCK_KERNELS_H_

#include <cstdint>

#include "cc/lib/arithmetic.h"

namespace tf_cg_ops {

// Packing rows pays off up to this number of columns.
inline constexpr int64_t kNarrow = 16;

// The memory of an operand in a block of rows and columns.
template <typename T>
struct Strided {
  const T* data;
  int64_t row_step;  // In elements.
  bool is_row;       // Whether each column has its own element. If not, one element serves the whole row.
};

template <typename T>
struct Block {
  Strided<T> lhs;
  Strided<T> rhs;
  int64_t rows;
  int64_t columns;
  bool is_narrow;  // Packs rows side by side, because a single one does not fill a vector: at most kNarrow columns.
  bool conjugate;  // Multiplies by the conjugate of rhs.
};

// Sums of complex numbers are pairs of `Sum`.
template <typename T>
struct BlockKernels {
  using Sum = typename Arithmetic<T>::Sum;

  // out = lhs * rhs, row after row without a gap. out can be an operand with the same layout. `stream` writes past the
  // caches, so that a large out does not evict everything else.
  void (*multiply)(const Block<T>& block, bool stream, T* out);
  // The same in the type of sums.
  void (*multiply_into_sums)(const Block<T>& block, Sum* out);
  // sums[column] += the products in that column, from the first row to the last.
  void (*add_to_columns)(const Block<T>& block, Sum* sums);
  // sums[row] += the sum of the products in that row.
  void (*add_to_rows)(const Block<T>& block, Sum* sums);
  void (*round)(const Sum* sums, int64_t count, T* out);
};

// Each set includes the ones before it.
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// The last set that this machine supports.
InstructionSet BestInstructionSet();

template <typename T>
const BlockKernels<T>& BlockKernelsFor(InstructionSet instruction_set);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_BLOCK_KERNELS_H_
