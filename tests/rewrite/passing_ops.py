"""Ops that mix elements, but whose gradients only move, add or select: a call of each, for a matrix of 4 by 4 numbers."""

import numpy as np
import tensorflow as tf

raw = tf.raw_ops
POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}
POOL_3D = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 1, 1, 1, 1], "padding": "VALID"}
FRACTIONAL = {"pooling_ratio": [1.0, 1.5, 1.5, 1.0], "seed": 1, "seed2": 1, "deterministic": True}
BLOCKS = {"block_shape": [2, 2]}
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
    return tf.where(tf.math.is_finite(x), x, tf.ones_like(x))


def sparse(x):
    rows, columns = np.indices([4, 4]).reshape([2, 16]).astype(np.int64)
    return {"indices": np.stack([rows, columns], 1), "values": tf.reshape(x, [16]), "shape": np.array([4, 4])}


def two_sparse(x):
    return {f"{letter}_{key}": value for letter in "ab" for key, value in sparse(x).items()}


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


LISTS = [
    *("FromTensor", "SetItem", "PushBack", "PopBack", "Resize", "ScatterV2", "Stack", "GetItem", "Gather"),
    "ConcatV2",
]
CALLS = {
    "AvgPool": lambda x: raw.AvgPool(value=image(x), **POOL),
    "AvgPool3D": lambda x: raw.AvgPool3D(input=tf.cast(volume(x), tf.float32), **POOL_3D),
    "BatchToSpace": lambda x: raw.BatchToSpace(input=batches(x), crops=NO_PADS, block_size=2),
    "BatchToSpaceND": lambda x: raw.BatchToSpaceND(input=batches(x), crops=NO_PADS, **BLOCKS),
    "BiasAdd": lambda x: raw.BiasAdd(value=x, bias=x[0]),
    "BiasAddGrad": lambda x: raw.BiasAddGrad(out_backprop=x),
    "BiasAddV1": lambda x: raw.BiasAddV1(value=x, bias=x[0]),
    "BroadcastTo": lambda x: raw.BroadcastTo(input=x, shape=[2, 4, 4]),
    "CheckNumerics": lambda x: raw.CheckNumerics(tensor=finite(x), message=""),
    "CheckNumericsV2": lambda x: raw.CheckNumericsV2(tensor=finite(x), message=""),
    "Concat": lambda x: raw.Concat(concat_dim=0, values=[x, x]),
    "ConcatV2": lambda x: raw.ConcatV2(axis=0, values=[x, x]),
    "ConjugateTranspose": lambda x: raw.ConjugateTranspose(x=x, perm=[1, 0]),
    "CropAndResize": lambda x: raw.CropAndResize(
        image=single(x), boxes=[[0.0, 0.0, 1.0, 1.0]], box_ind=[0], crop_size=[2, 2]
    ),
    "Cumsum": lambda x: raw.Cumsum(x=x, axis=0),
    "DepthToSpace": lambda x: raw.DepthToSpace(input=tf.reshape(x, [1, 2, 2, 4]), block_size=2),
    "Diag": lambda x: raw.Diag(diagonal=x),
    "DiagPart": lambda x: raw.DiagPart(input=x),
    "Dilation2D": lambda x: raw.Dilation2D(
        input=image(x), filter=x[:2, :2, None], strides=[1] * 4, rates=[1] * 4, padding="VALID"
    ),
    "DynamicPartition": lambda x: raw.DynamicPartition(data=x, partitions=[0, 1, 0, 1], num_partitions=2)[0],
    "DynamicStitch": lambda x: raw.DynamicStitch(indices=[[0, 1], [2, 3]], data=[x[:2], x[2:]]),
    "EnsureShape": lambda x: raw.EnsureShape(input=x, shape=[4, 4]),
    "ExpandDims": lambda x: raw.ExpandDims(input=x, axis=0),
    "ExtractImagePatches": lambda x: raw.ExtractImagePatches(
        images=image(x), ksizes=POOL["ksize"], strides=[1] * 4, rates=[1] * 4, padding="VALID"
    ),
    "FFT": lambda x: raw.FFT(input=complex_numbers(x)),
    "FFT2D": lambda x: raw.FFT2D(input=complex_numbers(x)),
    "FFT3D": lambda x: raw.FFT3D(input=complex_numbers(volume(x)[0, ..., 0])),
    "FakeQuantWithMinMaxArgs": lambda x: raw.FakeQuantWithMinMaxArgs(inputs=single(x)),
    "FakeQuantWithMinMaxVars": lambda x: raw.FakeQuantWithMinMaxVars(
        inputs=single(x), min=single(x)[0, 1, 1, 0], max=single(x)[0, 0, 2, 0]
    ),
    "FakeQuantWithMinMaxVarsPerChannel": lambda x: raw.FakeQuantWithMinMaxVarsPerChannel(
        inputs=single(x)[0, :, :, 0], min=[-1.0] * 4, max=[1.0] * 4
    ),
    "Fill": lambda x: raw.Fill(dims=[2], value=x[0, 0]),
    "FractionalAvgPool": lambda x: raw.FractionalAvgPool(value=image(x), **FRACTIONAL)[0],
    "FractionalMaxPool": lambda x: raw.FractionalMaxPool(value=image(x), **FRACTIONAL)[0],
    "Gather": lambda x: raw.Gather(params=x, indices=[0, 2]),
    "GatherNd": lambda x: raw.GatherNd(params=x, indices=[[0, 1]]),
    "GatherV2": lambda x: raw.GatherV2(params=x, indices=[0, 2], axis=1),
    "IFFT": lambda x: raw.IFFT(input=complex_numbers(x)),
    "IFFT2D": lambda x: raw.IFFT2D(input=complex_numbers(x)),
    "IFFT3D": lambda x: raw.IFFT3D(input=complex_numbers(volume(x)[0, ..., 0])),
    "IRFFT": lambda x: raw.IRFFT(input=complex_numbers(x), fft_length=[6], Treal=tf.float64),
    "IRFFT2D": lambda x: raw.IRFFT2D(input=complex_numbers(x), fft_length=[4, 6], Treal=tf.float64),
    "Identity": lambda x: raw.Identity(input=x),
    "IdentityN": lambda x: raw.IdentityN(input=[x, x])[0],
    "ImageProjectiveTransformV2": lambda x: raw.ImageProjectiveTransformV2(
        images=single(x), transforms=[[1.0, 0, 0, 0, 1.0, 0, 0, 0]], output_shape=[4, 4], interpolation="BILINEAR"
    ),
    "ImageProjectiveTransformV3": lambda x: raw.ImageProjectiveTransformV3(
        images=single(x),
        transforms=[[1.0, 0, 0, 0, 1.0, 0, 0, 0]],
        output_shape=[4, 4],
        fill_value=0.0,
        interpolation="BILINEAR",
    ),
    "MatrixBandPart": lambda x: raw.MatrixBandPart(input=x, num_lower=1, num_upper=1),
    "MatrixDiag": lambda x: raw.MatrixDiag(diagonal=x),
    "MatrixDiagPart": lambda x: raw.MatrixDiagPart(input=x),
    "MatrixDiagPartV3": lambda x: tf.linalg.diag_part(x, k=(-1, 1)),
    "MatrixDiagV3": lambda x: tf.linalg.diag(x),
    "MatrixSetDiag": lambda x: raw.MatrixSetDiag(input=x, diagonal=x[0]),
    "MatrixSetDiagV3": lambda x: tf.linalg.set_diag(x, x[0]),
    "MaxPool": lambda x: raw.MaxPool(input=image(x), **POOL),
    "MaxPool3D": lambda x: raw.MaxPool3D(input=single(x)[None], ksize=[1] * 5, strides=[1] * 5, padding="VALID"),
    "MaxPoolV2": lambda x: raw.MaxPoolV2(input=image(x), **POOL),
    "MaxPoolWithArgmax": lambda x: raw.MaxPoolWithArgmax(input=image(x), **POOL)[0],
    "Mean": lambda x: raw.Mean(input=x, axis=1),
    "MirrorPad": lambda x: raw.MirrorPad(input=x, paddings=PADS, mode="REFLECT"),
    "NthElement": lambda x: raw.NthElement(input=x, n=1),
    "Pack": lambda x: raw.Pack(values=[x, x]),
    "Pad": lambda x: raw.Pad(input=x, paddings=PADS),
    "PadV2": lambda x: raw.PadV2(input=x, paddings=PADS, constant_values=x[0, 0]),
    "ParallelDynamicStitch": lambda x: raw.ParallelDynamicStitch(indices=[[0, 1], [2, 3]], data=[x[:2], x[2:]]),
    "PlaceholderWithDefault": lambda x: raw.PlaceholderWithDefault(input=x, shape=[4, 4]),
    "Print": lambda x: raw.Print(input=x, data=[x], first_n=0),
    "QuantizeAndDequantizeV2": lambda x: raw.QuantizeAndDequantizeV2(input=x, input_min=x[0, 0], input_max=x[0, 2]),
    "QuantizeAndDequantizeV3": lambda x: raw.QuantizeAndDequantizeV3(
        input=x, input_min=x[0, 0], input_max=x[0, 2], num_bits=8
    ),
    "QuantizeAndDequantizeV4": lambda x: raw.QuantizeAndDequantizeV4(input=x, input_min=x[0, 0], input_max=x[0, 2]),
    "RFFT": lambda x: raw.RFFT(input=x, fft_length=[4], Tcomplex=tf.complex128),
    "RFFT2D": lambda x: raw.RFFT2D(input=x, fft_length=[4, 4], Tcomplex=tf.complex128),
    "RaggedTensorToTensor": lambda x: tf.RaggedTensor.from_row_lengths(x[0], [1, 3]).to_tensor(),
    "ReadVariableOp": lambda x: VARIABLE.read_value(),
    "Reshape": lambda x: raw.Reshape(tensor=x, shape=[16]),
    "ResizeBicubic": lambda x: raw.ResizeBicubic(images=single(x), size=[8, 8]),
    "ResizeBilinear": lambda x: raw.ResizeBilinear(images=single(x), size=[8, 8]),
    "ResizeNearestNeighbor": lambda x: raw.ResizeNearestNeighbor(images=single(x), size=[8, 8]),
    "ResourceGather": lambda x: VARIABLE.sparse_read([0, 2]),
    "ResourceGatherNd": lambda x: VARIABLE.gather_nd([[0, 2]]),
    "Reverse": lambda x: raw.Reverse(tensor=x, dims=[True, False]),
    "ReverseSequence": lambda x: raw.ReverseSequence(input=x, seq_lengths=[1, 2, 3, 4], seq_dim=1),
    "ReverseV2": lambda x: raw.ReverseV2(tensor=x, axis=[0]),
    "Roll": lambda x: raw.Roll(input=x, shift=1, axis=0),
    "ScaleAndTranslate": lambda x: raw.ScaleAndTranslate(
        images=single(x), size=[8, 8], scale=[2.0, 2.0], translation=[0.0, 0.0]
    ),
    "ScatterNd": lambda x: raw.ScatterNd(indices=[[1], [0], [2], [3]], updates=x, shape=[4, 4]),
    "SegmentMean": lambda x: raw.SegmentMean(data=x, segment_ids=SEGMENTS),
    "SegmentSum": lambda x: raw.SegmentSum(data=x, segment_ids=SEGMENTS),
    "Select": lambda x: raw.Select(condition=x > 1, x=x, y=x),
    "SelectV2": lambda x: raw.SelectV2(condition=x > 1, t=x, e=x),
    "Slice": lambda x: raw.Slice(input=x, begin=[0, 1], size=[2, 2]),
    "SpaceToBatch": lambda x: raw.SpaceToBatch(input=image(x), paddings=NO_PADS, block_size=2),
    "SpaceToBatchND": lambda x: raw.SpaceToBatchND(input=image(x), paddings=NO_PADS, **BLOCKS),
    "SpaceToDepth": lambda x: raw.SpaceToDepth(input=image(x), block_size=2),
    "SparseAdd": lambda x: raw.SparseAdd(**two_sparse(x), thresh=tf.zeros([], x.dtype)).sum_values,
    "SparseReduceSum": lambda x: raw.SparseReduceSum(
        **{f"input_{key}": value for key, value in sparse(x).items()}, reduction_axes=[0]
    ),
    "SparseReorder": lambda x: (
        raw.SparseReorder(**{f"input_{key}": value for key, value in sparse(x).items()}).output_values
    ),
    "SparseSegmentMean": lambda x: raw.SparseSegmentMean(data=x, **ROWS),
    "SparseSegmentMeanWithNumSegments": lambda x: raw.SparseSegmentMeanWithNumSegments(data=x, num_segments=2, **ROWS),
    "SparseSegmentSqrtN": lambda x: raw.SparseSegmentSqrtN(data=x, **ROWS),
    "SparseSegmentSqrtNWithNumSegments": lambda x: raw.SparseSegmentSqrtNWithNumSegments(
        data=x, num_segments=2, **ROWS
    ),
    "SparseSegmentSum": lambda x: raw.SparseSegmentSum(data=x, **ROWS),
    "SparseSegmentSumWithNumSegments": lambda x: raw.SparseSegmentSumWithNumSegments(data=x, num_segments=2, **ROWS),
    "SparseTensorDenseAdd": lambda x: raw.SparseTensorDenseAdd(
        **{f"a_{key}": value for key, value in sparse(x).items()}, b=x
    ),
    "SparseToDense": lambda x: raw.SparseToDense(
        sparse_indices=sparse(x)["indices"],
        output_shape=sparse(x)["shape"],
        sparse_values=sparse(x)["values"],
        default_value=x[0, 0],
    ),
    "Split": lambda x: raw.Split(axis=0, value=x, num_split=2)[0],
    "SplitV": lambda x: raw.SplitV(value=x, size_splits=[1, 3], axis=0, num_split=2)[1],
    "Squeeze": lambda x: raw.Squeeze(input=image(x)),
    "StridedSlice": lambda x: x[1:, ::2],
    "StridedSliceGrad": lambda x: raw.StridedSliceGrad(shape=[8], begin=[0], end=[8], strides=[2], dy=x[0]),
    "Sum": lambda x: raw.Sum(input=x, axis=1),
    "TensorScatterAdd": lambda x: raw.TensorScatterAdd(tensor=x, indices=[[1]], updates=x[:1]),
    "TensorScatterSub": lambda x: raw.TensorScatterSub(tensor=x, indices=[[1]], updates=x[:1]),
    "TensorScatterUpdate": lambda x: raw.TensorScatterUpdate(tensor=x, indices=[[1]], updates=x[:1]),
    "Tile": lambda x: raw.Tile(input=x, multiples=[2, 1]),
    "TopKV2": lambda x: raw.TopKV2(input=x, k=2)[0],
    "Transpose": lambda x: raw.Transpose(x=x, perm=[1, 0]),
    "Unpack": lambda x: raw.Unpack(value=x, num=4)[0],
    "UnsortedSegmentSum": lambda x: raw.UnsortedSegmentSum(data=x, segment_ids=SEGMENTS, num_segments=3),
    **{f"TensorList{name}": lists for name in LISTS},
}
NOT_UNDER_XLA = {
    *(f"TensorList{name}" for name in LISTS),
    *("CheckNumericsV2", "CropAndResize", "Dilation2D", "FractionalAvgPool", "FractionalMaxPool"),
    *("ImageProjectiveTransformV2", "ImageProjectiveTransformV3", "MaxPoolWithArgmax", "NthElement", "Print"),
    *("QuantizeAndDequantizeV4", "RaggedTensorToTensor", "ResizeBicubic", "ResizeNearestNeighbor"),
    *("ResourceGatherNd", "ScaleAndTranslate", "SegmentMean", "SegmentSum", "SparseAdd", "SparseReduceSum"),
    *("SparseReorder", "SparseSegmentMean", "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtN"),
    *("SparseSegmentSqrtNWithNumSegments", "SparseSegmentSum", "SparseSegmentSumWithNumSegments"),
    "SparseTensorDenseAdd",
}
