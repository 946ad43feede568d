// The shape rules of CustomGradientEmbed, in one place.
//
// The operands fx, gx and x have shapes F, G and X. `axis` names the event dimensions A of x, which one function takes
// as its input. S is X without A. fx has the dimensions of S. gx has the dimensions of X if its rank is at least the
// rank of x, otherwise the dimensions of S. Both are aligned with x from the right; an operand with the dimensions of S
// gets a dimension of size 1 at each position of A. The three then broadcast to the shape B, the iteration space. F
// must be B without A, or a scalar if B equals X. B has fewer than 2^63 elements, so if there is something to compute,
// sizes and offsets fit into 64 bits.

#ifndef TF_CG_OPS_CC_LIB_ALIGNMENT_H_
#define TF_CG_OPS_CC_LIB_ALIGNMENT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tf_cg_ops {

using Dims = std::vector<int64_t>;

// In Dims: a dimension whose size is known only at run time.
inline constexpr int64_t kUnknownDim = -1;

// Whether a tensor of this shape is empty. The product of its other dimensions can overflow.
inline bool IsEmpty(const Dims& dims) { return std::count(dims.begin(), dims.end(), 0) > 0; }

// The operands of the trilinear form that the op embeds, in the order of every op's inputs.
enum Role { kFx = 0, kGx = 1, kX = 2 };
inline constexpr int kNumRoles = 3;

// The operands of the gradient with respect to `wrt`: the other two, in the order of Role.
constexpr Role LhsRole(Role wrt) { return wrt == kFx ? kGx : kFx; }
constexpr Role RhsRole(Role wrt) { return wrt == kX ? kGx : kX; }

// The role that the attribute `wrt` names: "fx", "gx" or "x".
Role RoleFromName(const std::string& name);

// The operands' shapes; nullopt if the rank is unknown.
using OperandShapes = std::array<std::optional<Dims>, kNumRoles>;

// The shapes by role, of the gradient with respect to `wrt`, whose shape is `out`.
OperandShapes InRoleOrder(Role wrt, std::optional<Dims> lhs, std::optional<Dims> rhs, std::optional<Dims> out);

// The event dimensions of x. Negative values count from the end.
struct Axis {
  Dims dims;
  bool all = false;  // `None` in Python: every dimension, even while the rank of x is unknown.
};

// The names that error messages use for the API and its operands.
struct OperandNames {
  std::string api;
  std::array<std::string, kNumRoles> roles;
};

struct Alignment {
  Dims iteration_space;                  // B
  std::array<Dims, kNumRoles> operands;  // Each has the rank of B, with size 1 where the operand is broadcast.
};

// Applies the rules above. Returns an error message, or an empty string if the known dimensions fit. If all three ranks
// are known and there is no error, fills `alignment`, unless that is null.
std::string Align(const OperandShapes& shapes, const Axis& axis, const OperandNames& names, Alignment* alignment);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_ALIGNMENT_H_
