// How the work of a ContractionPlan is laid out over blocks and threads: from the plan and the element's size alone,
// so that sums are added up in the same order each time and on every GPU.

#ifndef TF_CG_OPS_CUDA_SCHEDULE_H_
#define TF_CG_OPS_CUDA_SCHEDULE_H_

#include <cstdint>

#include "cc/lib/contraction_plan.h"
#include "cuda/walk.h"

namespace tf_cg_ops::cuda {

// Of every block.
inline constexpr int kThreads = 256;
// What a thread reads or writes at once where it can.
inline constexpr int kPackBytes = 16;
// Each loop runs twice at least: a plan with more has more than 2^62 products, and could not be computed anyway.
inline constexpr int kMaxLoops = 62;

// What every kernel gets. `kept` of the steps lead through out, the `reduced` ones after them through what is summed
// up. The innermost loop of the operands goes in packs: its last pack may be shorter.
struct Layout {
  Step steps[kMaxLoops];
  int kept = 0;
  int reduced = 0;
  int64_t innermost_size = 0;  // In elements.
  int64_t kept_items = 0;      // Trips of the kept loops.
  int64_t reduced_items = 0;   // Trips of the reduced ones.
  int64_t outputs = 0;         // Elements of out.
  // What is summed up for one output is cut into so many parts of so many trips each.
  int64_t parts = 1;
  int64_t part_items = 0;
  int lanes = 0;  // Threads side by side: along a row, or across columns. A power of two.
  // Whether an operand moves along the innermost loop, and then whether whole packs of it lie at their boundaries.
  bool lhs_moves = false;
  bool rhs_moves = false;
  bool lhs_is_aligned = false;
  bool rhs_is_aligned = false;
  bool conjugate = false;
};

enum class Kernel {
  kNone,            // out is empty.
  kZero,            // Nothing is summed up.
  kMultiply,        // One product for each element of out, in packs.
  kMultiplySingly,  // The same where packs do not fit into the rows.
  kSumRows,         // What is summed up lies along the innermost loop.
  kSumColumns,      // It lies across it.
  kTooManyLoops,    // More than kMaxLoops.
};

// What a kernel may get on any GPU.
static_assert(sizeof(Layout) <= 4000, "a kernel's parameters take 4096 bytes at most");

struct Schedule {
  Kernel kernel = Kernel::kNone;
  Layout layout;
  // Pieces of work for blocks; a kernel takes any number of blocks.
  int64_t blocks = 0;
};

// How many trips each thread has under way at once.
inline constexpr int kUnroll = 4;

// The addresses matter for how operands are read, not for what is computed in which order.
Schedule MakeSchedule(const ContractionPlan& plan, int element_bytes, bool conjugate, const void* lhs, const void* rhs,
                      const void* out);

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_SCHEDULE_H_
