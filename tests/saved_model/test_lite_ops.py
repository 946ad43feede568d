"""Ops that LiteRT lacks, as compositions of built-in ops: the values of TensorFlow's, in TensorFlow and in LiteRT."""

import re

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


def name_of(row):
    op, inputs, attributes = row
    shapes = ["x".join(map(str, np.shape(value))) for name, value in inputs.items() if name not in SIZES]
    return "-".join([op, *shapes, *(str(value).replace(" ", "") for value in attributes.values())])


def run_op(row, inputs):
    op, values, attributes = row
    outputs = tf.nest.flatten(getattr(OPS, op)(**{**values, **inputs}, **attributes))
    # Without training, TensorFlow does not set the other outputs.
    return outputs[: 3 if "Grad" in op else 1] if op.startswith("FusedBatchNorm") else outputs


def lite_ops(function, specs, **options):
    traced = tf.function(function, autograph=False).get_concrete_function(**specs)
    return _lite.with_lite_ops(traced, [], **{"flex": False, **options})[0]


def in_lite(function, specs, inputs):
    """What a function of Tensors returns in TensorFlow and in LiteRT, with LiteRT's ops."""
    lite = lite_ops(function, specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([lite], tf.Module())
    runner = Interpreter(model_content=converter.convert()).get_signature_runner()
    return lite(**{name: tf.constant(value) for name, value in inputs.items()}), runner(**inputs)


@pytest.fixture(scope="module")
def results():
    """The results of all rows in TensorFlow and in LiteRT, from one conversion: each takes a while."""
    inputs, specs = {}, {}
    for i, (_, values, _) in enumerate(TABLE):
        for name, value in values.items():
            if name not in SIZES:
                shape = np.shape(value) if name in WITHOUT_BATCH else [None, *np.shape(value)[1:]]
                inputs[f"{name}_{i}"] = value
                specs[f"{name}_{i}"] = tf.TensorSpec(shape, value.dtype, f"{name}_{i}")

    def function(**tensors):
        found = {}
        for i, row in enumerate(TABLE):
            own = {name: tensors[f"{name}_{i}"] for name in row[1] if name not in SIZES}
            found |= {f"row_{i}_{j}": result for j, result in enumerate(run_op(row, own))}
        return found

    return in_lite(function, specs, inputs)


@pytest.mark.parametrize("number", range(len(TABLE)), ids=map(name_of, TABLE))
def test_an_op_has_the_same_values(number, results):
    row = TABLE[number]
    only_in_xla = max(row[2].get("dilations", [1])) > 1
    outputs = tf.function(lambda: run_op(row, {}), jit_compile=only_in_xla, autograph=False)()
    for found in results:
        for j, output in enumerate(outputs):
            result = found[f"row_{number}_{j}"]
            assert result.shape == output.shape
            np.testing.assert_allclose(result, output, rtol=2e-6, atol=2e-6 * np.max(np.abs(output)))


SHAPES = [
    # Shapes when traced, and when run.
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


def test_gradients_are_summed_where_values_were_broadcast():
    """Whether their sizes are known or not."""
    inputs, specs, expected = {}, {}, {}

    def gradients(i, tensors):
        a, b, upstream = (tensors[f"{name}_{i}"] for name in ("a", "b", "upstream"))
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = a * b
        return {f"d_{name}_{i}": d for name, d in zip("ab", tape.gradient(y, [a, b], upstream), strict=True)}

    for i, (first, second, *shapes) in enumerate(SHAPES):
        a, b = (normal(*shape) for shape in shapes)
        values = {f"a_{i}": a, f"b_{i}": b, f"upstream_{i}": normal(*(a * b).shape)}
        expected |= gradients(i, {name: tf.constant(value) for name, value in values.items()})
        inputs |= values
        traced = (first, second, [None] * (a * b).ndim)
        specs |= {name: tf.TensorSpec(s, tf.float32, name) for name, s in zip(values, traced, strict=True)}

    def function(**tensors):
        return {name: d for i in range(len(SHAPES)) for name, d in gradients(i, tensors).items()}

    for found in in_lite(function, specs, inputs):
        for name, value in expected.items():
            assert found[name].shape == value.shape
            np.testing.assert_allclose(found[name], value, rtol=2e-6, err_msg=name)


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
    "recompute_grad": (lambda x: cg.recompute_grad(lambda x: tf.sin(x) * tf.nn.relu(x))(x), IMAGES),
    "tf.function": (lambda x: tf.function(tf.nn.relu6)(8 * x), IMAGES),
    # TensorFlow computes gradients of a tile as a sum of twice as many axes, and LiteRT sums six.
    "a tile of three axes": (lambda x: tf.tile(x[:, 0], [1, 2, 3]), IMAGES),
    "a tile of four axes": (lambda x: tf.tile(x, [1, 2, 1, 3]), IMAGES),
    "a tile of batches": (lambda x: tf.tile(x, [2, 1, 2, 1]), IMAGES),
    "upsampling in one dimension": (lambda x: keras.layers.UpSampling1D(3)(x[:, 0]), IMAGES),
    "upsampling in two dimensions": (lambda x: keras.layers.UpSampling2D((2, 3))(x), IMAGES),
    "a repeated vector": (lambda x: keras.layers.RepeatVector(3)(x[:, 0, :, 0]), IMAGES),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_functions(name):
    function, inputs = FUNCTIONS[name]
    gradients = pullback(function)
    shapes = {
        key: np.shape(value) if key in WITHOUT_BATCH else [None, *np.shape(value)[1:]] for key, value in inputs.items()
    }
    specs = {key: tf.TensorSpec(shape, tf.float32, key) for key, shape in shapes.items()}
    expected = gradients(**{key: tf.constant(value) for key, value in inputs.items()})
    for found in in_lite(gradients, specs, inputs):
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("keepdims", [True, False])
def test_sums_of_more_than_six_axes(keepdims):
    specs, x = {"x": tf.TensorSpec([None, 2, 3, 2, 2, 1, 3, 2], name="x")}, normal(5, 2, 3, 2, 2, 1, 3, 2)
    axes = [0, 2, 3, -1]
    for found in in_lite(lambda x: {"y": tf.reduce_sum(x, axes, keepdims)}, specs, {"x": x}):
        np.testing.assert_allclose(found["y"], x.sum(tuple(axes), keepdims=keepdims), rtol=1e-5, atol=1e-5)


def test_a_label_that_is_no_class_gives_nan():
    """LiteRT has no errors at run time for it."""
    specs = {"x": tf.TensorSpec([None, 3], name="x"), "labels": tf.TensorSpec([None], tf.int32, "labels")}
    inputs = {"x": normal(3, 3), "labels": np.int32([1, 3, -1])}

    def loss(x, labels):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
        return {"y": y, "dx": tape.gradient(y, x)}

    for found in in_lite(loss, specs, inputs):
        np.testing.assert_array_equal(np.isnan(found["y"]), [False, True, True])
        np.testing.assert_array_equal(np.isnan(found["dx"]), [[False] * 3, [True] * 3, [True] * 3])


REFUSED = {
    # Which ops the message names, and its remedy, which may be flex=True.
    "no composition": (lambda x: tf.math.erf(x), "Erf ('Erf')", "write flex=True."),
    "not in TensorFlow's ops for LiteRT": (lambda x: tf.math.erfc(x), "Erfc ('Erfc')", None),
    "in a function": (lambda x: tf.function(tf.math.erf)(x), "Erf ('Erf')", "write flex=True."),
    "unknown sizes": (
        lambda x: tf.nn.max_pool2d(x[:, : tf.size(x)], 2, 2, "SAME"),
        "MaxPoolGrad ('gradient_tape/MaxPool2d/MaxPoolGrad')",
        "known sizes",
    ),
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
    "exact gelu": (lambda x: tf.nn.gelu(x), "Erfc ('Gelu/Erfc')", None),
    "a loop": (
        lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.sin(y)), (0, x))[1],
        "TensorListPopBack ('",
        "write flex=True.",
    ),
    "a conditional": (
        lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x), lambda: x * x),
        "OptionalGetValue ('",
        "write flex=True.",
    ),
    "dropout": (
        lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2]),
        "StatelessRandomUniformV2 ('",
        "write flex=True.",
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


def test_state_other_than_variables_is_refused():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [3.0]), 0.0)
    with pytest.raises(ValueError, match=r"variables must be the only state, got what LookupTableFindV2 \("):
        lite_ops(lambda x: {"y": table.lookup(x)}, {"x": tf.TensorSpec([2], tf.int32, "x")})
