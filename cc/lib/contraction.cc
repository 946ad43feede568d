#include "cc/lib/contraction.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "cc/lib/short_sums.h"

namespace tf_cg_ops {
namespace {

// How many sums are computed side by side: few enough for the caches, enough to read the operands in long runs.
constexpr int64_t kTile = 8192;
// How many products are folded at once: so few that the processor meanwhile keeps prefetching the operands.
constexpr int64_t kFoldTile = 512;
// How many products of one column are added in a row, before their sum is added to the column's total. This limits
// rounding errors along a column.
constexpr int64_t kColumnProducts = 256;
// A reduction with few outputs is cut into blocks, so that all threads take part and read in long runs. A block has at
// least kBlockProducts products, and kProductsOfASum for each of its sums. There are at most kMaxBlocks blocks.
constexpr int64_t kFewRows = 1024;
constexpr int64_t kFewColumns = 8192;
constexpr int64_t kBlockProducts = 32768;
constexpr int64_t kProductsOfASum = 256;
constexpr int64_t kMaxBlocks = 64;
constexpr int64_t kLongEnough = 16;
// Outputs of at least this many bytes, more than the caches hold, are written past the caches.
constexpr int64_t kStreamedBytes = int64_t{1} << 24;

// Iterates over nested loops in row-major order and tracks the operands' offsets.
class Odometer {
 public:
  // Iterates over the outermost `num_loops` loops, from iteration `start` on.
  Odometer(const std::vector<Loop>& loops, size_t num_loops, int64_t start)
      : loops_(loops), index_(num_loops), lhs_(0), rhs_(0) {
    for (size_t i = num_loops; i-- > 0;) {
      index_[i] = start % loops[i].size;
      start /= loops[i].size;
      lhs_ += index_[i] * loops[i].lhs;
      rhs_ += index_[i] * loops[i].rhs;
    }
  }

  void Next() {
    for (size_t i = index_.size(); i-- > 0;) {
      const Loop& loop = loops_[i];
      lhs_ += loop.lhs;
      rhs_ += loop.rhs;
      if (++index_[i] < loop.size) return;
      lhs_ -= loop.size * loop.lhs;
      rhs_ -= loop.size * loop.rhs;
      index_[i] = 0;
    }
  }

  int64_t lhs() const { return lhs_; }
  int64_t rhs() const { return rhs_; }

 private:
  const std::vector<Loop>& loops_;
  std::vector<int64_t> index_;
  int64_t lhs_;
  int64_t rhs_;
};

// The iterations of the outermost `num_loops` loops together.
int64_t Iterations(const std::vector<Loop>& loops, size_t num_loops) {
  int64_t product = 1;
  for (size_t i = 0; i < num_loops; ++i) product *= loops[i].size;
  return product;
}

template <typename T>
class Contraction {
 public:
  // `folded`: the short sums that remain after the plan, or null.
  Contraction(const ContractionPlan& plan, const ShortSums* folded, bool conjugate, const T* lhs, const T* rhs, T* out,
              InstructionSet instruction_set)
      : plan_(plan),
        folded_(folded),
        conjugate_(conjugate),
        lhs_(lhs),
        rhs_(rhs),
        out_(out),
        kernels_(BlockKernelsFor<T>(instruction_set)) {}

