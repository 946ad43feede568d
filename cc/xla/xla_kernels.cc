// All XLA kernels are in one file, because TensorFlow's headers for them take long to compile.

#include <algorithm>
#include <string>
#include <vector>

#include "cc/kernels/kernel_shapes.h"
#include "cc/lib/alignment.h"
#include "cc/lib/messages.h"
#include "cc/lib/op_names.h"
#include "cc/lib/operand_names.h"
#include "cc/versions/xla.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::TensorShape;
using ::tensorflow::XlaOpKernel;
using ::tensorflow::XlaOpKernelContext;

// The shape of an input. If XLA knows only the upper bound of a size, that bound.
absl::Status GetDims(XlaOpKernelContext* context, int index, Dims* dims) {
  absl::StatusOr<xla::Shape> shape = context->InputXlaShape(index);
  TF_RETURN_IF_ERROR(shape.status());
  dims->assign(shape->dimensions().begin(), shape->dimensions().end());
  return absl::OkStatus();
}

// Checks that a tensor with these dimensions can hold a shape. Call it before reading the tensor: TensorFlow crashes if
// the tensor holds more dimensions than a shape can have.
absl::Status CheckHoldsShape(const std::string& api, const Dims& dims) {
  if (dims.size() != 1) return absl::InvalidArgumentError(ShapeIsNotAVector(api, dims.size()));
  const int highest = TensorShape::MaxDimensions();
  if (dims[0] > highest) return absl::InvalidArgumentError(ShapeOfTooHighARank(api, dims[0], highest));
  return absl::OkStatus();
}

// Forwards the results; the rule was already inlined into each gradient. Forwards TensorFlow's tensors, because XLA's
// builder cannot represent handles of variables.
class CustomGradientRuleXlaOp : public XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext* context) override {
    tensorflow::OpKernelContext* const kernel = context->op_kernel_context();
    for (int i = 0; i < context->num_outputs(); ++i) kernel->set_output(i, kernel->input(i));
  }
};

// Makes each output depend on an element of every input without an output, such as an upstream gradient; if these are
// all constants, on an element of its own input. XLA repeats the condition in each fusion that reads an output, so it
// is short. XLA's own optimization barrier is not enough: its CPU backend removes it before it merges equal matrix
// products. If there is nothing to wait for, the values pass as they are, without a copy.
class CustomGradientBarrierXlaOp : public XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext* context) override {
    if (context->num_inputs() == context->num_outputs()) {
      for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, context->Input(i));
      return;
    }
    xla::XlaOp all_ready = xla::ConstantR0(context->builder(), true);
    for (int i = context->num_outputs(); i < context->num_inputs(); ++i) AndIsReady(context, i, &all_ready);
    const absl::StatusOr<bool> is_constant = context->builder()->IsConstant(all_ready);
    OP_REQUIRES_OK(context, is_constant.status());
    for (int i = 0; i < context->num_outputs(); ++i) {
      xla::XlaOp ready = all_ready;
      if (*is_constant) AndIsReady(context, i, &ready);
      const xla::XlaOp value = context->Input(i);
      context->SetOutput(i, xla::Select(ready, value, xla::ZerosLike(value)));
    }
  }

 private:
  static void AndIsReady(XlaOpKernelContext* context, int index, xla::XlaOp* ready) {
    Dims dims;
    OP_REQUIRES_OK(context, GetDims(context, index, &dims));
    xla::PrimitiveType type;
    OP_REQUIRES_OK(context, tensorflow::DataTypeToPrimitiveType(context->input_type(index), &type));
    if (!IsEmpty(dims)) *ready = xla::And(*ready, IsReady(context->Input(index), dims, type));
  }

  // True for every operand, but XLA does not know that: the lowest bit of an element is less than 2.
  static xla::XlaOp IsReady(xla::XlaOp operand, const Dims& dims, xla::PrimitiveType type) {
    const Dims zeros(dims.size(), 0), ones(dims.size(), 1);
    xla::XlaOp element = xla::Reshape(xla::Slice(operand, zeros, ones, ones), {});
    if (xla::primitive_util::IsComplexType(type)) {
      element = xla::Real(element);
      type = xla::primitive_util::ComplexComponentType(type);
    }
    const int width = xla::primitive_util::BitWidth(type);
    const xla::PrimitiveType unsigned_type = xla::primitive_util::UnsignedIntegralTypeForBitWidth(std::max(width, 8));
    const xla::XlaOp bits =
        width < 8 ? xla::ConvertElementType(element, unsigned_type) : xla::BitcastConvertType(element, unsigned_type);
    xla::XlaBuilder* const builder = operand.builder();
    const xla::XlaOp lowest = xla::And(bits, xla::ConstantR0WithType(builder, unsigned_type, 1));
    return xla::Lt(lowest, xla::ConstantR0WithType(builder, unsigned_type, 2));
  }
};

