"""Ops that LiteRT lacks, as compositions of built-in ops: the values of TensorFlow's, in TensorFlow and in LiteRT."""

import dataclasses
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


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def positive(*shape):
    return RANDOM.uniform(0.5, 2.0, shape).astype(np.float32)


def around(*limits):
    """Numbers at, below and above each limit."""
    return np.float32([[limit + step for step in (-0.5, 0.0, 0.5)] for limit in limits])


X = around(-3, 0, 3, 6)
ELEMENTWISE = [
    ("ReluGrad", {"gradients": normal(4, 3), "features": X}, {}),
    ("Relu6Grad", {"gradients": normal(4, 3), "features": X}, {}),
    ("LeakyReluGrad", {"gradients": normal(4, 3), "features": X}, {"alpha": 0.3}),
    ("EluGrad", {"gradients": normal(4, 3), "outputs": tf.nn.elu(X).numpy()}, {}),
    ("SoftplusGrad", {"gradients": normal(4, 3), "features": 20 * X}, {}),
    ("SoftsignGrad", {"gradients": normal(4, 3), "features": X}, {}),
    ("ReciprocalGrad", {"y": normal(4, 3), "dy": normal(4, 3)}, {}),
    ("InvGrad", {"y": normal(4, 3), "dy": normal(4, 3)}, {}),
    # LiteRT has these, or the converter makes them.
    ("TanhGrad", {"y": normal(4, 3), "dy": normal(4, 3)}, {}),
    ("SigmoidGrad", {"y": normal(4, 3), "dy": normal(4, 3)}, {}),
    ("SeluGrad", {"gradients": normal(4, 3), "outputs": tf.nn.selu(X).numpy()}, {}),
    ("RsqrtGrad", {"y": positive(4, 3), "dy": normal(4, 3)}, {}),
    ("BiasAddGrad", {"out_backprop": normal(4, 3)}, {}),
    ("BiasAddGrad", {"out_backprop": normal(4, 5, 6, 3)}, {}),
]
LOSSES = [
    ("SoftmaxCrossEntropyWithLogits", {"features": 9 * normal(4, 3), "labels": positive(4, 3)}, {}),
    ("SoftmaxCrossEntropyWithLogits", {"features": 99 * normal(4, 3), "labels": np.float32([[0, 1, 0]] * 4)}, {}),
    ("SparseSoftmaxCrossEntropyWithLogits", {"features": 9 * normal(4, 3), "labels": np.int32([2, 0, 1, 0])}, {}),
    ("SparseSoftmaxCrossEntropyWithLogits", {"features": 9 * normal(4, 3), "labels": np.int64([2, 0, 1, 0])}, {}),
]
NORM = {"epsilon": 0.01, "is_training": False}
STATISTICS = {"scale": normal(3), "offset": normal(3), "mean": normal(3), "variance": positive(3)}
NORM_GRADIENT = {
    "y_backprop": normal(2, 4, 5, 3),
    "x": normal(2, 4, 5, 3),
    "scale": normal(3),
    "reserve_space_1": normal(3),
    "reserve_space_2": positive(3),
}
NORMALIZATIONS = [
    ("FusedBatchNorm", {"x": normal(2, 4, 5, 3), **STATISTICS}, NORM),
    ("FusedBatchNormV2", {"x": normal(2, 4, 5, 3), **STATISTICS}, NORM),
    ("FusedBatchNormV3", {"x": normal(2, 4, 5, 3), **STATISTICS}, NORM),
    ("FusedBatchNormGrad", NORM_GRADIENT, NORM),
    ("FusedBatchNormGradV2", NORM_GRADIENT, NORM),
    ("FusedBatchNormGradV3", {**NORM_GRADIENT, "reserve_space_3": normal(1)}, NORM),
]
# Height, width, kernel, strides, padding, dilations.
CONVOLUTIONS = [
    (7, 8, (3, 3), (1, 1), "SAME", (1, 1)),
    (7, 8, (3, 2), (1, 1), "VALID", (1, 1)),
    (8, 9, (3, 3), (2, 2), "SAME", (1, 1)),
    (7, 9, (2, 3), (2, 3), "SAME", (1, 1)),
    (8, 9, (3, 2), (3, 2), "VALID", (1, 1)),  # The last columns are in no window.
    (9, 8, (1, 1), (2, 2), "SAME", (1, 1)),
    (9, 8, (3, 2), (1, 1), "SAME", (2, 3)),
    (9, 8, (3, 3), (1, 1), "VALID", (2, 1)),
    (9, 8, (3, 3), (2, 1), [1, 2, 0, 1], (1, 1)),
    (6, 1, (4, 1), (2, 1), "SAME", (1, 1)),
]
POOLS = [row for row in CONVOLUTIONS if row[-1] == (1, 1)]


