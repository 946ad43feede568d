"""Ops that LiteRT lacks, as compositions of built-in ops: the values of TensorFlow's, in TensorFlow and in LiteRT."""

import dataclasses
import functools
import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _lite

OPS = tf.raw_ops
RANDOM = np.random.default_rng(0)
WITHOUT_BATCH = ("filter", "filters", "w", "scale", "offset", "mean", "variance")


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def positive(*shape):
    return RANDOM.uniform(0.5, 2.0, shape).astype(np.float32)


def lite_ops(function, specs, **options):
    traced = tf.function(function, autograph=False).get_concrete_function(**specs)
    return _lite.with_lite_ops(traced, [], **{"flex": False, **options})[0]


@dataclasses.dataclass
class Case:
    """A function of named Tensors. Their shapes while tracing; by default, the size of a batch is unknown."""

    function: Any
    inputs: dict
    shapes: dict = dataclasses.field(default_factory=dict)
    expected: dict | None = None  # By default, what TensorFlow computes without LiteRT's ops.
    only_in_xla: bool = False
    tolerance: float = 1e-5

    def specs(self):
        def shape_of(name, value):
            return self.shapes.get(name, value.shape if name in WITHOUT_BATCH else [None, *value.shape[1:]])

        return {name: tf.TensorSpec(shape_of(name, value), value.dtype) for name, value in self.inputs.items()}


def pullback(function):
    """A function of named Tensors, perhaps with an upstream, that returns the gradients, or the value and the gradients."""

    def gradients(upstream=None, **tensors):
        with tf.GradientTape() as tape:
            tape.watch([each for each in tensors.values() if each.dtype.is_floating])
            y = function(**tensors)
        found = tape.gradient(y, tensors, tf.cos(y) if upstream is None else upstream)
        return {f"d_{name}": d for name, d in found.items() if d is not None} | ({"y": y} if upstream is None else {})

    return gradients


def gradient_case(function, shapes=(), only_in_xla=False, **inputs):
    inputs["upstream"] = normal(*function(**inputs).shape)
    return Case(pullback(function), inputs, dict(shapes), only_in_xla=only_in_xla, tolerance=2e-6)


def op_case(op, **arguments):
    """An op by itself, whose first outputs are Tensors."""
    inputs = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    attributes = {name: value for name, value in arguments.items() if name not in inputs}

    def run(**tensors):
        outputs = tf.nest.flatten(getattr(OPS, op)(**tensors, **attributes))
        return {f"output_{i}": output for i, output in enumerate(outputs)}

    return Case(run, inputs, tolerance=2e-6)


# At, below and above the limits of the pieces.
X = np.float32([[limit + step for step in (-0.5, 0.0, 0.5)] for limit in (-3, 0, 3, 6)])
POINTWISE = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "leaky_relu": lambda x: tf.nn.leaky_relu(x, 0.3),
    "elu": tf.nn.elu,
    "softplus": lambda x: tf.nn.softplus(20.0 * x),
    "softsign": tf.nn.softsign,
    # LiteRT has the gradients of these, or the converter makes them.
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "selu": tf.nn.selu,
    "rsqrt": lambda x: tf.math.rsqrt(x + 4.0),
}
LABELS = [(9 * normal(4, 3), positive(4, 3)), (99 * normal(4, 3), np.float32([[0, 1, 0]] * 4))]
# Height, width, kernel, strides, padding, dilations.
WINDOWS = [
    (7, 8, (3, 3), (1, 1), "SAME", (1, 1)),
    (7, 8, (3, 2), (1, 1), "VALID", (1, 1)),
    (8, 9, (3, 3), (2, 2), "SAME", (1, 1)),
    (7, 9, (2, 3), (2, 3), "SAME", (1, 1)),
    (8, 9, (3, 2), (3, 2), "VALID", (1, 1)),  # The last columns are in no window.
    (9, 8, (1, 1), (2, 2), "SAME", (1, 1)),
    (9, 8, (3, 2), (1, 1), "SAME", (2, 3)),
    (9, 8, (3, 3), (1, 1), "VALID", (2, 1)),
    (9, 8, (3, 3), (2, 1), [[0, 0], [1, 2], [0, 1], [0, 0]], (1, 1)),
    (6, 1, (4, 1), (2, 1), "SAME", (1, 1)),
]