class CustomGradientCheckShapeXlaOp : public XlaOpKernel {
 public:
  explicit CustomGradientCheckShapeXlaOp(OpKernelConstruction* context) : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("message", &message_));
  }

  void Compile(XlaOpKernelContext* context) override {
    Dims gradient, shape, expected;
    OP_REQUIRES_OK(context, GetDims(context, 0, &gradient));
    OP_REQUIRES_OK(context, GetDims(context, 1, &shape));
    OP_REQUIRES_OK(context, CheckHoldsShape(kCheckShapeOp, shape));
    // In a loop, a shape that is unknown while tracing comes from a tensor list, so XLA does not know its value. XLA
    // itself rejects most gradients of a wrong shape there, because loop variables must keep their shapes.
    if (context->ConstantInputAsIntVector(1, &expected).ok()) {
      TensorShape unused;  // Rejects invalid sizes.
      OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(expected, &unused));
      OP_REQUIRES(context, gradient == expected, absl::InvalidArgumentError(FillIn(message_, expected, gradient)));
    }
    context->SetOutput(0, context->Input(0));
  }

 private:
  std::string message_;
};

class CustomGradientEmbedXlaOp : public XlaOpKernel {
 public:
  explicit CustomGradientEmbedXlaOp(OpKernelConstruction* context) : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, GetAxis(context, &axis_));
  }

  void Compile(XlaOpKernelContext* context) override {
    const int pairs = (context->num_inputs() - 1) / 2;
    Dims fx;
    OP_REQUIRES_OK(context, GetDims(context, 0, &fx));
    for (int i = 0; i < pairs; ++i) {
      Dims gx, x;
      OP_REQUIRES_OK(context, GetDims(context, 1 + i, &gx));
      OP_REQUIRES_OK(context, GetDims(context, 1 + pairs + i, &x));
      const std::string error = Align({fx, gx, x}, axis_, EmbedNames(i, pairs), /*alignment=*/nullptr);
      OP_REQUIRES(context, error.empty(), absl::InvalidArgumentError(error));
    }
    context->SetOutput(0, context->Input(0));
  }

 private:
  Axis axis_;
};

