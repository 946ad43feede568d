// The right answers, computed a second time: slowly, element by element, independently of the library.

#ifndef TF_CG_OPS_QA_SANITIZE_ORACLE_H_
#define TF_CG_OPS_QA_SANITIZE_ORACLE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <tuple>
#include <vector>

#include "cc/lib/alignment.h"
#include "qa/sanitize/check.h"
#include "qa/sanitize/question.h"

namespace tf_cg_ops {

__extension__ typedef __int128 Wide;

// The number of elements, or 2^63 if there are as many or more.
inline Wide CountElements(const Dims& dims) {
  if (std::count(dims.begin(), dims.end(), 0) > 0) return 0;
  Wide count = 1;
  for (const int64_t dim : dims) count = std::min(count * dim, Wide{1} << 63);
  return count;
}

// Shapes from their last dimension to their first, with 1 where an operand has none.
struct Reversed {
  std::array<Dims, kNumRoles> operands;
  Dims joint;
};

// Whether shapes of known rank fit, by the rules at the top of cc/lib/alignment.h.
inline bool Fits(const Question& question, Reversed* reversed) {
  const Dims &fx = *question.shapes[kFx], &gx = *question.shapes[kGx], &x = *question.shapes[kX];
  const Wide rank = x.size();
  std::set<Wide> domain;
  if (question.axis.all && !question.axis.dims.empty()) return false;
  for (const int64_t given : question.axis.dims) {
    const Wide dimension = given < 0 ? Wide{given} + rank : Wide{given};
    if (dimension < 0 || dimension >= rank || !domain.insert(dimension).second) return false;
  }
  for (Wide i = 0; question.axis.all && i < rank; ++i) domain.insert(i);

  const auto reverse = [&](const Dims& dims, bool along_x) {
    Dims result;
    auto next = dims.rbegin();
    for (Wide i = rank - 1; i >= 0; --i) {
      if ((!along_x && domain.count(i) > 0) || next == dims.rend()) {
        result.push_back(1);
      } else {
        result.push_back(*next++);
      }
    }
    result.insert(result.end(), next, dims.rend());
    return result;
  };
  reversed->operands = {reverse(fx, false), reverse(gx, gx.size() >= x.size()), reverse(x, true)};
  size_t joint_rank = 0;
  for (const Dims& dims : reversed->operands) joint_rank = std::max(joint_rank, dims.size());
  for (Dims& dims : reversed->operands) dims.resize(joint_rank, 1);
  reversed->joint.clear();
  for (size_t i = 0; i < joint_rank; ++i) {
    std::set<int64_t> sizes = {reversed->operands[0][i], reversed->operands[1][i], reversed->operands[2][i]};
    if (sizes.size() > 1) sizes.erase(1);
    if (sizes.size() > 1) sizes.erase(kUnknownDim);
    if (sizes.size() > 1) return false;
    reversed->joint.push_back(*sizes.begin());
  }

  const auto may_be = [](int64_t a, int64_t b) { return a == b || a == kUnknownDim || b == kUnknownDim; };
  bool is_joint_without_domain = true, joint_is_x = joint_rank == x.size();
  auto next = fx.rbegin();
  for (size_t i = 0; i < joint_rank; ++i) {
    if (joint_is_x) joint_is_x = may_be(reversed->joint[i], x[x.size() - 1 - i]);
    if (Wide(i) < rank && domain.count(rank - 1 - Wide(i)) > 0) continue;
    is_joint_without_domain = is_joint_without_domain && next != fx.rend() && may_be(*next, reversed->joint[i]);
    if (next != fx.rend()) ++next;
  }
  is_joint_without_domain = is_joint_without_domain && next == fx.rend();
  if (!is_joint_without_domain && !(fx.empty() && joint_is_x)) return false;
  const bool is_known = std::count(reversed->joint.begin(), reversed->joint.end(), kUnknownDim) == 0;
  return !is_known || CountElements(reversed->joint) <= std::numeric_limits<int64_t>::max();
}

// The places of a product and of its factors: out, lhs, rhs.
using Product = std::tuple<int64_t, int64_t, int64_t>;

// Every product, in order; for joint shapes with few.
inline std::vector<Product> AllProducts(const Reversed& reversed, Role wrt) {
  std::vector<Product> products;
  const int64_t total = static_cast<int64_t>(CountElements(reversed.joint));
  for (int64_t element = 0; element < total; ++element) {
    std::array<int64_t, kNumRoles> offsets = {}, strides = {1, 1, 1};
    int64_t rest = element;
    for (size_t i = 0; i < reversed.joint.size(); ++i) {
      const int64_t index = rest % reversed.joint[i];
      rest /= reversed.joint[i];
      for (int role = 0; role < kNumRoles; ++role) {
        const int64_t size = reversed.operands[role][i];
        offsets[role] += (size == 1 ? 0 : index) * strides[role];
        strides[role] *= size;
      }
    }
    products.emplace_back(offsets[wrt], offsets[wrt == kFx ? kGx : kFx], offsets[wrt == kX ? kGx : kX]);
  }
  std::sort(products.begin(), products.end());
  return products;
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_QA_SANITIZE_ORACLE_H_
