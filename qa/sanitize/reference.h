// The expected results, computed independently of the library, element by element.

#ifndef TF_CG_OPS_QA_SANITIZE_REFERENCE_H_
#define TF_CG_OPS_QA_SANITIZE_REFERENCE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>
#include <tuple>
#include <vector>

#include "cc/lib/alignment.h"
#include "qa/sanitize/request.h"

// Ends the process with a message that names the line, as the sanitizers do.
#define TF_CG_OPS_CHECK(condition)                                                         \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: WRONG: expected %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

namespace tf_cg_ops {

__extension__ typedef __int128 Wide;

// The number of elements, or 2^63 if there are as many or more.
inline Wide CountElements(const Dims& dims) {
  if (std::count(dims.begin(), dims.end(), 0) > 0) return 0;
  Wide count = 1;
  for (const int64_t dim : dims) count = std::min(count * dim, Wide{1} << 63);
  return count;
}

// Shapes from the last dimension to the first, padded with 1.
struct Reversed {
  std::array<Dims, kNumRoles> operands;
  Dims iteration_space;
};

// Whether shapes of known rank fit, by the rules in cc/lib/alignment.h.
inline bool Fits(const Request& request, Reversed* reversed) {
  const Dims &fx = *request.shapes[kFx], &gx = *request.shapes[kGx], &x = *request.shapes[kX];
  const Wide rank = x.size();
  std::set<Wide> events;
  if (request.axis.all && !request.axis.dims.empty()) return false;
  for (const int64_t value : request.axis.dims) {
    const Wide dimension = value < 0 ? Wide{value} + rank : Wide{value};
    if (dimension < 0 || dimension >= rank || !events.insert(dimension).second) return false;
  }
  for (Wide i = 0; request.axis.all && i < rank; ++i) events.insert(i);

  const auto reverse = [&](const Dims& dims, bool along_x) {
    Dims result;
    auto next = dims.rbegin();
    for (Wide i = rank - 1; i >= 0; --i) {
      if ((!along_x && events.count(i) > 0) || next == dims.rend()) {
        result.push_back(1);
      } else {
        result.push_back(*next++);
      }
    }
    result.insert(result.end(), next, dims.rend());
    return result;
  };
  reversed->operands = {reverse(fx, false), reverse(gx, gx.size() >= x.size()), reverse(x, true)};
  size_t full_rank = 0;
  for (const Dims& dims : reversed->operands) full_rank = std::max(full_rank, dims.size());
  for (Dims& dims : reversed->operands) dims.resize(full_rank, 1);
  reversed->iteration_space.clear();
  for (size_t i = 0; i < full_rank; ++i) {
    std::set<int64_t> sizes = {reversed->operands[0][i], reversed->operands[1][i], reversed->operands[2][i]};
    if (sizes.size() > 1) sizes.erase(1);
    if (sizes.size() > 1) sizes.erase(kUnknownDim);
    if (sizes.size() > 1) return false;
    reversed->iteration_space.push_back(*sizes.begin());
  }

  const auto may_be = [](int64_t a, int64_t b) { return a == b || a == kUnknownDim || b == kUnknownDim; };
  bool is_batch_shape = true, has_shape_of_x = full_rank == x.size();
  auto next = fx.rbegin();
  for (size_t i = 0; i < full_rank; ++i) {
    if (has_shape_of_x) has_shape_of_x = may_be(reversed->iteration_space[i], x[x.size() - 1 - i]);
    if (Wide(i) < rank && events.count(rank - 1 - Wide(i)) > 0) continue;
    is_batch_shape = is_batch_shape && next != fx.rend() && may_be(*next, reversed->iteration_space[i]);
    if (next != fx.rend()) ++next;
  }
  is_batch_shape = is_batch_shape && next == fx.rend();
  if (!is_batch_shape && !(fx.empty() && has_shape_of_x)) return false;
  const bool is_known =
      std::count(reversed->iteration_space.begin(), reversed->iteration_space.end(), kUnknownDim) == 0;
  return !is_known || CountElements(reversed->iteration_space) <= std::numeric_limits<int64_t>::max();
}

// The offsets of a product: out, lhs, rhs.
using Product = std::tuple<int64_t, int64_t, int64_t>;

// All products in order, for small iteration spaces.
inline std::vector<Product> AllProducts(const Reversed& reversed, Role wrt) {
  std::vector<Product> products;
  const int64_t total = static_cast<int64_t>(CountElements(reversed.iteration_space));
  for (int64_t element = 0; element < total; ++element) {
    std::array<int64_t, kNumRoles> offsets = {}, strides = {1, 1, 1};
    int64_t rest = element;
    for (size_t i = 0; i < reversed.iteration_space.size(); ++i) {
      const int64_t index = rest % reversed.iteration_space[i];
      rest /= reversed.iteration_space[i];
      for (int role = 0; role < kNumRoles; ++role) {
        const int64_t size = reversed.operands[role][i];
        offsets[role] += (size == 1 ? 0 : index) * strides[role];
        strides[role] *= size;
      }
    }
    products.emplace_back(offsets[wrt], offsets[LhsRole(wrt)], offsets[RhsRole(wrt)]);
  }
  std::sort(products.begin(), products.end());
  return products;
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_QA_SANITIZE_REFERENCE_H_