  void Run(const ParallelFor& parallel_for) const {
    if (plan_.output_size == 0) return;
    if (plan_.reduction_size == 0) {
      std::fill(out_, out_ + plan_.output_size, T{});
    } else if (folded_ != nullptr && NumReducedBlocks() <= 1) {
      // One divides the other: both are products of the last loops.
      const int64_t unit = std::max(ElementsLeftTogether(), folded_->group_size);
      parallel_for(plan_.output_size / unit, unit * plan_.reduction_size,
                   [this, unit](int64_t begin, int64_t end) { SumAndFold(begin * unit, end * unit, unit); });
    } else if (plan_.reduction_loops.empty()) {
      const bool stream =
          plan_.output_size >= kStreamedBytes / static_cast<int64_t>(sizeof(T)) && out_ != lhs_ && out_ != rhs_;
      parallel_for(plan_.output_size, 1, [this, stream](int64_t begin, int64_t end) {
        Multiply(begin, end, [&](const Block<T>& block, int64_t i) { kernels_.multiply(block, stream, out_ + i); });
      });
    } else if (const int64_t blocks = NumReducedBlocks(); blocks > 1) {
      SumInBlocks(blocks, parallel_for);
    } else {
      const int64_t unit = ElementsLeftTogether();
      parallel_for(plan_.output_size / unit, unit * plan_.reduction_size, [this, unit](int64_t begin, int64_t end) {
        Sum(begin * unit, end * unit, plan_.reduction_loops,
            [this](int64_t i, const SumType* sums, int64_t count) { kernels_.round(sums, count, out_ + i); });
      });
    }
  }

 private:
  using SumType = typename Arithmetic<T>::Sum;
  static constexpr int kReals = Arithmetic<T>::kReals;

  static bool IsNarrow(const Loop& loop) { return loop.size <= kNarrow; }

  // Packed columns are not cut: the order of additions depends on their number.
  int64_t ElementsLeftTogether() const {
    const Loop& inner = plan_.output_loops.back();
    const bool packs = !plan_.reduction_loops.empty() && !plan_.reduction_is_innermost && IsNarrow(inner);
    return packs ? inner.size : 1;
  }

  // Computes the elements [begin, end) of an out without sums, by calls of multiply(block, its first element).
  template <typename F>
  void Multiply(int64_t begin, int64_t end, const F& multiply) const {
    const size_t last = plan_.output_loops.size() - 1;
    const Loop& inner = plan_.output_loops[last];
    const Loop middle = last > 0 ? plan_.output_loops[last - 1] : Loop{1, 0, 0, 0};
    int64_t column = begin % inner.size;
    int64_t row = begin / inner.size % middle.size;
    Odometer outer(plan_.output_loops, last > 0 ? last - 1 : 0, begin / inner.size / middle.size);
    while (begin < end) {
      // As many whole rows as there are.
      const bool is_whole = column == 0 && end - begin >= inner.size;
      const int64_t rows = is_whole ? std::min((end - begin) / inner.size, middle.size - row) : 1;
      const int64_t columns = is_whole ? inner.size : std::min(end - begin, inner.size - column);
      const T* lhs = lhs_ + outer.lhs() + row * middle.lhs + column * inner.lhs;
      const T* rhs = rhs_ + outer.rhs() + row * middle.rhs + column * inner.rhs;
      const Block<T> block = {{lhs, middle.lhs, inner.lhs == 1},
                              {rhs, middle.rhs, inner.rhs == 1},
                              rows,
                              columns,
                              IsNarrow(inner) && rows > 1,
                              conjugate_};
      multiply(block, begin);
      begin += rows * columns;
      column = (column + columns) % inner.size;
      if (column == 0) row += rows;
      if (row == middle.size) {
        outer.Next();
        row = 0;
      }
    }
  }

  // Computes the sums over the loops for the elements [begin, end) of out, and passes them to
  // write(first element, sums, count).
  template <typename F>
  void Sum(int64_t begin, int64_t end, const std::vector<Loop>& reduction_loops, const F& write) const {
    const Loop& inner = plan_.output_loops.back();
    Odometer outer(plan_.output_loops, plan_.output_loops.size() - 1, begin / inner.size);
    for (int64_t j = begin % inner.size; begin < end;) {
      // Elements of out in the innermost output loop.
      const int64_t count = std::min({end - begin, inner.size - j, kTile / kReals});
      // The sums are all equal if both operands are broadcast along that loop.
      const int64_t distinct = inner.lhs == 0 && inner.rhs == 0 ? 1 : count;
      const T* lhs = lhs_ + outer.lhs() + j * inner.lhs;
      const T* rhs = rhs_ + outer.rhs() + j * inner.rhs;
      SumType sums[kTile];
      if (plan_.reduction_is_innermost) {
        SumRows(lhs, rhs, distinct, reduction_loops, sums);
      } else {
        SumColumns(lhs, rhs, distinct, reduction_loops, sums);
      }
      for (int64_t i = distinct * kReals; i < count * kReals; ++i) sums[i] = sums[i % kReals];
      write(begin, sums, count);
      begin += count;
      j += count;
      if (j == inner.size) {
        outer.Next();
        j = 0;
      }
    }
  }

