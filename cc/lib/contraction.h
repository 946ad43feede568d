// Runs a ContractionPlan: multiplies, broadcasts and sums in one pass over the operands.
//
// How the work is cut into pieces depends on the plan alone, never on the number of threads, so that results are the
// same bits however many there are.

#ifndef TF_CG_OPS_CC_LIB_CONTRACTION_H_
#define TF_CG_OPS_CC_LIB_CONTRACTION_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "cc/lib/arithmetic.h"
#include "cc/lib/contraction_plan.h"

namespace tf_cg_ops {

// Calls work(begin, end) for ranges that make up [0, total), possibly on several threads, and returns when all is done.
// `cost` is about the number of products that one unit takes.
using ParallelFor =
    std::function<void(int64_t total, int64_t cost, const std::function<void(int64_t begin, int64_t end)>& work)>;

// Steps through a nest of loops in row-major order and keeps the operands' offsets.
class Odometer {
 public:
  // `num_loops` of the outermost loops take part; the walk starts at their `start`-th combination.
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

template <typename T, bool conjugate>
class Contraction {
 public:
  Contraction(const ContractionPlan& plan, const T* lhs, const T* rhs, T* out)
      : plan_(plan), lhs_(lhs), rhs_(rhs), out_(out) {}

  void Run(const ParallelFor& parallel_for) const {
    if (plan_.kept_size == 0) return;
    if (plan_.reduced_size == 0) {
      std::fill(out_, out_ + plan_.kept_size, T(0));
    } else if (plan_.reduced.empty()) {
      parallel_for(plan_.kept_size, 1, [this](int64_t begin, int64_t end) { MultiplyElements(begin, end); });
    } else if (const int64_t blocks = NumReducedBlocks(); blocks > 1) {
      SumInBlocks(blocks, parallel_for);
    } else {
      parallel_for(plan_.kept_size, plan_.reduced_size, [this](int64_t begin, int64_t end) {
        SumElements(begin, end, plan_.reduced, [this](int64_t i, const Sum* sums, int64_t count) {
          for (int64_t k = 0; k < count; ++k) out_[i + k] = static_cast<T>(sums[k]);
        });
      });
    }
  }

 private:
  using Product = typename Arithmetic<T>::Product;
  using Sum = typename Arithmetic<T>::Sum;

  // Sums that are built side by side; they fit the first-level cache.
  static constexpr int64_t kTile = 256;
  // Independent sums in a row of products, so that the additions overlap and vectorise.
  static constexpr int64_t kLanes = 8;
  // Below so many elements of out there are too few for all threads, and the reduction is cut into blocks of at least
  // kBlockProducts, at most kMaxBlocks of them.
  static constexpr int64_t kFewElements = 1024;
  static constexpr int64_t kBlockProducts = 32768;
  static constexpr int64_t kMaxBlocks = 64;

  // Calls run(i, lhs, rhs, count) for stretches of at most `limit` elements of out that lie in the innermost kept loop.
  template <typename F>
  void ForEachStretch(int64_t begin, int64_t end, int64_t limit, const F& run) const {
    const Loop& inner = plan_.kept.back();
    Odometer outer(plan_.kept, plan_.kept.size() - 1, begin / inner.size);
    for (int64_t j = begin % inner.size; begin < end;) {
      const int64_t count = std::min({end - begin, inner.size - j, limit});
      run(begin, lhs_ + outer.lhs() + j * inner.lhs, rhs_ + outer.rhs() + j * inner.rhs, count);
      begin += count;
      j += count;
      if (j == inner.size) {
        outer.Next();
        j = 0;
      }
    }
  }

  void MultiplyElements(int64_t begin, int64_t end) const {
    const Loop& inner = plan_.kept.back();
    ForEachStretch(begin, end, end - begin, [&](int64_t i, const T* lhs, const T* rhs, int64_t count) {
      T* out = out_ + i;
      if (inner.lhs == 1 && inner.rhs == 1) {
        // out may be lhs or rhs itself, which is no dependence between iterations.
#pragma GCC ivdep
        for (int64_t k = 0; k < count; ++k) out[k] = Element(lhs[k], rhs[k]);
      } else if (inner.lhs == 1 && inner.rhs == 0) {
        const T factor = *rhs;
#pragma GCC ivdep
        for (int64_t k = 0; k < count; ++k) out[k] = Element(lhs[k], factor);
      } else if (inner.lhs == 0 && inner.rhs == 1) {
        const T factor = *lhs;
#pragma GCC ivdep
        for (int64_t k = 0; k < count; ++k) out[k] = Element(factor, rhs[k]);
      } else {
        for (int64_t k = 0; k < count; ++k) out[k] = Element(lhs[k * inner.lhs], rhs[k * inner.rhs]);
      }
    });
  }

  static T Element(T a, T b) { return static_cast<T>(Multiply<Product, conjugate>(a, b)); }