def conv_attributes(strides, padding, dilations):
    explicit = {"padding": "EXPLICIT", "explicit_paddings": [0, 0, *padding, 0, 0]}
    found = explicit if isinstance(padding, list) else {"padding": padding}
    return {"strides": [1, *strides, 1], "dilations": [1, *dilations, 1], **found}


def convolutions():
    for height, width, kernel, strides, padding, dilations in CONVOLUTIONS:
        attributes = conv_attributes(strides, padding, dilations)
        for kind, channels in (("Conv2D", (3, 4)), ("DepthwiseConv2dNative", (3, 2))):
            # TensorFlow cannot run the others.
            if kind != "Conv2D" and (strides[0] != strides[1] or dilations != (1, 1) or isinstance(padding, list)):
                continue
            images, weights = normal(2, height, width, 3), normal(*kernel, *channels)
            upstream = normal(*getattr(OPS, kind)(input=images, filter=weights, **attributes).shape)
            filter_sizes = {"filter_sizes": np.int32(weights.shape)}
            input_sizes = {"input_sizes": np.int32(images.shape)}
            yield f"{kind}BackpropFilter", {"input": images, **filter_sizes, "out_backprop": upstream}, attributes
            yield f"{kind}BackpropInput", {**input_sizes, "filter": weights, "out_backprop": upstream}, attributes


def pools():
    for height, width, kernel, strides, padding, _ in POOLS:
        attributes = {"ksize": [1, *kernel, 1], **conv_attributes(strides, padding, (1, 1))}
        del attributes["dilations"]
        images = np.round(normal(2, height, width, 3), 0)  # Many elements are equal.
        largest = OPS.MaxPool(input=images, **attributes).numpy()
        upstream = normal(*largest.shape)
        yield "MaxPoolGrad", {"orig_input": images, "orig_output": largest, "grad": upstream}, attributes
        if "explicit_paddings" not in attributes:
            shape = {"orig_input_shape": np.int32(images.shape)}
            yield "AvgPoolGrad", {**shape, "grad": upstream}, attributes


TABLE = [*ELEMENTWISE, *LOSSES, *NORMALIZATIONS, *convolutions(), *pools()]
SIZES = ("filter_sizes", "input_sizes", "orig_input_shape")  # Constants, as in TensorFlow's gradients.
WITHOUT_BATCH = ("filter", "w", "scale", "offset", "mean", "variance", "reserve_space_1", "reserve_space_2")


def name_of(op, inputs, attributes):
    shapes = ["x".join(map(str, np.shape(value))) for name, value in inputs.items() if name not in SIZES]
    return "-".join([op, *shapes, *(str(value).replace(" ", "") for value in attributes.values())])


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
        of_batches = {
            name: np.shape(value) if name in WITHOUT_BATCH else [None, *np.shape(value)[1:]]
            for name, value in self.inputs.items()
        }
        return {
            name: tf.TensorSpec(shape, self.inputs[name].dtype) for name, shape in (of_batches | self.shapes).items()
        }


def op_case(op, inputs, attributes):
    constants = {name: value for name, value in inputs.items() if name in SIZES}

    def run(**tensors):
        outputs = tf.nest.flatten(getattr(OPS, op)(**constants, **tensors, **attributes))
        # Without training, TensorFlow does not set the other outputs.
        used = outputs[: 3 if "Grad" in op else 1] if op.startswith("FusedBatchNorm") else outputs
        return {f"output_{i}": output for i, output in enumerate(used)}

    inputs = {name: value for name, value in inputs.items() if name not in SIZES}
    return Case(run, inputs, only_in_xla=max(attributes.get("dilations", [1])) > 1, tolerance=2e-6)


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

    def run(a, b, upstream):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = a * b
        return dict(zip(["d_a", "d_b"], tape.gradient(y, [a, b], upstream), strict=True))

    a, b = (normal(*shape) for shape in shapes)
    upstream = normal(*(a * b).shape)
    traced = {"a": traced_a, "b": traced_b, "upstream": [None] * upstream.ndim}
    return Case(run, {"a": a, "b": b, "upstream": upstream}, traced, tolerance=2e-6)


