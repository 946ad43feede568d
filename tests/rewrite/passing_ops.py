"""Ops that mix elements, but whose gradients only move, add or select: the arguments of each, for 4 by 4 numbers."""

import numpy as np
import tensorflow as tf

raw = tf.raw_ops
POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}
POOL_3D = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 1, 1, 1, 1], "padding": "VALID"}
STRIDES = {"strides": [1] * 4, "rates": [1] * 4, "padding": "VALID"}
FRACTIONAL = {"pooling_ratio": [1.0, 1.5, 1.5, 1.0], "seed": 1, "seed2": 1, "deterministic": True}
BOX = {"boxes": [[0.0, 0.0, 1.0, 1.0]], "box_ind": [0], "crop_size": [2, 2]}
TRANSFORM = {"transforms": [[1.0, 0, 0, 0, 1.0, 0, 0, 0]], "output_shape": [4, 4], "interpolation": "BILINEAR"}
NO_PADS, PADS = [[0, 0], [0, 0]], [[1, 1], [0, 2]]
SEGMENTS, ROWS = [0, 0, 1, 1], {"indices": [0, 2], "segment_ids": [0, 0]}
# Made outside of every graph that reads it.
with tf.init_scope():
    VARIABLE = tf.Variable(np.full([4, 4], np.inf))


def image(x):
    return tf.reshape(x, [1, 4, 4, 1])


def volume(x):
    return tf.reshape(x, [1, 2, 2, 4, 1])


def single(x):
    return tf.cast(image(x), tf.float32)


def batches(x):
    return tf.reshape(x, [4, 2, 2, 1])


def complex_numbers(x):
    return tf.cast(x, tf.complex128)


def finite(x):
    return {"tensor": tf.where(tf.math.is_finite(x), x, tf.ones_like(x)), "message": ""}


def quantized(x):
    return {"input": x, "input_min": x[0, 0], "input_max": x[0, 2]}


def sparse(x, prefix):
    rows, columns = np.indices([4, 4]).reshape([2, 16]).astype(np.int64)
    parts = {"indices": np.stack([rows, columns], 1), "values": tf.reshape(x, [16]), "shape": np.array([4, 4])}
    return {f"{prefix}_{name}": part for name, part in parts.items()}


def lists(x):
    """Each op of lists once."""
    options = {"element_shape": [4], "element_dtype": x.dtype}
    filled = raw.TensorListFromTensor(tensor=x, element_shape=[4])
    filled = raw.TensorListSetItem(input_handle=filled, index=1, item=x[0])
    filled = raw.TensorListPushBack(input_handle=filled, tensor=x[1])
    filled, last = raw.TensorListPopBack(input_handle=filled, **options)
    filled = raw.TensorListResize(input_handle=filled, size=4)
    scattered = raw.TensorListScatterV2(tensor=x, indices=[3, 1, 0, 2], element_shape=[4], num_elements=4)
    lengths = np.zeros([0], np.int64)
    parts = [
        last[None],
        raw.TensorListStack(input_handle=filled, **options),
        raw.TensorListGetItem(input_handle=filled, index=2, **options)[None],
        raw.TensorListGather(input_handle=scattered, indices=[0, 1], **options),
        tf.reshape(raw.TensorListConcatV2(input_handle=filled, leading_dims=lengths, **options)[0], [4, 4]),
    ]
    return tf.concat(parts, 0)