  // Sums products along rows: the products of one element of out are in one row.
  void SumRows(const T* lhs, const T* rhs, int64_t count, const std::vector<Loop>& reduction_loops,
               SumType* sums) const {
    const Loop& inner = plan_.output_loops.back();
    const Loop& last = reduction_loops.back();
    const int64_t iterations = Iterations(reduction_loops, reduction_loops.size() - 1);
    std::fill(sums, sums + count * kReals, SumType(0));
    Odometer outer(reduction_loops, reduction_loops.size() - 1, 0);
    for (int64_t i = 0; i < iterations; ++i, outer.Next()) {
      kernels_.add_to_rows({{lhs + outer.lhs(), inner.lhs, last.lhs == 1},
                            {rhs + outer.rhs(), inner.rhs, last.rhs == 1},
                            count,
                            last.size,
                            /*is_narrow=*/false,
                            conjugate_},
                           sums);
    }
  }

  // Sums products along columns: the products of one element of out are in one column.
  void SumColumns(const T* lhs, const T* rhs, int64_t count, const std::vector<Loop>& reduction_loops,
                  SumType* sums) const {
    const Loop& inner = plan_.output_loops.back();
    const Loop& last = reduction_loops.back();
    const int64_t iterations = Iterations(reduction_loops, reduction_loops.size() - 1);
    // Depends on the loop's size, not on `count`, which can be a part of it: packing changes the order of additions.
    const bool is_narrow = IsNarrow(inner) || (inner.lhs == 0 && inner.rhs == 0);
    // Packing gives each column many sums.
    const int64_t at_once = is_narrow ? kColumnProducts * kNarrow : kColumnProducts;
    SumType partial[kTile];
    int64_t products_in_partial = 0;
    std::fill(sums, sums + count * kReals, SumType(0));
    std::fill(partial, partial + count * kReals, SumType(0));
    const auto add_partial = [&] {
      for (int64_t i = 0; i < count * kReals; ++i) sums[i] += partial[i];
      std::fill(partial, partial + count * kReals, SumType(0));
      products_in_partial = 0;
    };
    Odometer outer(reduction_loops, reduction_loops.size() - 1, 0);
    for (int64_t i = 0; i < iterations; ++i, outer.Next()) {
      for (int64_t row = 0; row < last.size;) {
        const int64_t rows = std::min(last.size - row, at_once - products_in_partial);
        kernels_.add_to_columns({{lhs + outer.lhs() + row * last.lhs, last.lhs, inner.lhs == 1},
                                 {rhs + outer.rhs() + row * last.rhs, last.rhs, inner.rhs == 1},
                                 rows,
                                 count,
                                 is_narrow,
                                 conjugate_},
                                partial);
        row += rows;
        products_in_partial += rows;
        if (products_in_partial == at_once) add_partial();
      }
    }
    add_partial();
  }

  // The outermost loop of at least kLongEnough, so that each block reads in long runs; otherwise the longest loop.
  size_t LoopToCut() const {
    size_t longest = 0;
    for (size_t i = 0; i < plan_.reduction_loops.size(); ++i) {
      if (plan_.reduction_loops[i].size >= kLongEnough) return i;
      if (plan_.reduction_loops[i].size > plan_.reduction_loops[longest].size) longest = i;
    }
    return longest;
  }

