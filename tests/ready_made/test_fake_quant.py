"""fake_quant: values and gradients against NumPy, TensorFlow's ops and Keras's, and what LiteRT reads from it."""

import dataclasses
import functools

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import ALL_MODES, vjp


@dataclasses.dataclass
class Case:
    """Options of `fake_quant`, the shape of x, which has 12 elements or more, and the dtype."""

    options: dict = dataclasses.field(default_factory=dict)
    shape: tuple = (5, 3)
    dtype: type = np.float32

    def __post_init__(self):
        bits, zero_point = self.options.get("bits", 8), self.options.get("zero_point", 0)
        self.low = self.options.get("narrow_range", False) - 2 ** (bits - 1) - zero_point
        self.high = 2 ** (bits - 1) - 1 - zero_point
        self.atol = 2e-7 * 2**bits
        # Powers of two, so that ties are exact.
        axis, self.size, self.others = self.options.get("axis"), np.float64(0.25), None
        if axis is not None:
            self.others = tuple(i for i in range(len(self.shape)) if i != axis % len(self.shape))
            self.size = np.expand_dims(np.resize([0.25, 0.5, 2.0], self.shape[axis]), self.others)

    def arrays(self, rng):
        """x, which has ties, both ends, and numbers beyond; the scale; an upstream gradient."""
        low, high = self.low, self.high
        levels = rng.uniform(1.5 * low - 2, 1.5 * high + 2, self.shape)
        special = [low, high, low - 0.5, high + 0.5, low + 0.5, high - 0.5, 0.5, -0.5, 1.5, 0.0, 2.5, high + 0.25]
        levels.flat[rng.permutation(levels.size)[:12]] = special
        x, dy = levels * self.size, rng.normal(size=self.shape)
        scale = np.ravel(self.size)[() if self.others is not None else 0]
        return x.astype(self.dtype), scale.astype(np.promote_types(self.dtype, np.float32)), dy.astype(self.dtype)

    def expected(self, x, dy):
        """In float64: y, dx and the gradient of the scale."""
        levels, dy = x.astype(np.float64) / self.size, dy.astype(np.float64)
        rounded = np.round(levels) if self.options.get("rounding") == "even" else np.floor(levels + 0.5)
        rounded = np.clip(rounded, self.low, self.high)
        inside = (levels >= self.low) & (levels <= self.high)
        dscale = np.sum(dy * np.where(inside, rounded - levels, rounded), self.others)
        return rounded * self.size, np.where(inside, dy, 0), self.options.get("gradient_factor", 1.0) * dscale


CASES = {
    "8 bits": Case(),
    "float64": Case(dtype=np.float64),
    "float16": Case({"bits": 7}, dtype=np.float16),
    "bfloat16": Case({"bits": 4}, dtype=ml_dtypes.bfloat16),
    "to even": Case({"rounding": "even"}),
    "to even, float64": Case({"rounding": "even", "axis": 1}, dtype=np.float64),
    "2 bits": Case({"bits": 2}),
    "4 bits": Case({"bits": 4, "narrow_range": True, "gradient_factor": 0.125}),
    "7 bits, never negative": Case({"bits": 7, "zero_point": -64}),
    "12 bits": Case({"bits": 12, "zero_point": 100}),
    "16 bits": Case({"bits": 16}),
    "never negative": Case({"zero_point": -128}),
    "never positive": Case({"zero_point": 127, "narrow_range": True}),
    "a vector": Case({"axis": 0, "bits": 3}, (13,)),
    "first of two": Case({"axis": 0, "narrow_range": True}, (3, 5)),
    "last of two": Case({"axis": -1, "zero_point": 3}),
    "middle of three": Case({"axis": 1, "bits": 4}, (2, 3, 5)),
    "last of three": Case({"axis": -1, "rounding": "even"}, (2, 4, 3)),
    "depthwise": Case({"axis": -2, "narrow_range": True}, (2, 4, 3, 1)),
    "last of four": Case({"axis": 3}, (2, 2, 2, 3)),
    "last of five": Case({"axis": -1}, (2, 1, 2, 2, 3)),
    "first of three, float64": Case({"axis": 0}, (3, 2, 4), np.float64),
}
MODES = ("eager", "unknown_shape", "jit", "vectorized_map", "per_example", "jacobians", "forward_mode")
IN_ALL_MODES = ("8 bits", "4 bits", "middle of three", "float64")


