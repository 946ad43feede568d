#include "cuda/schedule.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tf_cg_ops::cuda {
namespace {

// So many blocks that the GPU is not idle for long during the last ones.
constexpr int64_t kEnoughBlocks = 4096;
// A thread reads at least this many vectors of each operand before its sums are added to other threads' sums.
constexpr int64_t kVectorsPerThread = 8;
// Each partial sum, which is written and read in its wider type, has at least this many products.
constexpr int64_t kProductsPerPart = 128;
// Longer rows get all threads of a block, shorter ones a part of a warp, which needs no shared memory.
constexpr int64_t kLongRow = 1024;

int64_t CeilDivide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// n rounded up, or down, to a power of two.
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

// Whether an operand can be read in whole vectors: it and each of its rows begin at an aligned address.
bool IsAligned(const void* data, const std::vector<Loop>& loops, const Loop& innermost, int64_t Loop::*step,
               int64_t vector_size) {
  if (reinterpret_cast<uintptr_t>(data) % kVectorBytes != 0) return false;
  return std::all_of(loops.begin(), loops.end(),
                     [&](const Loop& loop) { return &loop == &innermost || loop.*step % vector_size == 0; });
}

Step<int64_t> ToStep(const Loop& loop) { return {Divisor<int64_t>(loop.size), loop.lhs, loop.rhs, loop.out}; }

Step<uint32_t> Narrowed(const Step<int64_t>& step) {
  return {Divisor<uint32_t>(static_cast<uint32_t>(step.size.divisor())), static_cast<uint32_t>(step.lhs),
          static_cast<uint32_t>(step.rhs), static_cast<uint32_t>(step.out)};
}

// Whether idle threads in the last segment of a row cost less than the kernel for any rows.
bool FillsSegments(int64_t size, int64_t segment) {
  const int64_t idle = (segment - size % segment) % segment;
  return size >= 2 * idle;  // At least two thirds of the threads work. Sizes near 2^63 don't overflow here.
}

// Makes each trip of the innermost loop a vector.
void VectorizeStep(const Loop& loop, int64_t vector_size, Step<int64_t>* step) {
  *step = {Divisor<int64_t>(CeilDivide(loop.size, vector_size)), loop.lhs * vector_size, loop.rhs * vector_size,
           loop.out * vector_size};
}

// Whether the elements of operands and out, and so the vectors of out, are numbered and counted in 31 bits.
bool HasNarrowOffsets(const std::vector<Loop>& loops, int64_t outputs) {
  if (loops.size() > static_cast<size_t>(kMaxNarrowLoops)) return false;
  int64_t lhs = 0, rhs = 0, out = 0;
  for (const Loop& loop : loops) {
    lhs += (loop.size - 1) * loop.lhs;
    rhs += (loop.size - 1) * loop.rhs;
    out += (loop.size - 1) * loop.out;
  }
  return std::max({lhs, rhs, out, outputs - 1}) < kMaxNarrowIndex;
}

void CutIntoParts(int64_t parts, Layout<int64_t>* layout) {
  layout->part_items = CeilDivide(layout->reduction_items, std::max<int64_t>(parts, 1));
  layout->parts = CeilDivide(layout->reduction_items, layout->part_items);
}

void SetLanes(int64_t lanes, Layout<int64_t>* layout) {
  layout->lanes = static_cast<int>(lanes);
  for (layout->lane_bits = 0; 1 << layout->lane_bits < layout->lanes;) ++layout->lane_bits;
}

// Distributes the work of a kernel for rows and returns the number of blocks.
int64_t LayOutRows(int64_t vector_size, Layout<int64_t>* layout) {
  const int64_t items = layout->reduction_items;
  // In a short row, a thread has kUnroll vectors under way. Rows that are not whole vectors are read element by
  // element, and enough threads read 16 bytes side by side.
  const int64_t least = layout->innermost_size % vector_size == 0 ? 1 : std::min(PowerAbove(items), vector_size);
  const int64_t lanes = std::max(PowerAbove(CeilDivide(items, kUnroll)), least);
  SetLanes(items >= kLongRow ? kThreads : std::min<int64_t>(kWarp, lanes), layout);
  const int64_t groups = kThreads / layout->lanes;
  const int64_t wanted = CeilDivide(kEnoughBlocks * groups, layout->outputs);
  CutIntoParts(std::min(wanted, items / (kVectorsPerThread * kThreads)), layout);
  return CeilDivide(layout->outputs * layout->parts, groups);
}

// Distributes the work of a kernel for columns and returns the number of blocks.
int64_t LayOutColumns(Layout<int64_t>* layout) {
  const int64_t items = layout->reduction_items;
  // How many threads are below each other: as many as have work, but 32 must read side by side.
  const int64_t below = std::min(PowerBelow(std::max<int64_t>(items / kUnroll, 1)),
                                 kThreads / std::min<int64_t>(kWarp, PowerAbove(layout->output_items)));
  SetLanes(kThreads / below, layout);
  const int64_t tiles = CeilDivide(layout->output_items, layout->lanes);
  const int64_t wanted = CeilDivide(kEnoughBlocks, tiles);
  CutIntoParts(std::min(wanted, items / std::max(kVectorsPerThread * below, kProductsPerPart)), layout);
  return tiles * layout->parts;
}

}  // namespace