def convolutions_and_pools():
    for row in WINDOWS:
        height, width, kernel, strides, padding, dilations = row
        images, options = normal(2, height, width, 3), {"strides": [1, *strides, 1], "padding": padding}
        rounded = np.round(images)  # Many elements are equal.
        dilated, explicit = dilations != (1, 1), isinstance(padding, list)
        convolution = functools.partial(tf.nn.conv2d, dilations=dilations, **options)
        yield (
            f"conv {row}",
            gradient_case(convolution, only_in_xla=dilated, input=images, filters=normal(*kernel, 3, 4)),
        )
        # TensorFlow cannot run the others.
        if strides[0] == strides[1] and not dilated and not explicit:
            depthwise = functools.partial(tf.nn.depthwise_conv2d, **options)
            yield f"depthwise {row}", gradient_case(depthwise, input=images, filter=normal(*kernel, 3, 2))
        if explicit:  # LiteRT cannot run it forwards.
            largest = tf.nn.max_pool2d(rounded, kernel, **options).numpy()
            pads = {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 2, 0, 1, 0, 0], "ksize": [1, *kernel, 1]}
            tensors = {"orig_input": rounded, "orig_output": largest, "grad": normal(*largest.shape)}
            yield f"max pool {row}", op_case("MaxPoolGrad", **tensors, **options | pads)
        elif not dilated:
            for name, pool in (("max", tf.nn.max_pool2d), ("average", tf.nn.avg_pool2d)):
                yield (
                    f"{name} pool {row}",
                    gradient_case(functools.partial(pool, ksize=kernel, **options), input=rounded),
                )


def batch_norm(version):
    def function(**tensors):
        return getattr(OPS, f"FusedBatchNorm{version}")(**tensors, epsilon=0.01, is_training=False)[0]

    statistics = {"scale": normal(3), "offset": normal(3), "mean": normal(3), "variance": positive(3)}
    return Case(pullback(function), {"x": normal(2, 4, 5, 3), **statistics}, tolerance=2e-6)


# Shapes when traced, and when run.
BROADCAST = [
    ([None, 3], [3], [4, 3], [3]),
    ([None, 1], [None, 3], [4, 1], [4, 3]),
    ([None, 3], [None, 3], [4, 3], [4, 3]),
    ([None, 3], [None, 3], [4, 3], [1, 3]),
    ([None, 3], [2, 1, 3], [4, 3], [2, 1, 3]),
    ([None, None], [None, None], [4, 1], [1, 3]),
    ([None, None, 3], [None, 3], [1, 4, 3], [1, 3]),
    ([], [None, 2], [], [3, 2]),
    ([2, 3], [1, 3], [2, 3], [1, 3]),
    ([1, 3], [1, 3], [1, 3], [1, 3]),
]


def broadcast_case(traced_a, traced_b, *shapes):
    """Gradients are summed where values were broadcast, whether their sizes are known or not."""
    a, b = (normal(*shape) for shape in shapes)
    traced = {"a": traced_a, "b": traced_b, "upstream": [None] * max(a.ndim, b.ndim)}
    return gradient_case(lambda a, b: a * b, traced, a=a, b=b)