@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in CASES for mode in (MODES if name in IN_ALL_MODES else MODES[:3])]
)
def test_value_and_gradients(name, mode, rng):
    case = CASES[name]
    x, scale, dy = case.arrays(rng)
    found = ALL_MODES[mode].vjp(lambda x, scale: cg.fake_quant(x, scale, **case.options), [x, scale], dy)
    y, (dx, dscale) = found
    assert [array.dtype for array in (y, dx, dscale)] == [x.dtype, x.dtype, scale.dtype]
    for array, expected in zip((y, dx, dscale), case.expected(x, dy), strict=True):
        np.testing.assert_allclose(array.astype(np.float64), expected, rtol=1e-6, atol=case.atol)


@pytest.mark.parametrize(("axis", "scale"), [(None, 0.5), (0, [0.5, 0.25, 2.0])])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_second_derivatives_are_zero_but_by_the_upstream(dtype, axis, scale):
    x, scale, dy = (tf.constant(each, dtype) for each in ([0.3, -0.2, 900.0], scale, [1.0, 10.0, 100.0]))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, scale, dy])
        firsts = vjp(lambda: cg.fake_quant(x, scale, axis=axis), [x, scale], dy)[1]
    # The share of a step by which each element was rounded, or the level at which it was cut off.
    for first, by_dy in zip(firsts, ([1, 1, 0], [0.4, 0.4 if axis is None else -0.2, 127]), strict=True):
        by_x, by_scale, found = tape.gradient(first, [x, scale, dy], unconnected_gradients="zero")
        np.testing.assert_array_equal(by_x, np.zeros(3))
        np.testing.assert_array_equal(by_scale, np.zeros(scale.shape))
        np.testing.assert_allclose(found, by_dy, rtol=1e-6)


