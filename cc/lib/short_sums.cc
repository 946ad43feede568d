#include "cc/lib/short_sums.h"

#include "cc/lib/block_kernels.h"

namespace tf_cg_ops {
namespace {

// The most real numbers in a group.
constexpr int64_t kMaxGroup = 256;

// Each sum begins at +0, so that a sum of negative zeros is +0, as in the block kernels.

// Adds `size` consecutive numbers, for each of `count` results. Four sums overlap.
template <typename Sum>
void FoldNeighbours(int64_t count, int64_t size, const Sum* from, Sum* to) {
  for (int64_t k = 0; k < count; ++k, from += size) {
    Sum sums[4] = {};
    int64_t i = 0;
    for (; i + 4 <= size; i += 4) {
      for (int lane = 0; lane < 4; ++lane) sums[lane] += from[i + lane];
    }
    for (; i < size; ++i) sums[0] += from[i];
    to[k] = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  }
}

// The same for a size that the compiler knows.
template <int kSize, typename Sum>
void FoldNeighbours(int64_t count, const Sum* from, Sum* to) {
  for (int64_t k = 0; k < count; ++k, from += kSize) {
    Sum sum = 0;
    for (int i = 0; i < kSize; ++i) sum += from[i];
    to[k] = sum;
  }
}

// Adds `size` rows of `width` numbers, for each of `count` resulting rows.
template <typename Sum>
void FoldRows(int64_t count, int64_t size, int64_t width, const Sum* from, Sum* to) {
  for (int64_t k = 0; k < count; ++k, from += size * width, to += width) {
    int64_t i = 0;
    for (; i + 4 <= width; i += 4) {
      Sum sums[4] = {};
      for (int64_t row = 0; row < size; ++row) {
        for (int lane = 0; lane < 4; ++lane) sums[lane] += from[row * width + i + lane];
      }
      for (int lane = 0; lane < 4; ++lane) to[i + lane] = sums[lane];
    }
    for (; i < width; ++i) {
      Sum sum = 0;
      for (int64_t row = 0; row < size; ++row) sum += from[row * width + i];
      to[i] = sum;
    }
  }
}

}  // namespace

ShortSums FindShortSums(const ContractionPlan& plan, int reals) {
  ShortSums found;
  if (plan.reduction_size <= 1) return found;
  // The innermost loops that fit into a group, from a reduction on.
  size_t first = plan.loops.size();
  int64_t size = reals;
  for (size_t i = plan.loops.size(); i-- > 0 && size * plan.loops[i].size <= kMaxGroup;) {
    size *= plan.loops[i].size;
    if (plan.loops[i].out == 0) first = i;
  }
  // A single row that fills vectors needs no folding.
  const bool is_long_row = first + 1 == plan.loops.size() && plan.loops[first].size > kNarrow;
  if (first == plan.loops.size() || is_long_row) return found;

  found.loops.assign(plan.loops.begin() + first, plan.loops.end());
  for (const Loop& loop : found.loops) {
    found.group_size *= loop.size;
    if (loop.out != 0) found.folded_size *= loop.size;
  }
  ContractionPlan& unfolded = found.plan;
  unfolded.output_size = plan.output_size / found.folded_size * found.group_size;
  int64_t step = unfolded.output_size;
  for (size_t i = 0; i < plan.loops.size(); ++i) {
    Loop loop = plan.loops[i];
    if (loop.out == 0 && i < first) {
      unfolded.reduction_loops.push_back(loop);
      unfolded.reduction_size *= loop.size;
    } else {
      step /= loop.size;
      loop.out = step;
      AppendLoop(loop, &unfolded.output_loops);
    }
  }
  return found;
}

template <typename Sum>
void Fold(const ShortSums& short_sums, int reals, int64_t groups, Sum* sums) {
  int64_t outer = groups * short_sums.group_size, width = reals;
  for (size_t i = short_sums.loops.size(); i-- > 0;) {
    const Loop& loop = short_sums.loops[i];
    outer /= loop.size;
    if (loop.out != 0) {
      width *= loop.size;
    } else if (width > 1) {
      FoldRows(outer, loop.size, width, sums, sums);
    } else if (loop.size == 2) {
      FoldNeighbours<2>(outer, sums, sums);
    } else if (loop.size == 3) {
      FoldNeighbours<3>(outer, sums, sums);
    } else if (loop.size == 4) {
      FoldNeighbours<4>(outer, sums, sums);
    } else {
      FoldNeighbours(outer, loop.size, sums, sums);
    }
  }
}

template void Fold(const ShortSums&, int, int64_t, float*);
template void Fold(const ShortSums&, int, int64_t, double*);

}  // namespace tf_cg_ops