Schedule MakeSchedule(const ContractionPlan& plan, int element_bytes, bool conjugate, const void* lhs, const void* rhs,
                      const void* out) {
  Schedule schedule;
  if (plan.output_size == 0) return schedule;
  if (plan.reduction_size == 0) {
    schedule.kernel = Kernel::kZero;
    return schedule;
  }
  if (plan.output_loops.size() + plan.reduction_loops.size() > static_cast<size_t>(kMaxLoops)) {
    schedule.kernel = Kernel::kTooManyLoops;
    return schedule;
  }
  std::vector<Loop> loops = plan.output_loops;
  loops.insert(loops.end(), plan.reduction_loops.begin(), plan.reduction_loops.end());
  const size_t innermost_index = plan.reduction_is_innermost ? loops.size() - 1 : plan.output_loops.size() - 1;
  const Loop& innermost = loops[innermost_index];
  // A product has the same bits for either order of its factors.
  schedule.swaps_operands = innermost.lhs == 0 && innermost.rhs != 0;
  if (schedule.swaps_operands) {
    for (Loop& loop : loops) std::swap(loop.lhs, loop.rhs);
    std::swap(lhs, rhs);
  }

  Layout<int64_t>& layout = schedule.layout;
  layout.output_loops = static_cast<int>(plan.output_loops.size());
  layout.reduction_loops = static_cast<int>(plan.reduction_loops.size());
  layout.innermost_size = innermost.size;
  layout.outputs = plan.output_size;
  layout.lhs_step = innermost.lhs;
  layout.rhs_step = innermost.rhs;
  layout.conjugates = {conjugate && schedule.swaps_operands, conjugate && !schedule.swaps_operands};
  schedule.rhs_moves = innermost.rhs != 0;
  schedule.has_one_loop = plan.reduction_loops.size() == 1;

  const bool has_narrow_offsets = HasNarrowOffsets(loops, layout.outputs);
  int64_t vector_size = kVectorBytes / element_bytes;
  // An element of 16 bytes is always a whole vector.
  const bool operands_are_aligned =
      vector_size == 1 || (innermost.lhs != 0 && IsAligned(lhs, loops, innermost, &Loop::lhs, vector_size) &&
                           (innermost.rhs == 0 || IsAligned(rhs, loops, innermost, &Loop::rhs, vector_size)));
  const bool rows_are_whole_vectors = innermost.size % vector_size == 0;
  if (!plan.reduction_loops.empty()) {
    schedule.kernel = plan.reduction_is_innermost ? Kernel::kSumRows : Kernel::kSumColumns;
    // A kernel can shorten the last vector of a sum over one loop only.
    const bool may_end_within_vector = plan.reduction_is_innermost && schedule.has_one_loop;
    schedule.is_vectorized = operands_are_aligned && (rows_are_whole_vectors || may_end_within_vector);
  } else {
    // Operands that are aligned where out is need no rows.
    const auto offset = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes; };
    const bool are_alike = offset(lhs) == offset(out) && (innermost.rhs == 0 || offset(rhs) == offset(out));
    if (plan.output_loops.size() == 1 && innermost.lhs != 0 && are_alike) {
      schedule.kernel = Kernel::kMultiplyFlat;
      schedule.is_vectorized = true;
    } else if (operands_are_aligned && rows_are_whole_vectors && has_narrow_offsets && offset(out) == 0) {
      schedule.kernel = Kernel::kMultiplyRows;
      schedule.is_vectorized = true;
    } else if (innermost.lhs != 0 && FillsSegments(innermost.size, SegmentSize(element_bytes)) && has_narrow_offsets) {
      schedule.kernel = Kernel::kMultiplySegments;
      vector_size = SegmentSize(element_bytes);
    } else {
      schedule.kernel = Kernel::kMultiplyScalar;
      vector_size = 1;
    }
  }

  std::transform(loops.begin(), loops.end(), layout.steps, ToStep);
  VectorizeStep(innermost, vector_size, &layout.steps[innermost_index]);
  layout.output_items = Trips(layout.steps, layout.output_loops);
  layout.reduction_items = Trips(layout.steps + layout.output_loops, layout.reduction_loops);
  switch (schedule.kernel) {
    case Kernel::kSumRows:
      schedule.blocks = LayOutRows(vector_size, &layout);
      break;
    case Kernel::kSumColumns:
      schedule.blocks = LayOutColumns(&layout);
      break;
    case Kernel::kMultiplySegments:
      schedule.blocks = CeilDivide(layout.output_items, kThreads / kWarp);
      break;
    default:
      schedule.blocks = BlocksForItems(layout.output_items);
  }
  // A product has one part of one trip. Parts are few enough that their number cannot overflow.
  const int64_t items = std::max(layout.reduction_items, layout.outputs * layout.parts);
  // Sums that are read element by element count the elements along their vectors.
  const bool counts_elements = !plan.reduction_loops.empty() && !schedule.is_vectorized;
  const int64_t counted = counts_elements ? std::max(layout.reduction_items, layout.output_items) : 0;
  schedule.has_narrow_indices =
      has_narrow_offsets && items - 1 <= kMaxNarrowIndex && counted <= kMaxNarrowIndex / vector_size;
  return schedule;
}