  int64_t NumReducedBlocks() const {
    if (plan_.reduction_loops.empty()) return 1;
    if (plan_.output_size >= (plan_.reduction_is_innermost ? kFewRows : kFewColumns)) return 1;
    // Each block writes and reads a sum for every element of out, so there must be far more products.
    const int64_t products = std::max(kBlockProducts, kProductsOfASum * plan_.output_size);
    return std::min(
        {plan_.output_size * plan_.reduction_size / products, plan_.reduction_loops[LoopToCut()].size, kMaxBlocks});
  }

  // Cuts a reduction loop into blocks, computes the sums of each, and then adds the blocks in order.
  void SumInBlocks(int64_t blocks, const ParallelFor& parallel_for) const {
    const size_t cut = LoopToCut();
    const int64_t size = plan_.reduction_loops[cut].size;
    const int64_t reals = plan_.output_size * kReals;
    std::vector<SumType> partial(blocks * reals);
    parallel_for(blocks, plan_.output_size * plan_.reduction_size / blocks, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = size * block / blocks;
        std::vector<Loop> reduction_loops = plan_.reduction_loops;
        reduction_loops[cut].size = size * (block + 1) / blocks - first;
        Contraction part = *this;
        part.lhs_ += first * reduction_loops[cut].lhs;
        part.rhs_ += first * reduction_loops[cut].rhs;
        part.Sum(0, plan_.output_size, reduction_loops, [&](int64_t i, const SumType* sums, int64_t count) {
          std::copy(sums, sums + count * kReals, partial.begin() + block * reals + i * kReals);
        });
      }
    });
    for (int64_t block = 1; block < blocks; ++block) {
      for (int64_t i = 0; i < reals; ++i) partial[i] += partial[block * reals + i];
    }
    if (folded_ != nullptr) Fold(*folded_, kReals, plan_.output_size / folded_->group_size, partial.data());
    kernels_.round(partial.data(), OutputSize(), out_);
  }

  // The number of elements of out, after folding.
  int64_t OutputSize() const {
    if (folded_ == nullptr) return plan_.output_size;
    return plan_.output_size / folded_->group_size * folded_->folded_size;
  }

  // Computes and folds the elements [begin, end), a multiple of `unit` at a time.
  void SumAndFold(int64_t begin, int64_t end, int64_t unit) const {
    const int64_t tile = plan_.reduction_loops.empty() ? kFoldTile : kTile;
    const int64_t at_once = tile / kReals / unit * unit;
    SumType sums[kTile];
    for (; begin < end; begin += at_once) {
      const int64_t count = std::min(at_once, end - begin);
      if (plan_.reduction_loops.empty()) {
        Multiply(begin, begin + count, [&](const Block<T>& block, int64_t i) {
          kernels_.multiply_into_sums(block, sums + (i - begin) * kReals);
        });
      } else {
        Sum(begin, begin + count, plan_.reduction_loops, [&](int64_t i, const SumType* from, int64_t size) {
          std::copy(from, from + size * kReals, sums + (i - begin) * kReals);
        });
      }
      const int64_t groups = count / folded_->group_size;
      Fold(*folded_, kReals, groups, sums);
      kernels_.round(sums, groups * folded_->folded_size, out_ + begin / folded_->group_size * folded_->folded_size);
    }
  }

  const ContractionPlan& plan_;
  const ShortSums* folded_;
  bool conjugate_;
  const T* lhs_;
  const T* rhs_;
  T* out_;
  const BlockKernels<T>& kernels_;
};

}  // namespace

template <typename T>
void Contract(const ContractionPlan& plan, bool conjugate, const T* lhs, const T* rhs, T* out,
              InstructionSet instruction_set, const ParallelFor& parallel_for) {
  const ShortSums found = FindShortSums(plan, Arithmetic<T>::kReals);
  const bool folds = !found.loops.empty();
  Contraction<T>(folds ? found.plan : plan, folds ? &found : nullptr, conjugate, lhs, rhs, out, instruction_set)
      .Run(parallel_for);
}

#define INSTANTIATE(T) \
  template void Contract(const ContractionPlan&, bool, const T*, const T*, T*, InstructionSet, const ParallelFor&);
TF_CG_OPS_FOR_EACH_ELEMENT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace tf_cg_ops
