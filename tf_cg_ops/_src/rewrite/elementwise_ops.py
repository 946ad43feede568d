"""Ops that work element by element, and gradients of theirs that are zero wherever the upstream gradient is."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.custom_gradient import traced_rule
from tf_cg_ops._src.custom_gradient.attaching import attach
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.rewrite.overridden_op import OverriddenOp

KEEP_ZERO, MULTIPLY, PASS_ON = (
    frozenset(names.split())
    for names in (
        # Their gradients select, add or change the sign, so they make no nan of a zero.
        "Add AddN AddV2 Cast Ceil ClipByValue Complex Conj Floor FloorDiv Imag LeakyRelu Maximum Minimum Neg "
        "NextAfter Real Relu Relu6 Rint Round Sign Sub TruncateDiv",
        # Their gradients multiply by numbers that can be infinite or nan.
        "Abs Acos Acosh Angle Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 "
        "BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc ComplexAbs Cos Cosh Dawsn Digamma Div "
        "DivNoNan Elu EluGrad Erf Erfc Erfinv Exp Expint Expm1 FloorMod FresnelCos FresnelSin Igamma Igammac Inv "
        "InvGrad LeakyReluGrad Lgamma Log Log1p Mul MulNoNan Ndtri Polygamma Pow RealDiv Reciprocal ReciprocalGrad "
        "Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sin Sinh Softplus SoftplusGrad "
        "Softsign Spence Sqrt SqrtGrad Square SquaredDifference Tan Tanh TanhGrad Xdivy Xlog1py Xlogy Zeta",
        # Not element by element: their gradients move, add or select, so they make no nan of a zero either.
        # What does not stand here is named in a warning.
        "AvgPool AvgPool3D BatchToSpace BatchToSpaceND BiasAdd BiasAddGrad BiasAddV1 BroadcastTo CheckNumerics "
        "CheckNumericsV2 Concat ConcatV2 ConjugateTranspose CropAndResize Cumsum DepthToSpace Diag DiagPart "
        "Dilation2D DynamicPartition DynamicStitch EnsureShape ExpandDims ExtractImagePatches FFT FFT2D FFT3D "
        "FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel Fill FractionalAvgPool "
        "FractionalMaxPool Gather GatherNd GatherV2 IFFT IFFT2D IFFT3D IRFFT IRFFT2D Identity IdentityN "
        "ImageProjectiveTransformV2 ImageProjectiveTransformV3 MatrixBandPart MatrixDiag MatrixDiagPart "
        "MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV3 MaxPool MaxPool3D MaxPoolV2 MaxPoolWithArgmax "
        "Mean MirrorPad NthElement Pack Pad PadV2 ParallelDynamicStitch PlaceholderWithDefault Print "
        "QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 RFFT RFFT2D RaggedTensorToTensor "
        "ReadVariableOp Reshape ResizeBicubic ResizeBilinear ResizeNearestNeighbor ResourceGather ResourceGatherNd "
        "Reverse ReverseSequence ReverseV2 Roll ScaleAndTranslate ScatterNd SegmentMean SegmentSum Select SelectV2 "
        "Slice SpaceToBatch SpaceToBatchND SpaceToDepth SparseAdd SparseReduceSum SparseReorder SparseSegmentMean "
        "SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments SparseSegmentSum "
        "SparseSegmentSumWithNumSegments SparseTensorDenseAdd SparseToDense Split SplitV Squeeze StridedSlice "
        "StridedSliceGrad Sum TensorListConcatV2 TensorListFromTensor TensorListGather TensorListGetItem "
        "TensorListPopBack TensorListPushBack TensorListResize TensorListScatterV2 TensorListSetItem "
        "TensorListStack TensorScatterAdd TensorScatterSub TensorScatterUpdate Tile TopKV2 Transpose Unpack "
        "UnsortedSegmentSum",
    )
)
TYPES = KEEP_ZERO | MULTIPLY

# Takes tensors of one shape, and returns one tensor of that shape, or None, for each derivative.
_Function = Callable[[list[Any]], Sequence[Any]]

# Calls and branches, which multiply nothing, and ops with their own gradient, which count as functions.
_HANDLED = calls.TYPES | control_flow.TYPES_OF_TENSORFLOW_1 | {"CustomGradientEmbed", "CustomGradientRule"}

_WORDING = without_gradient_function("rules.masked")


def is_elementwise(op: Any) -> bool:
    """Whether an op works element by element on real or complex numbers, and has TensorFlow's gradient."""
    return op.type in TYPES and "_gradient_op_type" not in op.node_def.attr and tf_internal.is_trainable(op.outputs[0])


def may_multiply(op: Any) -> bool:
    """Whether the gradient of an op is not known to keep zeros, and no rule for elementwise ops changes it."""
    is_known = op.type in TYPES or op.type in PASS_ON or op.type in _HANDLED
    ends = (op.inputs, op.outputs)
    return (
        not is_known
        and all(any(map(tf_internal.is_trainable, tensors)) for tensors in ends)
        and (tf_internal.find_gradient_function(op) is not None)
    )


