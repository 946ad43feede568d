#include "cc/lib/alignment.h"
#include "cc/lib/operand_names.h"
#include "cc/ops/embed_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status CustomGradientEmbedShape(InferenceContext* context) {
  Axis axis;
  TF_RETURN_IF_ERROR(GetAxis(context, &axis));
  const int pairs = (context->num_inputs() - 1) / 2;
  for (int i = 0; i < pairs; ++i) {
    const OperandShapes shapes = {ToDims(context, context->input(0)), ToDims(context, context->input(1 + i)),
                                  ToDims(context, context->input(1 + pairs + i))};
    if (std::string error = Align(shapes, axis, EmbedNames(i, pairs), nullptr); !error.empty()) {
      return absl::InvalidArgumentError(error);
    }
  }
  context->set_output(0, context->input(0));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CustomGradientEmbed")
    .Input("fx: T")
    .Input("gx: N * T")
    .Input("x: N * T")
    .Output("h: T")
    .Attr("T: {half, bfloat16, float, double, complex64, complex128}")
    .Attr("N: int >= 1")
    .Attr("fx_gx_manually_stopped: bool = false")
    .Attr("axis: list(int) = []")
    .Attr("all_axes: bool = false")
    .SetShapeFn(CustomGradientEmbedShape)
    .Doc(R"doc(
Returns fx unchanged, with gx as its derivative with respect to x.

The output shares fx's buffer, so the forward pass moves no data. For an upstream
gradient dy, the gradient with respect to x[i] is the vector-Jacobian product
sum(dy * conj(gx[i])), broadcast and then summed down to the shape of x[i].

Let F, G and X be the shapes of fx, gx[i] and x[i], A the event dimensions that
`axis` names, and S the shape X without A. fx has the dimensions of S. gx[i] has
the dimensions of X if its rank is at least the rank of x[i], otherwise the
dimensions of S. Operands with the dimensions of S get a dimension of size 1 at
each position of A; all are aligned from the right, as in NumPy. Let B be the
shape that they broadcast to: F must be B without A, or a scalar if B equals X.

fx: The value.
gx: The derivatives, one for each x.
x: The inputs that the derivatives are with respect to.
h: fx, bit for bit.
fx_gx_manually_stopped: If false, no gradient of any order flows into fx and gx.
  If true, derivatives of every order are computed as for
  fx + gx * (x - stop_gradient(x)).
axis: The event dimensions of x, which one function takes as its input. Negative
  values count from the end.
all_axes: If true, all dimensions of x are event dimensions, and axis must be
  empty.
)doc");

}  // namespace tf_cg_ops