  // Computes sums for the elements [begin, end) of out over the loops `reduced`, and hands them to
  // write(first element, sums, count).
  template <typename F>
  void SumElements(int64_t begin, int64_t end, const std::vector<Loop>& reduced, const F& write) const {
    const Loop& kept = plan_.kept.back();
    const Loop& last = reduced.back();
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < reduced.size(); ++i) rows *= reduced[i].size;
    ForEachStretch(begin, end, kTile, [&](int64_t i, const T* lhs, const T* rhs, int64_t count) {
      Sum sums[kTile];
      // Where both operands are broadcast along these elements of out, all the sums are equal.
      const int64_t distinct = kept.lhs == 0 && kept.rhs == 0 ? 1 : count;
      std::fill(sums, sums + distinct, Sum(0));
      Odometer row(reduced, reduced.size() - 1, 0);
      for (int64_t r = 0; r < rows; ++r, row.Next()) {
        const T* a = lhs + row.lhs();
        const T* b = rhs + row.rhs();
        if (plan_.reduced_is_innermost) {
          for (int64_t k = 0; k < distinct; ++k) {
            sums[k] += SumOfRow(a + k * kept.lhs, last.lhs, b + k * kept.rhs, last.rhs, last.size);
          }
        } else {
          for (int64_t s = 0; s < last.size; ++s) {
            AddRow(a + s * last.lhs, kept.lhs, b + s * last.rhs, kept.rhs, distinct, sums);
          }
        }
      }
      std::fill(sums + distinct, sums + count, sums[0]);
      write(i, sums, count);
    });
  }

  static Sum SumOfRow(const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t count) {
    if (a_step == 1 && b_step == 1)
      return SumOfRow([a](int64_t k) { return a[k]; }, [b](int64_t k) { return b[k]; }, count);
    if (a_step == 0 && b_step == 1)
      return SumOfRow([f = *a](int64_t) { return f; }, [b](int64_t k) { return b[k]; }, count);
    if (a_step == 1 && b_step == 0)
      return SumOfRow([a](int64_t k) { return a[k]; }, [f = *b](int64_t) { return f; }, count);
    return SumOfRow([a, a_step](int64_t k) { return a[k * a_step]; }, [b, b_step](int64_t k) { return b[k * b_step]; },
                    count);
  }

  template <typename A, typename B>
  static Sum SumOfRow(const A& a, const B& b, int64_t count) {
    Sum lanes[kLanes] = {};
    int64_t k = 0;
    for (; k + kLanes <= count; k += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += Multiply<Sum, conjugate>(a(k + lane), b(k + lane));
    }
    for (; k < count; ++k) lanes[k % kLanes] += Multiply<Sum, conjugate>(a(k), b(k));
    Sum sum(0);
    for (const Sum& lane : lanes) sum += lane;
    return sum;
  }

  static void AddRow(const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t count, Sum* sums) {
    if (a_step == 1 && b_step == 1) {
      for (int64_t k = 0; k < count; ++k) sums[k] += Multiply<Sum, conjugate>(a[k], b[k]);
    } else if (a_step == 0 && b_step == 1) {
      for (int64_t k = 0; k < count; ++k) sums[k] += Multiply<Sum, conjugate>(*a, b[k]);
    } else if (a_step == 1 && b_step == 0) {
      for (int64_t k = 0; k < count; ++k) sums[k] += Multiply<Sum, conjugate>(a[k], *b);
    } else {
      for (int64_t k = 0; k < count; ++k) sums[k] += Multiply<Sum, conjugate>(a[k * a_step], b[k * b_step]);
    }
  }

  size_t LongestReducedLoop() const {
    const auto longest = std::max_element(plan_.reduced.begin(), plan_.reduced.end(),
                                          [](const Loop& a, const Loop& b) { return a.size < b.size; });
    return longest - plan_.reduced.begin();
  }

  int64_t NumReducedBlocks() const {
    if (plan_.kept_size >= kFewElements) return 1;
    const int64_t by_work = plan_.kept_size * plan_.reduced_size / kBlockProducts;
    return std::min({by_work, plan_.reduced[LongestReducedLoop()].size, kMaxBlocks});
  }

  // Cuts the longest reduced loop into blocks, sums each up on its own, and then adds the blocks in order.
  void SumInBlocks(int64_t blocks, const ParallelFor& parallel_for) const {
    const size_t longest = LongestReducedLoop();
    const int64_t size = plan_.reduced[longest].size;
    std::vector<Sum> partial(blocks * plan_.kept_size);
    parallel_for(blocks, plan_.kept_size * plan_.reduced_size / blocks, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = size * block / blocks;
        std::vector<Loop> reduced = plan_.reduced;
        reduced[longest].size = size * (block + 1) / blocks - first;
        const Contraction part(plan_, lhs_ + first * reduced[longest].lhs, rhs_ + first * reduced[longest].rhs,
                               nullptr);
        part.SumElements(0, plan_.kept_size, reduced, [&](int64_t i, const Sum* sums, int64_t count) {
          std::copy(sums, sums + count, partial.begin() + block * plan_.kept_size + i);
        });
      }
    });
    for (int64_t i = 0; i < plan_.kept_size; ++i) {
      Sum sum(0);
      for (int64_t block = 0; block < blocks; ++block) sum += partial[block * plan_.kept_size + i];
      out_[i] = static_cast<T>(sum);
    }
  }

  const ContractionPlan& plan_;
  const T* lhs_;
  const T* rhs_;
  T* out_;
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_CONTRACTION_H_
