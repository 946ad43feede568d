#include "cc/lib/alignment.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cc/lib/messages.h"

namespace tf_cg_ops {
namespace {

// For each dimension of x, whether `axis` names it. Returns an error message, empty if there is none.
std::string DomainOf(const Dims& x, const Axis& axis, const OperandNames& names, std::vector<bool>* in_domain) {
  const int64_t rank = x.size();
  in_domain->assign(rank, axis.all);
  for (const int64_t given : axis.dims) {
    if (given < -rank || given >= rank) return AxisOutOfRange(names, given, x);
    const int64_t dimension = given < 0 ? given + rank : given;
    if ((*in_domain)[dimension]) return AxisGivenTwice(names, dimension, axis, x);
    (*in_domain)[dimension] = true;
  }
  return "";
}

// Puts a size-1 dimension in at each place of the domain, so that dims along S become dims along X. What dims has
// beyond S stays in front; what it lacks is filled with 1.
Dims SpreadAlongX(const Dims& dims, const std::vector<bool>& in_domain) {
  const size_t rank_s = std::count(in_domain.begin(), in_domain.end(), false);
  Dims along_s(std::max(dims.size(), rank_s) - dims.size(), 1);
  along_s.insert(along_s.end(), dims.begin(), dims.end());
  auto next = along_s.begin() + (along_s.size() - rank_s);
  Dims spread(along_s.begin(), next);
  for (const bool named : in_domain) spread.push_back(named ? 1 : *next++);
  return spread;
}

void PadToRank(size_t rank, Dims* dims) { dims->insert(dims->begin(), rank - dims->size(), 1); }

// Broadcasts one dimension. A known size other than 1 wins over an unknown one, as it does in NumPy at run time.
bool BroadcastDim(int64_t dim, int64_t* joint) {
  if (dim == 1 || dim == *joint) return true;
  if (*joint == 1 || (*joint == kUnknownDim && dim != kUnknownDim)) {
    *joint = dim;
    return true;
  }
  return dim == kUnknownDim;
}

// Whether the shape may have fewer than 2^63 elements at run time: an unknown dimension may turn out to be 0.
bool MayBeCounted(const Dims& dims) {
  if (std::any_of(dims.begin(), dims.end(), [](int64_t dim) { return dim <= 0; })) return true;
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const int64_t dim : dims) most /= dim;
  return most > 0;
}

// Whether two shapes may turn out equal at run time.
bool MayEqual(const Dims& a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](int64_t m, int64_t n) { return m == n || m == kUnknownDim || n == kUnknownDim; });
}

}  // namespace

Role RoleFromName(const std::string& name) { return name == "fx" ? kFx : name == "gx" ? kGx : kX; }

OperandShapes InRoleOrder(Role wrt, std::optional<Dims> lhs, std::optional<Dims> rhs, std::optional<Dims> out) {
  OperandShapes shapes;
  shapes[wrt] = std::move(out);
  shapes[wrt == kFx ? kGx : kFx] = std::move(lhs);
  shapes[wrt == kX ? kGx : kX] = std::move(rhs);
  return shapes;
}

std::string Align(const OperandShapes& shapes, const Axis& axis, const OperandNames& names, Alignment* alignment) {
  if (axis.all && !axis.dims.empty()) return AxisWithAllAxes(names, axis);
  if (!shapes[kX]) return "";
  const Dims& x = *shapes[kX];
  std::vector<bool> in_domain;
  if (std::string error = DomainOf(x, axis, names, &in_domain); !error.empty()) return error;
  if (!shapes[kFx] || !shapes[kGx]) return "";
  const Dims& fx = *shapes[kFx];
  const Dims& gx = *shapes[kGx];
  const Misfit misfit{names, shapes, axis, in_domain};

  Alignment local;
  Alignment& result = alignment == nullptr ? local : *alignment;
  result.operands = {SpreadAlongX(fx, in_domain), gx.size() >= x.size() ? gx : SpreadAlongX(gx, in_domain), x};
  size_t rank = 0;
  for (const Dims& dims : result.operands) rank = std::max(rank, dims.size());
  result.joint.assign(rank, 1);
  for (Dims& dims : result.operands) {
    PadToRank(rank, &dims);
    for (size_t i = 0; i < rank; ++i) {
      if (!BroadcastDim(dims[i], &result.joint[i])) return DoNotBroadcast(misfit);
    }
  }

  Dims expected_fx;
  const size_t extra = rank - x.size();
  for (size_t i = 0; i < rank; ++i) {
    if (i < extra || !in_domain[i - extra]) expected_fx.push_back(result.joint[i]);
  }
  const bool scalar_of_all_x = fx.empty() && MayEqual(result.joint, x);
  if (!scalar_of_all_x && !MayEqual(fx, expected_fx)) {
    return WrongFxShape(misfit, expected_fx);
  }
  if (!MayBeCounted(result.joint)) return TooManyProducts(misfit);
  return "";
}

}  // namespace tf_cg_ops
