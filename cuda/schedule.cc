#include "cuda/schedule.h"

#include <algorithm>
#include <utility>
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

int64_t Trips(const Step<int64_t>* steps, int count) {
  int64_t trips = 1;
  for (int i = 0; i < count; ++i) trips *= steps[i].size.divisor();
  return trips;
}

// Whether an operand is read in whole packs: it begins at a boundary of packs, and each row of it does.
bool IsAligned(const void* data, const std::vector<Loop>& loops, const Loop& innermost, int64_t Loop::*step,
               int64_t pack) {
  if (reinterpret_cast<uintptr_t>(data) % kPackBytes != 0) return false;
  return std::all_of(loops.begin(), loops.end(),
                     [&](const Loop& loop) { return &loop == &innermost || loop.*step % pack == 0; });
}

Step<int64_t> ToStep(const Loop& loop) { return {Divisor<int64_t>(loop.size), loop.lhs, loop.rhs, loop.out}; }

Step<uint32_t> Narrowed(const Step<int64_t>& step) {
  return {Divisor<uint32_t>(static_cast<uint32_t>(step.size.divisor())), static_cast<uint32_t>(step.lhs),
          static_cast<uint32_t>(step.rhs), static_cast<uint32_t>(step.out)};
}

// Makes the innermost loop one over packs.
void WalkInPacks(const Loop& loop, int64_t pack, Step<int64_t>* step) {
  *step = {Divisor<int64_t>(CeilDivide(loop.size, pack)), loop.lhs * pack, loop.rhs * pack, loop.out * pack};
}

// Whether every index that a kernel computes fits into 32 bits.
bool HasNarrowIndices(const std::vector<Loop>& loops, const Layout<int64_t>& layout) {
  if (loops.size() > static_cast<size_t>(kMaxNarrowLoops)) return false;
  int64_t lhs = 0, rhs = 0, out = 0;
  for (const Loop& loop : loops) {
    lhs += (loop.size - 1) * loop.lhs;
    rhs += (loop.size - 1) * loop.rhs;
    out += (loop.size - 1) * loop.out;
  }
  // Parts are few enough that this is far from the limits of 64 bits.
  const int64_t sums = layout.outputs * layout.parts;
  return std::max({lhs, rhs, out, layout.kept_items - 1, layout.reduced_items - 1, sums - 1}) <= kMaxNarrowIndex;
}

void CutIntoParts(int64_t parts, Layout<int64_t>* layout) {
  layout->part_items = CeilDivide(layout->reduced_items, std::max<int64_t>(parts, 1));
  layout->parts = CeilDivide(layout->reduced_items, layout->part_items);
}

// The blocks that a kernel for rows needs.
int64_t LayOutRows(Layout<int64_t>* layout) {
  const int64_t items = layout->reduced_items;
  layout->lanes = static_cast<int>(items >= kLongRow ? kThreads : std::min(kWarp, PowerAbove(items)));
  const int64_t groups = kThreads / layout->lanes;
  const int64_t wanted = CeilDivide(kEnoughBlocks * groups, layout->outputs);
  CutIntoParts(std::min(wanted, items / (kPacksOfThread * kThreads)), layout);
  return CeilDivide(layout->outputs * layout->parts, groups);
}

// The blocks that a kernel for columns needs.
int64_t LayOutColumns(Layout<int64_t>* layout) {
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
  // The order of factors changes no bit of a product.
  schedule.swaps_operands = innermost.lhs == 0 && innermost.rhs != 0;
  if (schedule.swaps_operands) {
    for (Loop& loop : loops) std::swap(loop.lhs, loop.rhs);
    std::swap(lhs, rhs);
  }

  Layout<int64_t>& layout = schedule.layout;
  layout.kept = static_cast<int>(plan.kept.size());
  layout.reduced = static_cast<int>(plan.reduced.size());
  layout.innermost_size = innermost.size;
  layout.outputs = plan.kept_size;
  layout.lhs_step = innermost.lhs;
  layout.rhs_step = innermost.rhs;
  layout.conjugates = {conjugate && schedule.swaps_operands, conjugate && !schedule.swaps_operands};
  schedule.rhs_moves = innermost.rhs != 0;
  schedule.has_one_loop = plan.reduced.size() == 1;

  int64_t pack = kPackBytes / element_bytes;
  const bool operands_are_aligned = innermost.lhs != 0 && IsAligned(lhs, loops, innermost, &Loop::lhs, pack) &&
                                    (innermost.rhs == 0 || IsAligned(rhs, loops, innermost, &Loop::rhs, pack));
  const bool rows_are_whole_packs = innermost.size % pack == 0;
  if (!plan.reduced.empty()) {
    schedule.kernel = plan.reduced_is_innermost ? Kernel::kSumRows : Kernel::kSumColumns;
    // A shorter pack at the end is known to one loop alone.
    const bool may_end_within_pack = plan.reduced_is_innermost && schedule.has_one_loop;
    schedule.is_in_packs = operands_are_aligned && (rows_are_whole_packs || may_end_within_pack);
  } else if (plan.kept.size() == 1 && innermost.lhs != 0) {
    schedule.kernel = Kernel::kMultiplyFlat;
    // Where packs of out begin, packs of the operands do, too.
    const auto offset = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % kPackBytes; };
    schedule.is_in_packs = offset(lhs) == offset(out) && (innermost.rhs == 0 || offset(rhs) == offset(out));
  } else {
    schedule.kernel = Kernel::kMultiply;
    schedule.is_in_packs =
        operands_are_aligned && rows_are_whole_packs && reinterpret_cast<uintptr_t>(out) % kPackBytes == 0;
    // 64-bit indices are for single elements.
    schedule.is_in_packs = schedule.is_in_packs && HasNarrowIndices(loops, layout);
    if (!schedule.is_in_packs) pack = 1;
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
      schedule.blocks = BlocksForItems(layout.kept_items);
  }
  schedule.has_narrow_indices = HasNarrowIndices(loops, layout);
  return schedule;
}

Layout<uint32_t> Narrowed(const Layout<int64_t>& layout) {
  const auto narrow = [](int64_t number) { return static_cast<uint32_t>(number); };
  Layout<uint32_t> narrowed;
  for (int i = 0; i < layout.kept + layout.reduced; ++i) narrowed.steps[i] = Narrowed(layout.steps[i]);
  narrowed.kept = layout.kept;
  narrowed.reduced = layout.reduced;
  narrowed.innermost_size = narrow(layout.innermost_size);
  narrowed.kept_items = narrow(layout.kept_items);
  narrowed.reduced_items = narrow(layout.reduced_items);
  narrowed.outputs = narrow(layout.outputs);
  narrowed.parts = narrow(layout.parts);
  narrowed.part_items = narrow(layout.part_items);
  narrowed.lhs_step = narrow(layout.lhs_step);
  narrowed.rhs_step = narrow(layout.rhs_step);
  narrowed.lanes = layout.lanes;
  narrowed.conjugates = layout.conjugates;
  return narrowed;
}

int64_t BlocksForItems(int64_t items) { return std::max<int64_t>(CeilDivide(items, kThreads * kUnroll), 1); }

}  // namespace tf_cg_ops::cuda
