#include "cc/lib/alignment.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cc/lib/messages.h"

namespace tf_cg_ops {
namespace {

// Sets, for each dimension of x, whether `axis` names it. Returns an error message, or an empty string.
std::string FindEventDimensions(const Dims& x, const Axis& axis, const OperandNames& names,
                                std::vector<bool>* is_event) {
  const int64_t rank = x.size();
  is_event->assign(rank, axis.all);
  for (const int64_t value : axis.dims) {
    if (value < -rank || value >= rank) return AxisOutOfRange(names, value, x);
    const int64_t dimension = value < 0 ? value + rank : value;
    if ((*is_event)[dimension]) return DuplicateAxis(names, dimension, axis, x);
    (*is_event)[dimension] = true;
  }
  return "";
}

// Turns dimensions of S into dimensions of X: inserts size 1 at each event dimension. Additional dimensions stay in
// front; missing ones become 1.
Dims ExpandToX(const Dims& dims, const std::vector<bool>& is_event) {
  const size_t rank_s = std::count(is_event.begin(), is_event.end(), false);
  Dims along_s(std::max(dims.size(), rank_s) - dims.size(), 1);
  along_s.insert(along_s.end(), dims.begin(), dims.end());
  auto next = along_s.begin() + (along_s.size() - rank_s);
  Dims expanded(along_s.begin(), next);
  for (const bool is_one : is_event) expanded.push_back(is_one ? 1 : *next++);
  return expanded;
}

void PadToRank(size_t rank, Dims* dims) { dims->insert(dims->begin(), rank - dims->size(), 1); }

// Broadcasts one dimension. A known size other than 1 replaces an unknown size, as it does at run time.
bool BroadcastDim(int64_t dim, int64_t* iteration_space) {
  if (dim == 1 || dim == *iteration_space) return true;
  if (*iteration_space == 1 || (*iteration_space == kUnknownDim && dim != kUnknownDim)) {
    *iteration_space = dim;
    return true;
  }
  return dim == kUnknownDim;
}

// Whether the shape can have fewer than 2^63 elements at run time, where an unknown dimension can be 0.
bool MayBeCounted(const Dims& dims) {
  if (std::any_of(dims.begin(), dims.end(), [](int64_t dim) { return dim <= 0; })) return true;
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const int64_t dim : dims) most /= dim;
  return most > 0;
}

// Whether two shapes can be equal at run time.
bool MayEqual(const Dims& a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](int64_t m, int64_t n) { return m == n || m == kUnknownDim || n == kUnknownDim; });
}

}  // namespace

Role RoleFromName(const std::string& name) { return name == "fx" ? kFx : name == "gx" ? kGx : kX; }

OperandShapes InRoleOrder(Role wrt, std::optional<Dims> lhs, std::optional<Dims> rhs, std::optional<Dims> out) {
  OperandShapes shapes;
  shapes[wrt] = std::move(out);
  shapes[LhsRole(wrt)] = std::move(lhs);
  shapes[RhsRole(wrt)] = std::move(rhs);
  return shapes;
}

std::string Align(const OperandShapes& shapes, const Axis& axis, const OperandNames& names, Alignment* alignment) {
  if (axis.all && !axis.dims.empty()) return AxisWithAllAxes(names, axis);
  if (!shapes[kX]) return "";
  const Dims& x = *shapes[kX];
  std::vector<bool> is_event;
  if (std::string error = FindEventDimensions(x, axis, names, &is_event); !error.empty()) return error;
  if (!shapes[kFx] || !shapes[kGx]) return "";
  const Dims& fx = *shapes[kFx];
  const Dims& gx = *shapes[kGx];
  const ShapeError error{names, shapes, axis, is_event};

  Alignment local;
  Alignment& result = alignment == nullptr ? local : *alignment;
  result.operands = {ExpandToX(fx, is_event), gx.size() >= x.size() ? gx : ExpandToX(gx, is_event), x};
  size_t rank = 0;
  for (const Dims& dims : result.operands) rank = std::max(rank, dims.size());
  result.iteration_space.assign(rank, 1);
  for (Dims& dims : result.operands) {
    PadToRank(rank, &dims);
    for (size_t i = 0; i < rank; ++i) {
      if (!BroadcastDim(dims[i], &result.iteration_space[i])) return DoNotBroadcast(error);
    }
  }

  Dims expected_fx;
  const size_t extra = rank - x.size();
  for (size_t i = 0; i < rank; ++i) {
    if (i < extra || !is_event[i - extra]) expected_fx.push_back(result.iteration_space[i]);
  }
  const bool scalar_of_all_x = fx.empty() && MayEqual(result.iteration_space, x);
  if (!scalar_of_all_x && !MayEqual(fx, expected_fx)) {
    return WrongFxShape(error, expected_fx);
  }
  if (!MayBeCounted(result.iteration_space)) return TooManyProducts(error);
  return "";
}

}  // namespace tf_cg_ops
