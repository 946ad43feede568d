// The shape rules of CustomGradientEmbed, in one place.
//
// The three operands fx, gx and x have shapes F, G and X. `axis` names the dimensions A of x that are the domain of one
// function; S is X without them. fx lies along S. gx lies along X if it has at least x's rank, else along S. Both are
// aligned with x from the right, with a dimension of size 1 at each place of A where they lie along S. B is what the
// three then broadcast to; F must be B without A, or a scalar where B is X. B has fewer than 2^63 elements, so that
// sizes and offsets fit into 64 bits wherever there is something to compute.

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

// A dimension, in Dims, whose size is known only at run time.
inline constexpr int64_t kUnknownDim = -1;

// Whether a tensor of this shape has no element. Its other dimensions may be too large to be multiplied.
inline bool IsEmpty(const Dims& dims) { return std::count(dims.begin(), dims.end(), 0) > 0; }

// The operands of the trilinear form that the op embeds, in the order in which every op takes them.
enum Role { kFx = 0, kGx = 1, kX = 2 };
inline constexpr int kNumRoles = 3;

// "fx", "gx" or "x", as the attribute `wrt` has it.
Role RoleFromName(const std::string& name);

// The operands' shapes; nullopt where not even the rank is known.
using OperandShapes = std::array<std::optional<Dims>, kNumRoles>;

// Puts the shape of the operand `wrt` and those of the two others, which come in the order of Role, in their places.
OperandShapes InRoleOrder(Role wrt, std::optional<Dims> lhs, std::optional<Dims> rhs, std::optional<Dims> out);

// The dimensions of x that are the domain of one function. Negative values count from the end.
struct Axis {
  Dims dims;
  bool all = false;  // `None` in Python: every dimension, also of an x whose rank is not known yet.
};

// How error messages call what the user passed.
struct OperandNames {
  std::string api;
  std::array<std::string, kNumRoles> roles;
};

struct Alignment {
  Dims joint;                            // B
  std::array<Dims, kNumRoles> operands;  // Each of B's rank, with 1 where the operand is broadcast.
};

// Applies the rules above. Returns an error message, empty if the shapes fit as far as they are known. `alignment` may
// be null; it is filled where all three ranks are known and there is no error.
std::string Align(const OperandShapes& shapes, const Axis& axis, const OperandNames& names, Alignment* alignment);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_ALIGNMENT_H_
