// How the work of a ContractionPlan is laid out over blocks and threads. The order of additions follows from the plan
// and the element's size alone: sums are the same bits each time, on every GPU and at any address.

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
// How many items each thread has under way at once.
inline constexpr int kUnroll = 4;
// Each loop runs twice at least: a plan with more has more than 2^62 products, and could not be computed anyway.
inline constexpr int kMaxLoops = 62;
// Steps with 32-bit indices, of which plans have a few: a kernel's parameters take room in the library, too.
inline constexpr int kMaxNarrowLoops = 16;
// Indices up to here are computed in 32 bits. The rest of those bits is for indices that run past the end.
inline constexpr int64_t kMaxNarrowIndex = INT32_MAX;
// A flat product of more elements takes several launches.
inline constexpr int64_t kMaxFlatElements = int64_t{1} << 30;

// Whether products are of an operand's conjugates.
struct Conjugates {
  bool lhs = false;
  bool rhs = false;
};

// The parameters of a kernel, with indices of type I. `kept` of the steps lead through out, the `reduced` ones after
// them through the products of one sum. The innermost loop goes in packs, of which the last may be shorter.
template <typename I>
struct Layout {
  Step<I> steps[sizeof(I) == sizeof(uint32_t) ? kMaxNarrowLoops : kMaxLoops];
  int kept = 0;
  int reduced = 0;
  I innermost_size = 0;  // In elements.
  I kept_items = 0;      // Trips of the kept loops.
  I reduced_items = 0;   // Trips of the reduced ones.
  I outputs = 0;         // Elements of out.
  // The products of one sum are cut into so many parts of so many trips each.
  I parts = 1;
  I part_items = 0;
  // How far an operand moves between neighbours in a pack: 0 or 1.
  I lhs_step = 0;
  I rhs_step = 0;
  int lanes = 0;  // Threads side by side: along a row, or across columns. A power of two.
  Conjugates conjugates;
};

// What a kernel may get on any GPU.
static_assert(sizeof(Layout<int64_t>) <= 4000, "a kernel's parameters take 4096 bytes at most");

enum class Kernel {
  kNone,          // out is empty.
  kZero,          // Every sum is empty.
  kMultiplyFlat,  // One product for each element of out, in one loop over all operands.
  kMultiply,      // One product for each element of out.
  kSumRows,       // The products of one sum lie along the innermost loop.
  kSumColumns,    // They lie across it.
  kTooManyLoops,  // More than kMaxLoops.
};

struct Schedule {
  Kernel kernel = Kernel::kNone;
  // lhs and rhs change places: then lhs moves along the innermost loop wherever one operand does.
  bool swaps_operands = false;
  // The form of the kernel.
  bool has_narrow_indices = false;
  bool is_in_packs = false;   // Operands are read in whole packs, which lie at boundaries of packs.
  bool rhs_moves = false;     // Along the innermost loop.
  bool has_one_loop = false;  // Sums are over one loop.
  Layout<int64_t> layout;
  // Work for blocks; a kernel takes any number of blocks.
  int64_t blocks = 0;
};

// The addresses matter for how operands are read, not for what is computed in which order.
Schedule MakeSchedule(const ContractionPlan& plan, int element_bytes, bool conjugate, const void* lhs, const void* rhs,
                      const void* out);

// The layout with 32-bit indices, for a schedule that has narrow indices.
Layout<uint32_t> Narrowed(const Layout<int64_t>& layout);

// The blocks that multiply so many items, each thread kUnroll of them at once.
int64_t BlocksForItems(int64_t items);

}  // namespace tf_cg_ops::cuda

#endif  // TF_CG_OPS_CUDA_SCHEDULE_H_
