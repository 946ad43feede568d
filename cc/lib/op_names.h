// The ops of this library by name, for code that finds or makes nodes of them.

#ifndef TF_CG_OPS_CC_LIB_OP_NAMES_H_
#define TF_CG_OPS_CC_LIB_OP_NAMES_H_

#include <string>

namespace tf_cg_ops {

inline constexpr char kBarrierOp[] = "CustomGradientBarrier";
inline constexpr char kCheckShapeOp[] = "CustomGradientCheckShape";
inline constexpr char kEmbedOp[] = "CustomGradientEmbed";
inline constexpr char kEmbedGradOp[] = "CustomGradientEmbedGrad";
inline constexpr char kRefusalOp[] = "CustomGradientRefusal";
inline constexpr char kRuleOp[] = "CustomGradientRule";
inline constexpr char kTokenOp[] = "CustomGradientToken";

// Whether the op returns its first inputs with a gradient of its own.
inline bool HasCustomGradient(const std::string& op) { return op == kEmbedOp || op == kRuleOp; }

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_OP_NAMES_H_