@pytest.mark.parametrize("narrow_range", [False, True])
@pytest.mark.parametrize("axis", [None, -1])
@pytest.mark.parametrize("bits", [8, 16])
def test_it_equals_the_functions_of_tensorflow_and_keras(bits, axis, narrow_range, rng):
    scale = rng.uniform(0.5, 2.0, () if axis is None else 3).astype(np.float32) * 2.0**-bits
    ends = [np.float32(end) * scale for end in (narrow_range - 2 ** (bits - 1), 2 ** (bits - 1) - 1)]
    x, dy = (tf.constant(rng.normal(size=[50, 3]), tf.float32) for _ in range(2))
    name = "fake_quant_with_min_max_vars" + ("" if axis is None else "_per_channel")
    found, [dx] = vjp(lambda: cg.fake_quant(x, scale, bits, axis=axis, narrow_range=narrow_range), [x], dy)
    for other in (
        lambda: getattr(tf.quantization, name)(x, *ends, bits, narrow_range),
        lambda: keras.quantizers.fake_quant_with_min_max_vars(x, *ends, bits, narrow_range, axis),
    ):
        y, [expected] = vjp(other, [x], dy)
        np.testing.assert_array_equal(found, y)
        np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_is_not_hidden(dtype, axis):
    """Neither in x nor of a scale that is not positive and finite, which a training can reach."""
    x, dy = tf.constant([np.nan, 1.0, -np.inf], dtype), tf.constant([1.0, 10.0, 100.0], dtype)
    y, [dx] = vjp(lambda: cg.fake_quant(x, 1.0 if axis is None else [1.0] * 3, axis=axis), [x], dy)
    np.testing.assert_array_equal(y, [np.nan, 1, -128])
    np.testing.assert_array_equal(dx, [0, 10, 0])
    compiled = tf.function(
        lambda x: cg.fake_quant(x, 1.0 if axis is None else [1.0] * 3, 4, axis=axis), jit_compile=True
    )
    np.testing.assert_array_equal(compiled(x), [np.nan, 1, -8])  # TensorFlow's op alone makes a number of nan there.
    for bad in (0.0, -1.0, np.inf, np.nan):
        scale = tf.constant(bad if axis is None else [1.0, bad, 1.0], dtype)
        for function in (cg.fake_quant, tf.function(cg.fake_quant, jit_compile=True)):
            assert np.isnan(function(x, scale, axis=axis)[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_scale_that_does_not_fit_is_an_error_at_run_time(dtype):
    for axis, wrong in ((-1, [0.1, 1.0]), (0, [0.1, 1.0, 2.0, 3.0]), (None, [0.1, 0.2])):
        specs = [tf.TensorSpec([None] * 3, dtype), tf.TensorSpec(None if axis is None else [None], dtype)]
        quantized = tf.function(lambda x, s, axis=axis: cg.fake_quant(x, s, axis=axis), input_signature=specs)
        with pytest.raises(tf.errors.InvalidArgumentError, match="fake_quant: scale must have the shape"):
            quantized(tf.ones([1, 2, 4], dtype), tf.constant(wrong, dtype))
        fitting = tf.ones([] if axis is None else [[1, 2, 4][axis]], dtype)
        np.testing.assert_array_equal(quantized(tf.ones([1, 2, 4], dtype), fitting), np.ones([1, 2, 4]))


def test_a_variable_is_trained_and_an_upstream_of_slices_is_taken(gradient):
    scale, x = tf.Variable(0.5), tf.constant([[0.3], [-0.2], [900.0]])
    rows = lambda x: tf.gather(cg.fake_quant(x, scale), [2, 0, 2])  # noqa: E731
    dx, dscale = gradient(lambda x, _: rows(x), [x, scale], tf.constant([[1.0], [10.0], [100.0]]))
    np.testing.assert_allclose(dx, [[10], [0], [0]])
    np.testing.assert_allclose(dscale, 0.4 * 10 + 127 * 101, rtol=1e-6)


KERNEL = np.random.default_rng(1).normal(size=[3, 3, 4, 6]).astype(np.float32)
# Of one step for each output, for each input and for all.
OUT, IN, ALL = (np.abs(KERNEL).max(axes) / 127 for axes in ((0, 1, 2), (0, 1, 3), None))
SQUARE = KERNEL[..., :4]
MATRIX = KERNEL.reshape([-1])[:192].reshape([64, 3])
weight = functools.partial(cg.fake_quant, narrow_range=True)
unsigned = functools.partial(cg.fake_quant, zero_point=-128)


def conv(x, scale, kernel=KERNEL, **options):
    return tf.nn.conv2d(x, weight(kernel, scale, **options), 1, "SAME")


def transposed(x, scale, **options):
    return tf.nn.conv2d_transpose(x, weight(SQUARE, scale, **options), [1, 8, 8, 4], 2)


def deep(x, folded):
    """Ten layers with a bias, and with what batch normalization is in inference."""
    factor, bias = 1.1 + 0.1 * np.sin(np.arange(4, dtype=np.float32)), np.linspace(-0.5, 0.5, 4, dtype=np.float32)
    for layer in range(10):
        x = unsigned(x, 0.03) if layer else x
        kernel = 0.3 * SQUARE * factor if folded else 0.3 * SQUARE
        scale = (np.abs(kernel).max() / 127).astype(np.float32)
        if folded:  # LiteRT counts a bias in products of the steps.
            y = conv(x, scale, kernel) + np.round(bias / (0.03 * scale)) * (0.03 * scale)
        else:
            y = conv(x, scale, kernel) * factor + bias
        x = tf.nn.relu(y)
    return x


# A layer of activations [1, 4, 4, 4], the options of the quantizers of its input and output, and how many steps its
# output may differ in LiteRT. docs/quantization.md has them in a table.
LITE = {
    "convolution": (lambda x: conv(x, OUT, axis=-1), {}, 0),
    "convolution, one scale": (lambda x: conv(x, ALL), {}, 0),
    "convolution, 4 bits": (lambda x: conv(x, 16 * OUT, bits=4, axis=-1), {}, 0),
    "convolution, to even": (lambda x: conv(x, OUT, axis=3, rounding="even"), {}, 0),
    "activations of 4 bits": (lambda x: conv(x, ALL), {"bits": 4}, 0),
    "never negative": (lambda x: conv(x, ALL), {"zero_point": -128}, 0),
    "depthwise": (lambda x: tf.nn.depthwise_conv2d(x, weight(KERNEL[..., :1], IN, axis=-2), [1] * 4, "SAME"), {}, 0),
    "matrix product": (lambda x: tf.reshape(x, [1, 64]) @ weight(MATRIX, ALL), {}, 0),
    "convolution of one dimension": (lambda x: tf.nn.conv1d(x[0], weight(KERNEL[0], ALL), 1, "SAME"), {}, 0),
    "relu": (lambda x: tf.nn.relu(conv(x, ALL)), {"zero_point": -128}, 0),
    "residual": (lambda x: x + cg.fake_quant(conv(x, ALL, SQUARE), 0.2), {}, 0),
    "mean": (lambda x: tf.reduce_mean(x, [1, 2]), {}, 0),
    "upsampling": (lambda x: tf.repeat(x, 2, axis=1), {}, 1),
    "concatenation": (lambda x: tf.concat([cg.fake_quant(conv(x, each), 0.3) for each in (ALL, 2 * ALL)], -1), {}, 0),
    "ten layers": (lambda x: deep(x, True), {}, 0),
    "ten layers that are not folded": (lambda x: deep(x, False), {}, 2),
    "a matrix with a scale for each input": (
        lambda x: tf.reshape(x, [1, 64]) @ weight(MATRIX, np.linspace(0.01, 0.1, 64, dtype=np.float32), axis=0),
        {},
        (2, 99),
    ),
    "two quantizers": (lambda x: unsigned(tf.nn.relu(x), 0.01), {}, (5, 30)),  # It leaves one out.
    "max pooling": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), {}, 1),
    "softmax": (lambda x: 50 * tf.nn.softmax(x), {}, 1),
    "sigmoid": (lambda x: 50 * tf.sigmoid(x), {}, 1),
    "transposed": (lambda x: transposed(x, ALL), {}, 1),
    "average pooling": (lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID"), {}, 2),
}


def converted(layer, options, folder):
    """A stripped model with the layer between two quantizers, and its LiteRT file."""
    steps = 2.0 ** (8 - options.get("bits", 8))
    model = tf.Module()
    model.call = tf.function(
        lambda x: {"y": cg.fake_quant(layer(cg.fake_quant(x, 0.03 * steps, **options)), 0.3 * steps, **options)},
        input_signature=[tf.TensorSpec([1, 4, 4, 4], name="x")],
    )
    tf.saved_model.save(model, folder / "model", signatures=model.call)
    cg.saved_model.strip(folder / "model", folder / "stripped")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "stripped"))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    (folder / "model.tflite").write_bytes(converter.convert())
    return folder / "stripped", folder / "model.tflite"