cube = cg.custom_gradient(lambda x: (x**3, lambda dy: 3.0 * dy * tf.square(x)))
IMAGES = {"x": normal(2, 6, 6, 2)}
MATRICES = {"x": normal(4, 3), "w": normal(3)}
FUNCTIONS = {
    "slices": (lambda x: x[:, 1:6:2, -1] * x[:, :3, 0], IMAGES),
    "concat": (lambda x: tf.concat([x, 2 * x[:, :3], x], axis=1), IMAGES),
    "custom_gradient": (lambda x: 2 * cube(x), IMAGES),
    "custom_gradient of TensorFlow": (lambda x: tf.nn.silu(x), IMAGES),
    "embed_gradient": (lambda x: cg.embed_gradient(tf.sign(x), tf.abs(x), x), IMAGES),
    "embed_gradient, summed": (lambda x, w: cg.embed_gradient(tf.sign(x * w), x, w[None]), MATRICES),
    "straight_through": (lambda x: 2 * cg.straight_through(surrogate="hard_tanh")(tf.round)(x), IMAGES),
    "tf.function": (lambda x: tf.function(tf.nn.relu6)(8 * x), IMAGES),
    # TensorFlow computes gradients of a tile as a sum of twice as many axes, and LiteRT sums six.
    "a tile of four axes": (lambda x: tf.tile(x, [1, 2, 1, 3]), IMAGES),
    "a tile of batches": (lambda x: tf.tile(x, [2, 1, 2, 1]), IMAGES),
    "upsampling in two dimensions": (lambda x: keras.layers.UpSampling2D((2, 3))(x), IMAGES),
    **{
        f"{op} {size} {options}": (
            lambda x, op=op, size=size, options=options: getattr(OPS, op)(images=x, size=size, **options),
            IMAGES,
        )
        for op in ("ResizeBilinear", "ResizeNearestNeighbor")
        for size, options in [
            ((9, 4), {}),
            ((12, 15), {"half_pixel_centers": True}),
            ((4, 11), {"align_corners": True}),
        ]
    },
}
EIGHT_AXES = {"x": normal(5, 2, 3, 2, 2, 1, 3, 2)}
AXES = (0, 2, 3, -1)


@pullback
def cross_entropy(x, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)


LOGITS = normal(3, 3)
OF_LABELS = {key: y.numpy() for key, y in cross_entropy(x=tf.constant(LOGITS), labels=tf.ones(3, tf.int32)).items()}
for array in OF_LABELS.values():
    array[1:] = np.nan


CASES = {
    **{name: gradient_case(lambda x, f=function: f(x), x=X) for name, function in POINTWISE.items()},
    **{f"{op}Grad": op_case(f"{op}Grad", y=normal(4, 3), dy=normal(4, 3)) for op in ("Reciprocal", "Inv")},
    **{
        f"bias of {shape}": gradient_case(lambda x, w: tf.nn.bias_add(x, w), x=normal(*shape), w=normal(3))
        for shape in ((4, 3), (4, 5, 6, 3))
    },
    **{
        f"cross entropy {i}": op_case("SoftmaxCrossEntropyWithLogits", features=logits, labels=labels)
        for i, (logits, labels) in enumerate(LABELS)
    },
    **{
        f"sparse cross entropy, {dtype.name}": Case(
            cross_entropy,
            {"x": 9 * normal(4, 3), "labels": np.array([2, 0, 1, 0], dtype.as_numpy_dtype)},
            tolerance=2e-6,
        )
        for dtype in (tf.int32, tf.int64)
    },
    **{f"FusedBatchNorm{version}": batch_norm(version) for version in ("", "V2", "V3")},
    **dict(convolutions_and_pools()),
    **{f"broadcast {a} {b} {c} {d}": broadcast_case(a, b, c, d) for a, b, c, d in BROADCAST},
    **{name: Case(pullback(function), inputs) for name, (function, inputs) in FUNCTIONS.items()},
    **{
        f"more than six axes, keepdims={keep}": Case(
            lambda x, keep=keep: {"y": tf.reduce_sum(x, AXES, keep)},
            EIGHT_AXES,
            expected={"y": EIGHT_AXES["x"].sum(AXES, keepdims=keep)},
        )
        for keep in (True, False)
    },
    "seven axes of a reshape": Case(
        lambda x: {"y": tf.reduce_sum(tf.reshape(x, [-1, 2, 3, 2, 2, 3, 2]), [1, 3])},
        EIGHT_AXES,
        expected={"y": EIGHT_AXES["x"].reshape(-1, 2, 3, 2, 2, 3, 2).sum((1, 3))},
    ),
    "eight axes of a reshape to known sizes": Case(
        lambda x: {"y": tf.reduce_sum(tf.reshape(x, [5, 2, 3, 2, 2, 3, 2]), [1, 3])},
        EIGHT_AXES,
        expected={"y": EIGHT_AXES["x"].reshape(5, 2, 3, 2, 2, 3, 2).sum((1, 3))},
    ),
    # LiteRT has no errors at run time for it, so its loss is nan.
    "a label outside of the classes": Case(
        cross_entropy, {"x": LOGITS, "labels": np.int32([1, 3, -1])}, expected=OF_LABELS
    ),
}


