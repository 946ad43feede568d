#include "cuda/schedule.h"

#include <algorithm>
#include <vector>

namespace tf_cg_ops::cuda {
namespace {

// Enough blocks that the last ones, which leave some of the GPU idle, are few among them.
constexpr int64_t kEnoughBlocks = 4096;
// A thread reads so many packs of each operand at least, before its sums are added to those of others.
constexpr int64_t kPacksOfThread = 8;
// So many products are summed up at least for each sum that goes through memory, twice, in its wider type.
constexpr int64_t kProductsOfPart = 128;
// Longer rows are worth all threads of a block; shorter ones a part of a warp, where sums need no shared memory.
constexpr int64_t kLongRow = 1024;
constexpr int64_t kWarp = 32;

int64_t CeilDivide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// The smallest power of two that is not below n, and the largest that is not above it.
int64_t PowerAbove(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}
int64_t PowerBelow(int64_t n) {
  int64_t power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

int64_t Trips(const Step* steps, int count) {
  int64_t trips = 1;
  for (int i = 0; i < count; ++i) trips *= steps[i].size.divisor();
  return trips;
}

// Whether an operand begins at a boundary of packs, and each row of it does.
bool IsAligned(const void* data, const std::vector<Loop>& loops, const Loop& innermost, int64_t Loop::*step,
               int64_t pack) {
  if (reinterpret_cast<uintptr_t>(data) % kPackBytes != 0) return false;
  return std::all_of(loops.begin(), loops.end(),
                     [&](const Loop& loop) { return &loop == &innermost || loop.*step % pack == 0; });
}

Step ToStep(const Loop& loop) { return {Divisor(loop.size), loop.lhs, loop.rhs, loop.out}; }

// Makes the innermost loop one over packs.
void WalkInPacks(const Loop& loop, int64_t pack, Step* step) {
  *step = {Divisor(CeilDivide(loop.size, pack)), loop.lhs * pack, loop.rhs * pack, loop.out * pack};
}

void CutIntoParts(int64_t parts, Layout* layout) {
  layout->part_items = CeilDivide(layout->reduced_items, std::max<int64_t>(parts, 1));
  layout->parts = CeilDivide(layout->reduced_items, layout->part_items);
}

// The blocks that a kernel for rows needs.
int64_t LayOutRows(Layout* layout) {
  const int64_t items = layout->reduced_items;
  layout->lanes = static_cast<int>(items >= kLongRow ? kThreads : std::min(kWarp, PowerAbove(items)));
  const int64_t groups = kThreads / layout->lanes;
  const int64_t wanted = CeilDivide(kEnoughBlocks * groups, layout->outputs);
  CutIntoParts(std::min(wanted, items / (kPacksOfThread * kThreads)), layout);
  return CeilDivide(layout->outputs * layout->parts, groups);
}

// The blocks that a kernel for columns needs.
int64_t LayOutColumns(Layout* layout) {
  const int64_t items = layout->reduced_items;
  // As many threads below each other as have work, but none at the cost of the 32 that read side by side.
  const int64_t below = std::min(PowerBelow(std::max<int64_t>(items / kUnroll, 1)),
                                 kThreads / std::min(kWarp, PowerAbove(layout->kept_items)));
  layout->lanes = static_cast<int>(kThreads / below);
  const int64_t tiles = CeilDivide(layout->kept_items, layout->lanes);
  const int64_t wanted = CeilDivide(kEnoughBlocks, tiles);
  CutIntoParts(std::min(wanted, items / std::max(kPacksOfThread * below, kProductsOfPart)), layout);
  return tiles * layout->parts;
}

}  // namespace

Schedule MakeSchedule(const ContractionPlan& plan, int element_bytes, bool conjugate, const void* lhs, const void* rhs,
                      const void* out) {
  Schedule schedule;
  if (plan.kept_size == 0) return schedule;
  if (plan.reduced_size == 0) {
    schedule.kernel = Kernel::kZero;
    return schedule;
  }
  if (plan.kept.size() + plan.reduced.size() > static_cast<size_t>(kMaxLoops)) {
    schedule.kernel = Kernel::kTooManyLoops;
    return schedule;
  }
  std::vector<Loop> loops = plan.kept;
  loops.insert(loops.end(), plan.reduced.begin(), plan.reduced.end());
  const size_t innermost_index = plan.reduced_is_innermost ? loops.size() - 1 : plan.kept.size() - 1;
  const Loop& innermost = loops[innermost_index];

  Layout& layout = schedule.layout;
  layout.kept = static_cast<int>(plan.kept.size());
  layout.reduced = static_cast<int>(plan.reduced.size());
  layout.innermost_size = innermost.size;
  layout.outputs = plan.kept_size;
  layout.conjugate = conjugate;
  layout.lhs_moves = innermost.lhs != 0;
  layout.rhs_moves = innermost.rhs != 0;
  int64_t pack = kPackBytes / element_bytes;
  layout.lhs_is_aligned = IsAligned(lhs, loops, innermost, &Loop::lhs, pack);
  layout.rhs_is_aligned = IsAligned(rhs, loops, innermost, &Loop::rhs, pack);

  if (plan.reduced.empty()) {
    // A pack of out may not reach into the next row of the operands.
    const bool packs_fit =
        (plan.kept.size() == 1 || innermost.size % pack == 0) && (layout.lhs_is_aligned || !layout.lhs_moves) &&
        (layout.rhs_is_aligned || !layout.rhs_moves) && reinterpret_cast<uintptr_t>(out) % kPackBytes == 0;
    schedule.kernel = packs_fit ? Kernel::kMultiply : Kernel::kMultiplySingly;
    if (!packs_fit) pack = 1;
  } else {
    schedule.kernel = plan.reduced_is_innermost ? Kernel::kSumRows : Kernel::kSumColumns;
  }

  std::transform(loops.begin(), loops.end(), layout.steps, ToStep);
  WalkInPacks(innermost, pack, &layout.steps[innermost_index]);
  layout.kept_items = Trips(layout.steps, layout.kept);
  layout.reduced_items = Trips(layout.steps + layout.kept, layout.reduced);
  switch (schedule.kernel) {
    case Kernel::kSumRows:
      schedule.blocks = LayOutRows(&layout);
      break;
    case Kernel::kSumColumns:
      schedule.blocks = LayOutColumns(&layout);
      break;
    default:
      schedule.blocks = CeilDivide(layout.kept_items, kThreads * kUnroll);
  }
  return schedule;
}

}  // namespace tf_cg_ops::cuda