Layout<uint32_t> Narrowed(const Layout<int64_t>& layout) {
  const auto narrow = [](int64_t number) { return static_cast<uint32_t>(number); };
  Layout<uint32_t> narrowed;
  for (int i = 0; i < layout.output_loops + layout.reduction_loops; ++i) narrowed.steps[i] = Narrowed(layout.steps[i]);
  narrowed.output_loops = layout.output_loops;
  narrowed.reduction_loops = layout.reduction_loops;
  narrowed.innermost_size = narrow(layout.innermost_size);
  narrowed.output_items = narrow(layout.output_items);
  narrowed.reduction_items = narrow(layout.reduction_items);
  narrowed.outputs = narrow(layout.outputs);
  narrowed.parts = narrow(layout.parts);
  narrowed.part_items = narrow(layout.part_items);
  narrowed.lhs_step = narrow(layout.lhs_step);
  narrowed.rhs_step = narrow(layout.rhs_step);
  narrowed.lanes = layout.lanes;
  narrowed.lane_bits = layout.lane_bits;
  narrowed.conjugates = layout.conjugates;
  return narrowed;
}

int64_t BlocksForItems(int64_t items) { return std::max<int64_t>(CeilDivide(items, kThreads * kUnroll), 1); }

}  // namespace tf_cg_ops::cuda
