// The distribution of a ContractionPlan over blocks and threads. The order of additions depends only on the plan and
// the element size, so sums have the same bits in every run, on every GPU and at any address.

#ifndef TF_CG_OPS_CUDA_SCHEDULE_H_
#define TF_CG_OPS_CUDA_SCHEDULE_H_

#include <cstdint>

#include "cc/lib/contraction_plan.h"
#include "cuda/indexing.h"

namespace tf_cg_ops::cuda {

// The threads of every block.
inline constexpr int kThreads = 256;
// How many bytes a thread reads or writes at once, if it can.
inline constexpr int kVectorBytes = 16;
// The threads that run in step.
inline constexpr int kWarp = 32;
// How many elements of a long row a warp multiplies one by one at a time: more for 16-bit types, to have enough bytes
// in flight.
TF_CG_OPS_DEVICE constexpr int SegmentSize(int element_bytes) { return (element_bytes == 2 ? 16 : 8) * kWarp; }
// The items that each thread has in flight.
inline constexpr int kUnroll = 4;
// Each loop has at least two trips: a plan with more loops has more than 2^62 products, too many to compute anyway.
inline constexpr int kMaxLoops = 62;
// Fewer with 32-bit indices, because a kernel's parameters take space in the library and most plans have few loops.
inline constexpr int kMaxNarrowLoops = 16;
// The largest index that is computed in 32 bits. The remaining bit is for indices past the end.
inline constexpr int64_t kMaxNarrowIndex = INT32_MAX;
// A flat product of more elements takes several launches.
inline constexpr int64_t kMaxFlatElements = int64_t{1} << 30;

// Whether products have the conjugate of an operand.
struct Conjugates {
  bool lhs = false;
  bool rhs = false;
};

// The parameters of a kernel, with indices of type I. The steps belong to the output loops, then to the reduction
// loops. A trip of the innermost loop is one vector; the last vector can be shorter.
template <typename I>
struct Layout {
  Step<I> steps[sizeof(I) == sizeof(uint32_t) ? kMaxNarrowLoops : kMaxLoops];
  int output_loops = 0;     // Their number.
  int reduction_loops = 0;  // Their number.
  I innermost_size = 0;     // In elements.
  I output_items = 0;       // Trips of the output loops.
  I reduction_items = 0;    // Trips of the reduction loops.
  I outputs = 0;            // Elements of out.
  // Each sum is cut into `parts` of `part_items` trips.
  I parts = 1;
  I part_items = 0;
  // The step of an operand between the elements of a vector: 0 or 1.
  I lhs_step = 0;
  I rhs_step = 0;
  int lanes = 1;      // Neighboring threads along a row, or across columns: a power of two,
  int lane_bits = 0;  // and its logarithm.
  Conjugates conjugates;
};

// The limit of every GPU.
static_assert(sizeof(Layout<int64_t>) <= 4000, "a kernel's parameters take 4096 bytes at most");

enum class Kernel {
  kNone,              // out is empty.
  kZero,              // All sums are empty.
  kMultiplyFlat,      // One product for each element of out, in one loop and in vectors.
  kMultiplyRows,      // The same in rows of vectors.
  kMultiplySegments,  // The same in long rows of any elements.
  kMultiplyScalar,    // The same in any rows.
  kSumRows,           // Sums along the innermost loop.
  kSumColumns,        // Sums across the innermost loop.
  kTooManyLoops,      // More than kMaxLoops.
};

struct Schedule {
  Kernel kernel = Kernel::kNone;
  // Whether lhs and rhs are swapped, so that lhs moves along the innermost loop if either operand does.
  bool swaps_operands = false;
  // The variant of the kernel.
  bool has_narrow_indices = false;
  bool is_vectorized = false;  // Operands are read in whole, aligned vectors.
  bool rhs_moves = false;      // rhs moves along the innermost loop.
  bool has_one_loop = false;   // Sums are over one loop.
  Layout<int64_t> layout;
  // The blocks that have work; a kernel runs with any number of blocks.
  int64_t blocks = 0;
};

// The addresses decide how operands are read, but not the order of additions.
Schedule MakeSchedule(const ContractionPlan& plan, int element_bytes, bool conjugate, const void* lhs, const void* rhs,
                      const void* out);

// The layout with 32-bit indices, for a schedule with narrow indices.
Layout<uint32_t> Narrowed(const Layout<int64_t>& layout);

// The blocks for this number of products or vectors of them, kUnroll for each thread.
int64_t BlocksForItems(int64_t items);

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_SCHEDULE_H_