# The arguments, or the result of a call, for each group of ops. XLA cannot compile those with a minus.
GROUPS = {
    "AvgPool": lambda x: {"value": image(x), **POOL},
    "AvgPool3D": lambda x: {"input": tf.cast(volume(x), tf.float32), **POOL_3D},
    "BatchToSpace": lambda x: {"input": batches(x), "crops": NO_PADS, "block_size": 2},
    "BatchToSpaceND": lambda x: {"input": batches(x), "crops": NO_PADS, "block_shape": [2, 2]},
    "BiasAdd BiasAddV1": lambda x: {"value": x, "bias": x[0]},
    "BiasAddGrad": lambda x: {"out_backprop": x},
    "BroadcastTo": lambda x: {"input": x, "shape": [2, 4, 4]},
    "CheckNumerics -CheckNumericsV2": finite,
    "Concat": lambda x: {"concat_dim": 0, "values": [x, x]},
    "ConcatV2": lambda x: {"axis": 0, "values": [x, x]},
    "ConjugateTranspose Transpose": lambda x: {"x": x, "perm": [1, 0]},
    "-CropAndResize": lambda x: {"image": single(x), **BOX},
    "Cumsum": lambda x: {"x": x, "axis": 0},
    "DepthToSpace": lambda x: {"input": tf.reshape(x, [1, 2, 2, 4]), "block_size": 2},
    "Diag MatrixDiag": lambda x: {"diagonal": x},
    "DiagPart Identity MatrixDiagPart": lambda x: {"input": x},
    "-Dilation2D": lambda x: {"input": image(x), "filter": x[:2, :2, None], **STRIDES},
    "DynamicPartition": lambda x: {"data": x, "partitions": [0, 1, 0, 1], "num_partitions": 2},
    "DynamicStitch ParallelDynamicStitch": lambda x: {"indices": [[0, 1], [2, 3]], "data": [x[:2], x[2:]]},
    "EnsureShape PlaceholderWithDefault": lambda x: {"input": x, "shape": [4, 4]},
    "ExpandDims": lambda x: {"input": x, "axis": 0},
    "ExtractImagePatches": lambda x: {"images": image(x), "ksizes": [1, 2, 2, 1], **STRIDES},
    "FFT FFT2D IFFT IFFT2D": lambda x: {"input": complex_numbers(x)},
    "FFT3D IFFT3D": lambda x: {"input": complex_numbers(volume(x)[0, ..., 0])},
    "FakeQuantWithMinMaxArgs": lambda x: {"inputs": single(x)},
    "FakeQuantWithMinMaxVars": lambda x: {
        "inputs": single(x),
        "min": single(x)[0, 1, 1, 0],
        "max": single(x)[0, 0, 2, 0],
    },
    "FakeQuantWithMinMaxVarsPerChannel": lambda x: {
        "inputs": single(x)[0, :, :, 0],
        "min": [-1.0] * 4,
        "max": [1.0] * 4,
    },
    "Fill": lambda x: {"dims": [2], "value": x[0, 0]},
    "-FractionalAvgPool -FractionalMaxPool": lambda x: {"value": image(x), **FRACTIONAL},
    "Gather": lambda x: {"params": x, "indices": [0, 2]},
    "GatherNd": lambda x: {"params": x, "indices": [[0, 1]]},
    "GatherV2": lambda x: {"params": x, "indices": [0, 2], "axis": 1},
    "IRFFT": lambda x: {"input": complex_numbers(x), "fft_length": [6], "Treal": tf.float64},
    "IRFFT2D": lambda x: {"input": complex_numbers(x), "fft_length": [4, 6], "Treal": tf.float64},
    "IdentityN": lambda x: {"input": [x, x]},
    "-ImageProjectiveTransformV2": lambda x: {"images": single(x), **TRANSFORM},
    "-ImageProjectiveTransformV3": lambda x: {"images": single(x), "fill_value": 0.0, **TRANSFORM},
    "MatrixBandPart": lambda x: {"input": x, "num_lower": 1, "num_upper": 1},
    "MatrixDiagPartV3": lambda x: tf.linalg.diag_part(x, k=(-1, 1)),
    "MatrixDiagV3": lambda x: tf.linalg.diag(x),
    "MatrixSetDiag": lambda x: {"input": x, "diagonal": x[0]},
    "MatrixSetDiagV3": lambda x: tf.linalg.set_diag(x, x[0]),
    "MaxPool MaxPoolV2 -MaxPoolWithArgmax": lambda x: {"input": image(x), **POOL},
    "MaxPool3D": lambda x: {"input": single(x)[None], "ksize": [1] * 5, "strides": [1] * 5, "padding": "VALID"},
    "Mean Sum": lambda x: {"input": x, "axis": 1},
    "MirrorPad": lambda x: {"input": x, "paddings": PADS, "mode": "REFLECT"},
    "-NthElement": lambda x: {"input": x, "n": 1},
    "Pack": lambda x: {"values": [x, x]},
    "Pad": lambda x: {"input": x, "paddings": PADS},
    "PadV2": lambda x: {"input": x, "paddings": PADS, "constant_values": x[0, 0]},
    "-Print": lambda x: {"input": x, "data": [x], "first_n": 0},
    "QuantizeAndDequantizeV2 -QuantizeAndDequantizeV4": quantized,
    "QuantizeAndDequantizeV3": lambda x: {"num_bits": 8, **quantized(x)},
    "RFFT": lambda x: {"input": x, "fft_length": [4], "Tcomplex": tf.complex128},
    "RFFT2D": lambda x: {"input": x, "fft_length": [4, 4], "Tcomplex": tf.complex128},
    "-RaggedTensorToTensor": lambda x: tf.RaggedTensor.from_row_lengths(x[0], [1, 3]).to_tensor(),
    "ReadVariableOp": lambda x: VARIABLE.read_value(),
    "Reshape": lambda x: {"tensor": x, "shape": [16]},
    "-ResizeBicubic ResizeBilinear -ResizeNearestNeighbor": lambda x: {"images": single(x), "size": [8, 8]},
    "ResourceGather": lambda x: VARIABLE.sparse_read([0, 2]),
    "-ResourceGatherNd": lambda x: VARIABLE.gather_nd([[0, 2]]),
    "Reverse": lambda x: {"tensor": x, "dims": [True, False]},
    "ReverseSequence": lambda x: {"input": x, "seq_lengths": [1, 2, 3, 4], "seq_dim": 1},
    "ReverseV2": lambda x: {"tensor": x, "axis": [0]},
    "Roll": lambda x: {"input": x, "shift": 1, "axis": 0},
    "-ScaleAndTranslate": lambda x: {"images": single(x), "size": [8, 8], "scale": [2.0] * 2, "translation": [0.0] * 2},
    "ScatterNd": lambda x: {"indices": [[1], [0], [2], [3]], "updates": x, "shape": [4, 4]},
    "-SegmentMean -SegmentSum": lambda x: {"data": x, "segment_ids": SEGMENTS},
    "Select": lambda x: {"condition": x > 1, "x": x, "y": x},
    "SelectV2": lambda x: {"condition": x > 1, "t": x, "e": x},
    "Slice": lambda x: {"input": x, "begin": [0, 1], "size": [2, 2]},
    "SpaceToBatch": lambda x: {"input": image(x), "paddings": NO_PADS, "block_size": 2},
    "SpaceToBatchND": lambda x: {"input": image(x), "paddings": NO_PADS, "block_shape": [2, 2]},
    "SpaceToDepth": lambda x: {"input": image(x), "block_size": 2},
    "-SparseAdd": lambda x: {**sparse(x, "a"), **sparse(x, "b"), "thresh": tf.zeros([], x.dtype)},
    "-SparseReduceSum": lambda x: {**sparse(x, "input"), "reduction_axes": [0]},
    "-SparseReorder": lambda x: sparse(x, "input"),
    "-SparseSegmentMean -SparseSegmentSqrtN -SparseSegmentSum": lambda x: {"data": x, **ROWS},
    "-SparseSegmentMeanWithNumSegments -SparseSegmentSqrtNWithNumSegments -SparseSegmentSumWithNumSegments": lambda x: {
        "data": x,
        "num_segments": 2,
        **ROWS,
    },
    "-SparseTensorDenseAdd": lambda x: {**sparse(x, "a"), "b": x},
    "SparseToDense": lambda x: tf.sparse.to_dense(
        tf.sparse.from_dense(tf.ones([4, 4])).with_values(tf.reshape(x, [16])), x[0, 0]
    ),
    "Split": lambda x: {"axis": 0, "value": x, "num_split": 2},
    "SplitV": lambda x: {"value": x, "size_splits": [1, 3], "axis": 0, "num_split": 2},
    "Squeeze": lambda x: {"input": image(x)},
    "StridedSlice": lambda x: x[1:, ::2],
    "StridedSliceGrad": lambda x: {"shape": [8], "begin": [0], "end": [8], "strides": [2], "dy": x[0]},
    "TensorScatterAdd TensorScatterSub TensorScatterUpdate": lambda x: {
        "tensor": x,
        "indices": [[1]],
        "updates": x[:1],
    },
    "Tile": lambda x: {"input": x, "multiples": [2, 1]},
    "TopKV2": lambda x: {"input": x, "k": 2},
    "Unpack": lambda x: {"value": x, "num": 4},
    "UnsortedSegmentSum": lambda x: {"data": x, "segment_ids": SEGMENTS, "num_segments": 3},
    "-TensorListFromTensor -TensorListSetItem -TensorListPushBack -TensorListPopBack -TensorListResize": lists,
    "-TensorListScatterV2 -TensorListStack -TensorListGetItem -TensorListGather -TensorListConcatV2": lists,
}
_NAMES = [(name, function) for names, function in GROUPS.items() for name in names.split()]
OPS = {name.lstrip("-"): function for name, function in _NAMES}
UNDER_XLA = [name for name, _ in _NAMES if not name.startswith("-")]


def call(op_type, x):
    """The results of an op that have a gradient."""
    found = OPS[op_type](x)
    found = tf.nest.flatten(getattr(raw, op_type)(**found) if isinstance(found, dict) else found)
    return [tensor for tensor in found if tensor.dtype.is_floating or tensor.dtype.is_complex]