@pytest.mark.parametrize("name", LITE)
def test_litert_computes_the_same_with_integers(name, rng, tmp_path):
    layer, options, steps = LITE[name]
    least, most = steps if isinstance(steps, tuple) else (0, steps)
    x = rng.normal(size=[1, 4, 4, 4]).astype(np.float32)
    output, floats = cg.saved_model.compare(*converted(layer, options, tmp_path), {"serving_default": {"x": x}})
    assert floats.float_tensors == ()
    assert least <= output.steps <= most + 0.001


REFUSED = {
    "matrix product": lambda x: tf.reshape(x, [1, 64]) @ weight(MATRIX, OUT[:3], axis=-1),
    "convolution of one dimension": lambda x: tf.nn.conv1d(x[0], weight(KERNEL[0], OUT, axis=-1), 1, "SAME"),
    "transposed": lambda x: transposed(x, IN, axis=-2),
    "three dimensions": lambda x: tf.nn.conv3d(
        tf.reshape(x, [1, 4, 4, 2, 2]), weight(KERNEL.reshape([3, 3, 3, 2, 4]), OUT[:4], axis=-1), [1] * 5, "SAME"
    ),
    "concatenation": lambda x: tf.concat([cg.fake_quant(x, 0.3), cg.fake_quant(x, 0.2)], -1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_converter_refuses(name, tmp_path):
    with pytest.raises(Exception, match=r"mismatched quantized axes|quantization|same scale|error"):
        converted(REFUSED[name], {}, tmp_path)
