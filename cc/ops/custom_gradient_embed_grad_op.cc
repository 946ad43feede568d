#include "cc/lib/alignment.h"
#include "cc/lib/messages.h"
#include "cc/lib/operand_names.h"
#include "cc/ops/embed_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status CustomGradientEmbedGradShape(InferenceContext* context) {
  Axis axis;
  TF_RETURN_IF_ERROR(GetAxis(context, &axis));
  std::string wrt;
  TF_RETURN_IF_ERROR(context->GetAttr("wrt", &wrt));
  bool zero_x;
  TF_RETURN_IF_ERROR(context->GetAttr("zero_x", &zero_x));
  if (zero_x && wrt == "x") return absl::InvalidArgumentError(ZeroXWithoutX(EmbedGradNames()));
  ShapeHandle out;
  TF_RETURN_IF_ERROR(ShapeFromTensor(context, 2, EmbedGradNames().api, &out));
  context->set_output(0, out);

  const std::optional<Dims> lhs = ToDims(context, context->input(0));
  const std::optional<Dims> rhs = ToDims(context, context->input(1));
  const std::string error = Align(InRoleOrder(RoleFromName(wrt), lhs, rhs, ToDims(context, out)), axis,
                                  EmbedGradNames(), /*alignment=*/nullptr);
  return error.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error);
}

}  // namespace

REGISTER_OP("CustomGradientEmbedGrad")
    .Input("lhs: T")
    .Input("rhs: T")
    .Input("shape: Tshape")
    .Output("out: T")
    .Attr("T: {half, bfloat16, float, double, complex64, complex128}")
    .Attr("Tshape: {int32, int64} = DT_INT64")
    .Attr("wrt: {'fx', 'gx', 'x'}")
    .Attr("zero_x: bool = false")
    .Attr("fx_gx_manually_stopped: bool = false")
    .Attr("axis: list(int) = []")
    .Attr("all_axes: bool = false")
    .SetShapeFn(CustomGradientEmbedGradShape)
    .Doc(R"doc(
Returns the gradient of sum(conj(fx) * gx * x) with respect to one operand.

The operands are aligned and broadcast as in CustomGradientEmbed. The product of
two of them is summed to the shape of the third, in one pass; sums of 16-bit
types are float. The product is

- fx * conj(gx) with wrt = 'x': the vector-Jacobian product of
  CustomGradientEmbed, if fx is the upstream gradient;
- fx * conj(x) with wrt = 'gx';
- gx * x with wrt = 'fx'.

Its own gradients are also computed by this op, so it has derivatives of every
order.

lhs: The first of fx, gx and x that is not wrt.
rhs: The second of them.
shape: The shape of the operand wrt.
out: The gradient, of that shape.
wrt: The operand to differentiate with respect to.
zero_x: If true, x stands for x - stop_gradient(x), which is zero for every x.
  The output is then zero, but its derivative with respect to x is not. wrt must
  not be 'x'.
fx_gx_manually_stopped: If false, no gradient flows into gx.
axis: As in CustomGradientEmbed.
all_axes: As in CustomGradientEmbed.
)doc");

}  // namespace tf_cg_ops