def together(cases):
    """A function of the inputs of these cases, by position in CASES."""

    def function(**tensors):
        found = {}
        for i, case in cases.items():
            own = case.function(**{name: tensors[f"{name}_{i}"] for name in case.inputs})
            found |= {f"{name}_{i}": value for name, value in own.items()}
        return found

    return function


@pytest.fixture(scope="module")
def results():
    """What TensorFlow computes, and what it and LiteRT compute with LiteRT's ops; from one conversion, which takes long."""
    cases = dict(enumerate(CASES.values()))
    inputs = {f"{name}_{i}": value for i, case in cases.items() for name, value in case.inputs.items()}
    specs = {
        f"{key}_{i}": tf.TensorSpec(spec.shape, spec.dtype, f"{key}_{i}")
        for i, case in cases.items()
        for key, spec in case.specs().items()
    }
    lite = lite_ops(together(cases), specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([lite], tf.Module())
    runner = Interpreter(model_content=converter.convert()).get_signature_runner()
    tensors, expected = {name: tf.constant(value) for name, value in inputs.items()}, {}
    for compiled in (False, True):
        chosen = {i: case for i, case in cases.items() if not case.expected and case.only_in_xla == compiled}
        expected |= tf.function(together(chosen), jit_compile=compiled, autograph=False)(**tensors)
    return expected, lite(**tensors), runner(**inputs)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_the_same(name, results):
    case, ending = CASES[name], f"_{list(CASES).index(name)}"
    by_tensorflow, *by_lite = (
        {key.removesuffix(ending): value for key, value in found.items() if key.endswith(ending)} for found in results
    )
    for found in by_lite:
        for key, value in (case.expected or by_tensorflow).items():
            assert found[key].shape == value.shape
            size = np.nanmax(np.abs(value))
            np.testing.assert_allclose(found[key], value, rtol=case.tolerance, atol=case.tolerance * size, err_msg=key)


REFUSED = {
    "Erf ('Erf')": lambda x: tf.function(tf.math.erf)(x),
    "Conv2DBackpropInput ('gradient_tape/Conv2DBackpropInput')": lambda x: tf.nn.conv2d(
        x, tf.ones([3, 3, 1, 2]), 1, "SAME"
    ),
    "FusedBatchNormGradV3 ('gradient_tape/FusedBatchNormGradV3')": lambda x: OPS.FusedBatchNormV3(
        x=x, scale=x[0, 0, 0], offset=x[0, 0, 1], mean=[0.0] * 2, variance=[1.0] * 2
    )[0],
}
EMBED = "CustomGradientEmbedGrad ('gradient_tape/CustomGradientEmbedGrad')"


def test_other_ops_are_refused():
    """In a function, groups, training, and an embedded gradient with aligned axes, which only this library has."""

    def function(x):
        for each in REFUSED.values():
            x = each(x)
        return cg.embed_gradient(tf.sign(x), x, x[0, 0, 0])

    gradients = lambda **tensors: pullback(function)(**tensors)  # noqa: E731
    specs = {"x": tf.TensorSpec([None, 6, 6, 2], name="x")}
    with pytest.raises(ValueError, match="all ops must be ones that LiteRT has, got ") as raised:
        lite_ops(gradients, specs)
    for told in (*REFUSED, EMBED, "no groups, and batch normalization must be for inference"):
        assert told in str(raised.value)
    with pytest.raises(ValueError, match=f"got {re.escape(EMBED)}"):
        lite_ops(gradients, specs, flex=True)
