"""Ops that LiteRT (TensorFlow Lite) lacks, composed of its built-in ops, with the values of TensorFlow's ops.

A function of COMPOSITIONS gets an op and its inputs, and returns its output, a list of them, or None where it does not
cover the op. The sizes of a convolution or a pool must be known, its layout NHWC; the batch may have any size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ._replace_ops import OUTPUT_NAMES

# LiteRT does not load a sum of more.
_MOST_AXES = 6


@dataclass(frozen=True)
class _Windows:
    """The windows of a convolution or a pool, in height and width."""

    size: tuple[int, int]  # Of the image.
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    count: tuple[int, int]  # How many windows there are.
    before: tuple[int, int]  # Rows and columns of padding.

    @classmethod
    def of(cls, op: Any, image: tf.TensorShape, kernel: Any) -> "_Windows | None":
        """The windows of an op; None if a size is not known or the layout is another."""
        if op.get_attr("data_format") != b"NHWC" or image.rank != 4 or None in [*image[1:], *kernel]:
            return None
        size, kernel, strides = image[1:3], kernel[:2], op.get_attr("strides")[1:3]
        dilations = op.get_attr("dilations")[1:3] if "dilations" in op.node_def.attr else [1, 1]
        padding = op.get_attr("padding")
        explicit = op.get_attr("explicit_paddings")[2:6] if padding == b"EXPLICIT" else [0, 0, 0, 0]
        count, before = [], []
        for axis in range(2):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            if padding == b"SAME":
                count.append(-(-size[axis] // strides[axis]))
                before.append(max((count[axis] - 1) * strides[axis] + reach - size[axis], 0) // 2)
            else:
                first, last = explicit[2 * axis : 2 * axis + 2]
                count.append((first + size[axis] + last - reach) // strides[axis] + 1)
                before.append(first)
        return cls(*map(tuple, (size, kernel, strides, dilations, count, before)))

    def positions(self) -> Iterator[tuple[int, int]]:
        """The row and column of each element of the kernel, in padded images."""
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                yield row * self.dilations[0], column * self.dilations[1]

    def padded(self, position: tuple[int, int], length: tuple[int, int]) -> list[list[int]]:
        """The padding that puts an image of this length at a position of a padded image."""
        return [[0, 0], *([p, t - p - n] for p, t, n in zip(position, self.total, length, strict=True)), [0, 0]]

    @property
    def total(self) -> tuple[int, int]:
        """The size of a padded image, in which each position has room for all windows with their strides."""
        return tuple(
            max(b + size, (k - 1) * d + n * s)
            for b, size, k, d, n, s in zip(
                self.before, self.size, self.kernel, self.dilations, self.count, self.strides, strict=True
            )
        )

    def cut(self, images: tf.Tensor, padding: Any = 0.0) -> list[tf.Tensor]:
        """What each element of the kernel meets in all windows: [batch, windows down, windows across, channels]."""
        images = tf.pad(images, self.padded(self.before, self.size), constant_values=padding)
        (down, across), (rows, columns) = self.strides, self.count
        return [
            images[:, top : top + rows * down : down, left : left + columns * across : across]
            for top, left in self.positions()
        ]

    def elements(self) -> np.ndarray:
        """How many elements of each window are not padding, for the windows of one image."""
        down, across = (
            [sum(0 <= i * stride + k - before < size for k in range(kernel)) for i in range(count)]
            for size, kernel, stride, count, before in zip(
                self.size, self.kernel, self.strides, self.count, self.before, strict=True
            )
        )
        return np.outer(down, across)[np.newaxis, :, :, np.newaxis].astype(np.float32)

    def spread(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        """The transpose of `cut`: the images that are the sums of these pieces."""
        (down, across), (rows, columns) = self.strides, self.count
        length = (rows * down, columns * across)
        images = []
        for piece, position in zip(pieces, self.positions(), strict=True):
            channels = piece.shape[-1]
            # Zeros between the windows. LiteRT pads up to four axes.
            wide = tf.pad(tf.reshape(piece, [-1, columns, 1, channels]), [[0, 0], [0, 0], [0, across - 1], [0, 0]])
            high = tf.reshape(wide, [-1, rows, 1, length[1] * channels])
            high = tf.pad(high, [[0, 0], [0, 0], [0, down - 1], [0, 0]])
            images.append(tf.pad(tf.reshape(high, [-1, *length, channels]), self.padded(position, length)))
        top, left = self.before
        return tf.add_n(images)[:, top : top + self.size[0], left : left + self.size[1]]


def _conv_filter_gradient(op: Any, images: tf.Tensor, _: tf.Tensor, dy: tf.Tensor) -> Any:
    kernel = op.outputs[0].shape
    windows = _Windows.of(op, images.shape, kernel)
    if windows is None or kernel[2] != images.shape[-1]:  # A convolution in groups.
        return None
    patches = tf.reshape(tf.concat(windows.cut(images), axis=-1), [-1, kernel[:3].num_elements()])
    return tf.reshape(tf.matmul(patches, tf.reshape(dy, [-1, kernel[3]]), transpose_a=True), kernel)


def _conv_input_gradient(op: Any, sizes: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor) -> Any:
    windows = _Windows.of(op, op.outputs[0].shape, kernel.shape)
    if windows is None or kernel.shape[2] != op.outputs[0].shape[-1]:
        return None
    padding = op.get_attr("padding")
    if windows.dilations == (1, 1) and padding != b"EXPLICIT":  # LiteRT has this one.
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=sizes, filter=kernel, out_backprop=dy, strides=op.get_attr("strides"), padding=padding
        )
    flat_kernel = tf.reshape(kernel, [-1, kernel.shape[3]])
    pieces = tf.matmul(tf.reshape(dy, [-1, kernel.shape[3]]), flat_kernel, transpose_b=True)
    pieces = tf.reshape(pieces, [-1, *windows.count, flat_kernel.shape[0]])
    return windows.spread(tf.split(pieces, windows.kernel[0] * windows.kernel[1], axis=-1))


def _depthwise_filter_gradient(op: Any, images: tf.Tensor, _: tf.Tensor, dy: tf.Tensor) -> Any:
    kernel = op.outputs[0].shape
    windows = _Windows.of(op, images.shape, kernel)
    if windows is None:
        return None
    dy = tf.reshape(dy, [-1, kernel[2], kernel[3]])
    pieces = [tf.reshape(piece, [-1, kernel[2], 1]) for piece in windows.cut(images)]
    return tf.reshape(tf.stack([tf.reduce_sum(piece * dy, axis=0) for piece in pieces]), kernel)


def _depthwise_input_gradient(op: Any, _: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor) -> Any:
    windows = _Windows.of(op, op.outputs[0].shape, kernel.shape)
    if windows is None:
        return None
    dy = tf.reshape(dy, [-1, *kernel.shape[2:]])
    products = [tf.reduce_sum(dy * weights, axis=-1) for weights in tf.unstack(tf.reshape(kernel, [-1, *dy.shape[1:]]))]
    return windows.spread([tf.reshape(product, [-1, *windows.count, kernel.shape[2]]) for product in products])


def _max_pool_gradient(op: Any, images: tf.Tensor, largest: tf.Tensor, dy: tf.Tensor) -> Any:
    windows = _windows_of_pool(op, images.shape)
    if windows is None:
        return None
    pieces, zeros = [], tf.zeros_like(dy)
    for piece in windows.cut(images, images.dtype.min):
        is_largest = piece == largest
        pieces.append(tf.where(is_largest, dy, zeros))
        dy = tf.where(is_largest, zeros, dy)  # If several elements are the largest, the first one gets the gradient.
    return windows.spread(pieces)


def _average_pool_gradient(op: Any, _: tf.Tensor, dy: tf.Tensor) -> Any:
    windows = _windows_of_pool(op, op.outputs[0].shape)
    if windows is None:
        return None
    return windows.spread([dy / windows.elements()] * (windows.kernel[0] * windows.kernel[1]))


def _windows_of_pool(op: Any, image: tf.TensorShape) -> _Windows | None:
    batch, *kernel, channels = op.get_attr("ksize")
    return _Windows.of(op, image, kernel) if batch == channels == 1 else None


def _resize_gradient(op: Any, dy: tf.Tensor, _: tf.Tensor) -> Any:
    """A resize multiplies rows and columns by matrices, and its gradient by their transposes."""
    size, new_size, channels = op.outputs[0].shape[1:3], dy.shape[1:3], dy.shape[3]
    if None in (*size, *new_size, channels):
        return None
    options = {key: op.get_attr(key) for key in ("align_corners", "half_pixel_centers")}
    resize = getattr(tf.raw_ops, op.type.removesuffix("Grad"))

    def back(x: tf.Tensor, length: int, old_length: int) -> tf.Tensor:
        with tf.init_scope():  # What the resize makes of each unit vector.
            units = tf.reshape(tf.eye(old_length), [old_length, old_length, 1, 1])
            matrix = tf.reshape(resize(images=units, size=[length, 1], **options), [old_length, length]).numpy()
        return tf.matmul(matrix, x)

    rows = back(tf.reshape(dy, [-1, new_size[0], new_size[1] * channels]), new_size[0], size[0])
    return tf.reshape(back(tf.reshape(rows, [-1, new_size[1], channels]), new_size[1], size[1]), [-1, *size, channels])


def _batch_norm(
    op: Any, x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
) -> Any:
    if op.get_attr("is_training") or op.get_attr("data_format") != b"NHWC":
        return None
    factor = scale * tf.math.rsqrt(variance + op.get_attr("epsilon"))
    y = tf.cast((tf.cast(x, scale.dtype) - mean) * factor + offset, x.dtype)
    # Without training, TensorFlow does not set the other outputs.
    return [y, mean, variance, mean, variance, tf.zeros([0])][: len(op.outputs)]


def _batch_norm_gradient(
    op: Any, dy: tf.Tensor, x: tf.Tensor, scale: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, *_: tf.Tensor
) -> Any:
    if op.get_attr("is_training") or op.get_attr("data_format") != b"NHWC":
        return None
    slope, wide_dy = tf.math.rsqrt(variance + op.get_attr("epsilon")), tf.cast(dy, scale.dtype)
    dx = tf.cast(wide_dy * (scale * slope), x.dtype)
    d_scale = tf.reduce_sum(wide_dy * (tf.cast(x, scale.dtype) - mean), [0, 1, 2]) * slope
    return [dx, d_scale, tf.reduce_sum(wide_dy, [0, 1, 2]), tf.zeros([0]), tf.zeros([0])]


def _cross_entropy(_: Any, logits: tf.Tensor, labels: tf.Tensor) -> Any:
    products = tf.where(labels == 0, tf.zeros_like(labels), labels * tf.nn.log_softmax(logits))
    return [-tf.reduce_sum(products, axis=-1), tf.nn.softmax(logits) - labels]


def _sparse_cross_entropy(op: Any, logits: tf.Tensor, labels: tf.Tensor) -> Any:
    classes = logits.shape[-1]
    if classes is None:
        return None
    # LiteRT has no errors at run time, so a label that is not a class gives nan, as TensorFlow does on a GPU.
    is_class = tf.logical_and(labels >= 0, labels < classes)
    nan = tf.where(is_class, tf.zeros([], logits.dtype), tf.constant(np.nan, logits.dtype))
    loss, gradient = _cross_entropy(op, logits, tf.one_hot(labels, classes, dtype=logits.dtype))
    return [loss + nan, gradient + nan[:, tf.newaxis]]


def _broadcast_axes(s0: tf.Tensor, s1: tf.Tensor) -> Any:
    """For each shape, the axes along which a gradient must be summed: the ones where only this shape has the size 1."""
    shapes = (s0, s1)
    ranks = [shape.shape[0] for shape in shapes]
    if None in ranks:
        return None
    missing = [max(ranks) - rank for rank in ranks]
    # TensorFlow knows some of the sizes when it makes a tensor of this shape.
    known = [[1] * number + tf.zeros(shape).shape.as_list() for shape, number in zip(shapes, missing, strict=True)]

    def axes(i: int) -> tf.Tensor:
        own, other = known[i], known[1 - i]
        if all(size is not None or other[axis] == 1 for axis, size in enumerate(own)):
            return tf.constant([axis for axis, size in enumerate(own) if size == 1], shapes[i].dtype)
        sizes = tf.concat([tf.ones([missing[i]], shapes[i].dtype), shapes[i]], axis=0)
        return tf.cast(tf.reshape(tf.where(sizes == 1), [-1]), shapes[i].dtype)

    return [axes(0), axes(1)]


def _concat_offsets(_: Any, axis: tf.Tensor, *shapes: tf.Tensor) -> Any:
    before = [tf.zeros_like(shapes[0])]
    for shape in shapes[:-1]:
        before.append(before[-1] + shape)
    return [sizes * tf.one_hot(axis, sizes.shape[0], dtype=sizes.dtype) for sizes in before]


def _slice_gradient(
    op: Any, shape: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, strides: tf.Tensor, dy: tf.Tensor
) -> Any:
    """Takes the same slice of the numbers of all elements, and adds the gradient to zeros at these."""
    numbers = tf.reshape(tf.range(tf.reduce_prod(shape)), shape)
    masks = {name: op.get_attr(name) for name in op.node_def.attr if name.endswith("_mask")}
    sliced = tf.raw_ops.StridedSlice(input=numbers, begin=begin, end=end, strides=strides, **masks)
    flat = tf.scatter_nd(tf.reshape(sliced, [-1, 1]), tf.reshape(dy, [-1]), tf.reduce_prod(shape)[tf.newaxis])
    return tf.reshape(flat, shape)


def _sum(op: Any, x: tf.Tensor, axes: tf.Tensor) -> Any:
    rank, known, keep_dims = x.shape.rank, tf.get_static_value(axes), op.get_attr("keep_dims")
    if rank is None or rank <= _MOST_AXES:
        return tf.raw_ops.Sum(input=x, axis=axes, keep_dims=keep_dims)
    if known is None:
        return None
    sizes = tf.unstack(tf.shape(x))
    if x.op.type == "Reshape" and -1 not in (tf.get_static_value(x.op.inputs[1], partial=True) or ()):
        # Without the tensor of so many axes, which the newer runtime of LiteRT does not load.
        x, sizes = x.op.inputs[0], tf.unstack(tf.cast(x.op.inputs[1], tf.int32))
    summed = {int(axis) % rank for axis in np.ravel(known)}
    for axis in summed:
        before, after = (tf.reduce_prod(tf.stack([1, *part])) for part in (sizes[:axis], sizes[axis + 1 :]))
        x = tf.reduce_sum(tf.reshape(x, tf.stack([before, sizes[axis], after])), axis=1)
        sizes[axis] = 1
    return tf.reshape(x, tf.stack([size for axis, size in enumerate(sizes) if keep_dims or axis not in summed]))


def _embed_gradient(op: Any, lhs: tf.Tensor, rhs: tf.Tensor, shape: tf.Tensor) -> Any:
    same_rank = lhs.shape.rank is not None and lhs.shape.rank == rhs.shape.rank == shape.shape[0]
    if lhs.dtype.is_complex or not same_rank or any(op.get_attr(name) for name in ("axis", "all_axes", "zero_x")):
        return None
    product = lhs * rhs
    axes, _ = _broadcast_axes(shape, tf.shape(product, shape.dtype))
    return tf.reshape(tf.reduce_sum(product, axes), shape)


def _passed_on(op: Any, *inputs: tf.Tensor) -> Any:
    """The values of an op that only has a gradient of its own. LiteRT does not differentiate."""
    return list(inputs[: len(op.outputs)])


def _where(condition: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, gradient, tf.zeros_like(gradient))


COMPOSITIONS: dict[str, Callable[..., Any]] = {
    "ReluGrad": lambda op, dy, x: _where(x > 0, dy),
    "Relu6Grad": lambda op, dy, x: _where(tf.logical_and(x > 0, x < 6), dy),
    "LeakyReluGrad": lambda op, dy, x: tf.where(x > 0, dy, dy * op.get_attr("alpha")),
    "EluGrad": lambda op, dy, y: tf.where(y < 0, dy * (y + 1), dy),
    # The constants of tf.nn.selu.
    "SeluGrad": lambda op, dy, y: dy * tf.where(y < 0, y + 1.7580993408473768, 1.0507009873554805),
    "SoftplusGrad": lambda op, dy, x: dy * tf.sigmoid(x),
    "SoftsignGrad": lambda op, dy, x: dy / tf.square(1 + tf.abs(x)),
    **dict.fromkeys(["ReciprocalGrad", "InvGrad"], lambda op, y, dy: None if y.dtype.is_complex else -dy * y * y),
    "CustomGradientEmbedGrad": _embed_gradient,
    **dict.fromkeys(OUTPUT_NAMES.keys() - {"CustomGradientEmbedGrad"} | {"IdentityN"}, _passed_on),
    "ShapeN": lambda op, *inputs: [tf.shape(x, op.get_attr("out_type")) for x in inputs],
    "ConcatOffset": _concat_offsets,
    "StridedSliceGrad": _slice_gradient,
    "Sum": _sum,
    "BroadcastGradientArgs": lambda op, *shapes: _broadcast_axes(*shapes),
    "Conv2DBackpropFilter": _conv_filter_gradient,
    "Conv2DBackpropInput": _conv_input_gradient,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter_gradient,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_input_gradient,
    "MaxPoolGrad": _max_pool_gradient,
    "AvgPoolGrad": _average_pool_gradient,
    **dict.fromkeys(["ResizeNearestNeighborGrad", "ResizeBilinearGrad"], _resize_gradient),
    **dict.fromkeys(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"], _batch_norm),
    **dict.fromkeys(["FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"], _batch_norm_gradient),
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
}
