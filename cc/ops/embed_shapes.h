// What the shape functions share.

#ifndef TF_CG_OPS_CC_OPS_EMBED_SHAPES_H_
#define TF_CG_OPS_CC_OPS_EMBED_SHAPES_H_

#include <optional>
#include <string>

#include "cc/lib/alignment.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {

// The shape, with unknown dimensions as kUnknownDim; nullopt if the rank is unknown.
std::optional<Dims> ToDims(tensorflow::shape_inference::InferenceContext* context,
                           tensorflow::shape_inference::ShapeHandle shape);

// The shape in an input of the op `api`; dimensions can be unknown while tracing.
absl::Status ShapeFromTensor(tensorflow::shape_inference::InferenceContext* context, int input, const std::string& api,
                             tensorflow::shape_inference::ShapeHandle* shape);

// The attributes `axis` and `all_axes`.
absl::Status GetAxis(tensorflow::shape_inference::InferenceContext* context, Axis* axis);

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_OPS_EMBED_SHAPES_H_