def pullback(function):
    """A function of named Tensors that returns the gradients of another one."""

    def gradients(**tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = function(**tensors)
        return {f"d_{name}": d for name, d in tape.gradient(y, tensors, tf.cos(y)).items() if d is not None}

    return gradients


@cg.custom_gradient
def cube(x):
    return x**3, lambda dy: 3.0 * dy * tf.square(x)


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
}
EIGHT_AXES = {"x": normal(5, 2, 3, 2, 2, 1, 3, 2)}
AXES = (0, 2, 3, -1)


def loss(x, labels):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
    return {"y": y, "dx": tape.gradient(y, x)}


LOGITS = normal(3, 3)
OF_LABELS = {name: value.numpy() for name, value in loss(tf.constant(LOGITS), [1, 1, 1]).items()}
for array in OF_LABELS.values():
    array[1:] = np.nan


CASES = {
    **{name_of(*row): op_case(*row) for row in TABLE},
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
    # LiteRT has no errors at run time for it, so its loss is nan.
    "a label outside of the classes": Case(
        loss,
        {"x": LOGITS, "labels": np.int32([1, 3, -1])},
        expected=OF_LABELS,
    ),
}


@pytest.fixture(scope="module")
def results():
    """The results of all cases in TensorFlow and in LiteRT with LiteRT's ops, from one conversion: each takes a while."""
    inputs, specs = {}, {}
    for i, case in enumerate(CASES.values()):
        inputs |= {f"{name}_{i}": value for name, value in case.inputs.items()}
        specs |= {f"{key}_{i}": tf.TensorSpec(s.shape, s.dtype, f"{key}_{i}") for key, s in case.specs().items()}

    def function(**tensors):
        found = {}
        for i, case in enumerate(CASES.values()):
            own = case.function(**{name: tensors[f"{name}_{i}"] for name in case.inputs})
            found |= {f"{name}_{i}": value for name, value in own.items()}
        return found

    lite = lite_ops(function, specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([lite], tf.Module())
    runner = Interpreter(model_content=converter.convert()).get_signature_runner()
    return lite(**{name: tf.constant(value) for name, value in inputs.items()}), runner(**inputs)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_the_same(name, results):
    case, number = CASES[name], list(CASES).index(name)
    inputs = {name: tf.constant(value) for name, value in case.inputs.items()}
    expected = case.expected or tf.function(case.function, jit_compile=case.only_in_xla, autograph=False)(**inputs)
    for found in results:
        for key, value in expected.items():
            result = found[f"{key}_{number}"]
            assert result.shape == value.shape
            size = np.nanmax(np.abs(value))
            np.testing.assert_allclose(result, value, rtol=case.tolerance, atol=case.tolerance * size, err_msg=key)


REFUSED = {
    # Which ops the message names, and its remedy, which may be flex=True.
    "in a function": (lambda x: tf.function(tf.math.erf)(x), "Erf ('Erf')", "write flex=True."),
    "groups": (
        lambda x: tf.nn.conv2d(x, tf.ones([3, 3, 1, 2]), 1, "SAME"),
        "Conv2DBackpropInput ('gradient_tape/Conv2DBackpropInput')",
        "known sizes",
    ),
    "embed_gradient with aligned axes": (
        lambda x: cg.embed_gradient(tf.sign(x), x, x[0, 0, 0]),
        "CustomGradientEmbedGrad ('gradient_tape/CustomGradientEmbedGrad')",
        None,
    ),
    "training": (
        lambda x: OPS.FusedBatchNormV3(x=x, scale=x[0, 0, 0], offset=x[0, 0, 1], mean=[0.0] * 2, variance=[1.0] * 2)[0],
        "FusedBatchNormGradV3 ('gradient_tape/FusedBatchNormGradV3')",
        "batch normalization must be for inference",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_ops_are_refused(name):
    function, names, remedy = REFUSED[name]
    specs = {"x": tf.TensorSpec([None, 6, 6, 2], name="x")}
    with pytest.raises(ValueError, match="all ops must be ones that LiteRT has, got ") as raised:
        lite_ops(pullback(function), specs)
    assert names in str(raised.value)
    assert remedy is None or remedy in str(raised.value)
    if "flex=True" in str(raised.value):
        lite_ops(pullback(function), specs, flex=True)
    else:
        with pytest.raises(ValueError, match=re.escape(names)):
            lite_ops(pullback(function), specs, flex=True)