// One multiplication and one sum, which XLA fuses into one pass.
class CustomGradientEmbedGradXlaOp : public XlaOpKernel {
 public:
  explicit CustomGradientEmbedGradXlaOp(OpKernelConstruction* context) : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, GetGradAttributes(context, &attributes_));
  }

  void Compile(XlaOpKernelContext* context) override {
    Dims lhs, rhs, shape;
    OP_REQUIRES_OK(context, GetDims(context, 0, &lhs));
    OP_REQUIRES_OK(context, GetDims(context, 1, &rhs));
    OP_REQUIRES_OK(context, GetDims(context, 2, &shape));
    OP_REQUIRES_OK(context, CheckHoldsShape(EmbedGradNames().api, shape));
    TensorShape out_shape;
    OP_REQUIRES_OK(context, context->ConstantInputAsShape(2, &out_shape, xla::ValueInferenceMode::kUpperBound));
    const Dims out = ToDims(out_shape);
    Alignment alignment;
    const std::string error =
        Align(InRoleOrder(attributes_.wrt, lhs, rhs, out), attributes_.axis, EmbedGradNames(), &alignment);
    OP_REQUIRES(context, error.empty(), absl::InvalidArgumentError(error));

    xla::PrimitiveType type;
    OP_REQUIRES_OK(context, tensorflow::DataTypeToPrimitiveType(context->input_type(0), &type));
    const xla::XlaOp zero = xla::Zero(context->builder(), type);
    const Dims& iteration_space = alignment.iteration_space;
    if (attributes_.zero_x || IsEmpty(iteration_space)) {
      context->SetOutput(0, xla::Broadcast(zero, out));
      return;
    }
    xla::XlaOp left = Broadcast(context->Input(0), alignment.operands[LhsRole(attributes_.wrt)], iteration_space,
                                lhs == iteration_space);
    xla::XlaOp right = Broadcast(context->Input(1), alignment.operands[RhsRole(attributes_.wrt)], iteration_space,
                                 rhs == iteration_space);
    if (attributes_.wrt != kFx) right = xla::MaybeConjugate(right, true);
    Dims reduction_dims;
    for (size_t i = 0; i < iteration_space.size(); ++i) {
      if (alignment.operands[attributes_.wrt][i] != iteration_space[i]) reduction_dims.push_back(i);
    }
    xla::XlaOp result;
    if (reduction_dims.empty()) {
      result = xla::Mul(left, right);
    } else {
      result = xla::ConvertElementType(SumOfProducts(left, right, type, reduction_dims), type);
    }
    // Only if necessary: a reshape fixes sizes that XLA knows only by their upper bounds.
    if (!reduction_dims.empty() || out != iteration_space) result = xla::Reshape(result, out);
    context->SetOutput(0, result);
  }

 private:
  // Uses the types of cc/lib/arithmetic.h, so that products neither round nor overflow before the sum.
  static xla::XlaOp SumOfProducts(xla::XlaOp left, xla::XlaOp right, xla::PrimitiveType type, const Dims& dims) {
    if (!xla::primitive_util::IsComplexType(type)) {
      const bool is_narrow = type == xla::F16 || type == xla::BF16;
      const xla::PrimitiveType sum_type = is_narrow ? xla::F32 : xla::F64;
      return Sum(xla::Mul(xla::ConvertElementType(left, sum_type), xla::ConvertElementType(right, sum_type)), sum_type,
                 dims);
    }
    // Multiplies real and imaginary parts separately: products of complex128 take several times as long on XLA's CPU.
    const auto part = [](xla::XlaOp real) { return xla::ConvertElementType(real, xla::F64); };
    const xla::XlaOp a = part(xla::Real(left)), b = part(xla::Imag(left));
    const xla::XlaOp c = part(xla::Real(right)), d = part(xla::Imag(right));
    return xla::Complex(Sum(xla::Sub(xla::Mul(a, c), xla::Mul(b, d)), xla::F64, dims),
                        Sum(xla::Add(xla::Mul(a, d), xla::Mul(b, c)), xla::F64, dims));
  }

  static xla::XlaOp Sum(xla::XlaOp terms, xla::PrimitiveType type, const Dims& dims) {
    xla::XlaBuilder* const builder = terms.builder();
    return xla::Reduce(terms, xla::Zero(builder, type), xla::CreateScalarAddComputation(type, builder), dims);
  }

  static xla::XlaOp Broadcast(xla::XlaOp operand, const Dims& aligned, const Dims& iteration_space, bool is_whole) {
    if (is_whole) return operand;
    Dims sizes, dimensions;
    for (size_t i = 0; i < iteration_space.size(); ++i) {
      if (aligned[i] != iteration_space[i]) continue;
      sizes.push_back(iteration_space[i]);
      dimensions.push_back(i);
    }
    return xla::BroadcastInDim(xla::Reshape(operand, sizes), iteration_space, dimensions);
  }

  GradAttributes attributes_;
};

REGISTER_XLA_OP(Name("CustomGradientBarrier"), CustomGradientBarrierXlaOp);
REGISTER_XLA_OP(Name("CustomGradientCheckShape"), CustomGradientCheckShapeXlaOp);
REGISTER_XLA_OP(Name("CustomGradientEmbed"), CustomGradientEmbedXlaOp);
REGISTER_XLA_OP(Name("CustomGradientEmbedGrad").CompileTimeConstantInput("shape"), CustomGradientEmbedGradXlaOp);
// Captures can be resources and variants, which only the rule reads.
REGISTER_XLA_OP(Name("CustomGradientRule").AllowResourceTypes().AllowVariantTypes(), CustomGradientRuleXlaOp);

}  // namespace
}  // namespace tf_cg_ops