def masked_gradients(op: Any, dy: tf.Tensor, built_in: Callable[..., list[Any]]) -> list[tf.Tensor | None]:
    """The gradients of an op that multiplies, with zeros where `dy` is zero. `built_in` is TensorFlow's gradient."""
    outputs = op.values if isinstance(op, OverriddenOp) else op.outputs
    inputs, name = list(op.inputs), f"{op.name} ({op.type})"

    def of_copy(tensors: list[Any]) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        attributes = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
        copy = tf_internal.create_op(graph, op.type, tensors[:-1], attributes)
        return built_in(copy, tensors[-1])

    like = None if len(inputs) == 1 else dy
    wide = [_broadcast_like(x, like) for x in inputs]
    gradients = built_in(OverriddenOp(op, wide, outputs), dy)
    if any(x is y for x, y in zip(inputs, wide, strict=True)):  # A gradient of the full shape needs no broadcasting.
        direct = built_in(OverriddenOp(op, inputs, outputs), dy)
        gradients = [d if x is y else g for x, y, d, g in zip(inputs, wide, direct, gradients, strict=True)]
    scaled = [_multiplies_by_number(op.type, inputs, i) for i in range(len(inputs))]
    values = [None if is_scaled else g for g, is_scaled in zip(gradients, scaled, strict=True)]
    orders = op.orders if isinstance(op, OverriddenOp) else 2
    masked = _masked(name, orders, of_copy, [*inputs, dy], [dy], values, like)
    masked = [g if is_scaled else m for g, m, is_scaled in zip(gradients, masked, scaled, strict=True)]
    return [_sum_to(g, x, like) for g, x in zip(masked, inputs, strict=True)]


def _masked(
    name: str,
    orders: int,
    function: _Function,
    tensors: list[Any],
    weights: list[Any],
    values: Sequence[Any],
    like: Any,
) -> list[Any]:
    """The values of a function, zero where a weight is zero and the value is not finite, at all orders of derivative.

    A derivative has the weights of the function and its own upstream gradient. So it is never the product of a zero
    and a number that is not finite, but by `dy` it is the op's own derivative also where `dy` is zero.
    """
    selected = [tf.not_equal(weight, 0) for weight in weights]
    positions = [i for i, value in enumerate(values) if value is not None]
    results = [_where(selected, values[i], weights[0]) for i in positions]

    def backward(upstream: list[Any]) -> list[Any]:
        wide = [_broadcast_like(tensor, like) for tensor in tensors]
        sums: list[Any] = [None] * len(tensors)
        for position, c in zip(positions, upstream, strict=True):

            def derivative(tensors: list[Any], position: int = position) -> list[Any]:
                *primals, c = map(tf.identity, tensors)
                value = function(primals)[position]
                return tf.gradients(value, primals, c)

            parts = derivative([*wide, c])
            parts = _masked(name, orders, derivative, [*wide, c], [*weights, c], parts, like)
            for i, part in enumerate(parts):
                if part is not None:
                    sums[i] = part if sums[i] is None else sums[i] + part
        return [_sum_to(g, tensor, like) for g, tensor in zip(sums, tensors, strict=True)]

    with traced_rule.computing_derivative(traced_rule.current_order()):  # Each order multiplies what is traced.
        attached = iter(attach(_WORDING, name, results, tensors, backward, saved_orders=orders))
    return [next(attached) if i in positions else None for i in range(len(values))]


def _where(selected: list[Any], value: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """The value, or zero where something is not selected and the value is not finite."""
    keep = functools.reduce(tf.logical_and, selected)
    if len(selected) == 1:  # Where dy is not selected, it is zero: no tensor of zeros is needed.
        return tf.where(keep, value, dy if dy.dtype == value.dtype else tf.zeros_like(value))
    is_finite = tf.math.is_finite(tf.abs(value) if value.dtype.is_complex else value)
    return tf.where(keep | is_finite, value, tf.zeros_like(value))


def _multiplies_by_number(op_type: str, inputs: list[Any], i: int) -> bool:
    """Whether the op's derivative by this input is a number that the graph shows to be finite, so that 0 stays 0."""
    if op_type not in ("Mul", "RealDiv") or inputs[1 - i].shape.rank != 0 or (op_type == "RealDiv" and i == 1):
        return False
    number = tf.get_static_value(inputs[1 - i])
    return number is not None and bool(np.isfinite(number)) and (op_type == "Mul" or number != 0)


def _broadcast_like(tensor: Any, like: Any) -> Any:
    if like is None or (tensor.shape.is_fully_defined() and tensor.shape == like.shape):
        return tensor
    return tf.broadcast_to(tensor, tf.shape(like))


def _sum_to(gradient: Any, tensor: Any, like: Any) -> Any:
    """The sum over the dimensions in which the tensor was broadcast."""
    if gradient is None or _broadcast_like(tensor, like) is tensor:
        return gradient
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(tensor), s1=tf.shape(like))
    return tf.reshape(tf.reduce_sum(gradient, axes), tf.shape(tensor))
