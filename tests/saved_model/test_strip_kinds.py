"""strip on every kind of SavedModel: who wrote it, what inputs it has, what it is used for afterwards."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from ai_edge_litert.interpreter import Interpreter

import tf_cg_ops as cg

from ..support.saved_models import assert_same, contents, save_and_strip, strip
from ..support.without_python import residual, with_tangent

X = np.array([[0.5, -1.0, 2.0], [-0.25, 3.0, 0.0]], np.float32)


@cg.custom_gradient
def spike(x):
    return tf.cast(x > 0.0, x.dtype), lambda dy: dy / (1.0 + tf.abs(x))


def every_kind(x):
    """All ways to embed a gradient that a converter must handle."""
    h = cg.embed_gradient(tf.sign(x), [2.0 * x, x], [x, tf.exp(x)])
    h = cg.recompute_grad(tf.sin)(h) + cg.grad_pass_through(tf.round)(residual(with_tangent(x)))
    first, second = cg.custom_gradient(lambda a, b: ((a * b, a - b), lambda *dys: dys))(h, spike(x))
    h = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, spike(y) + 0.5 * y), (0, first))[1]
    return tf.cond(h[0, 0] > 0.0, lambda: cg.embed_gradient(h, x, x), lambda: second)


def module_of(function, *specs):
    module = tf.Module()
    module.f = tf.function(function, input_signature=specs, autograph=False)
    return module


@pytest.mark.mode_table(feature="strip", mode="tflite")
@pytest.mark.mode_table(feature="embed_gradient", mode="tflite")
@pytest.mark.mode_table(feature="custom_gradient", mode="tflite")
@pytest.mark.mode_table(feature="custom_vjp", mode="tflite")
@pytest.mark.mode_table(feature="custom_jvp", mode="tflite")
@pytest.mark.mode_table(feature="recompute_grad", mode="tflite")
@pytest.mark.mode_table(feature="grad_pass_through", mode="tflite")
def test_stripped_models_convert_to_tensorflow_lite_with_equal_outputs(tmp_path):
    module = module_of(lambda x: {"y": every_kind(x)}, tf.TensorSpec([2, 3]))
    save_and_strip(module, tmp_path, signatures=module.f)
    converted = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "target")).convert()
    interpreter = Interpreter(model_content=converted)
    run = interpreter.get_signature_runner("serving_default")
    for x in (X, -X):
        np.testing.assert_allclose(run(x=x)["y"], module.f(x)["y"], rtol=1e-6)


def keras_model(keras_module):
    class Spike(keras_module.layers.Layer):
        def call(self, inputs):
            return spike(inputs - 0.1)

    inputs = keras_module.Input([3])
    hidden = keras_module.layers.Dense(4, kernel_initializer="ones")(inputs)
    outputs = keras_module.layers.Dense(2, kernel_initializer="ones")(Spike()(hidden))
    return keras_module.Model(inputs, outputs), Spike


def test_a_keras_model_that_was_exported(tmp_path):
    model, _ = keras_model(keras)
    model.export(tmp_path / "source", verbose=False)
    report = strip(tmp_path / "source", tmp_path / "target")
    assert {c.name: c.verdict for c in report.comparisons}["serving_default"] == "equal, bit for bit"
    layer = keras.layers.TFSMLayer(tmp_path / "target", call_endpoint="serve")
    loaded = tf.saved_model.load(tmp_path / "target")
    for run in (loaded.serve, layer):
        assert_same(run(X), model(X))


def test_a_model_of_tf_keras_keeps_its_metadata_and_is_a_model_again(tmp_path):
    model, layer = keras_model(tf_keras)
    model.save(tmp_path / "source", save_format="tf")
    strip(tmp_path / "source", tmp_path / "target")
    assert "keras_metadata.pb" in contents(tmp_path / "target")
    loaded = tf_keras.models.load_model(tmp_path / "target", custom_objects={layer.__name__: layer})
    assert_same(loaded.predict(X, verbose=0), model(X))
    again = tf.saved_model.load(tmp_path / "target")
    assert_same(again(X), model(X))


def add_table(module, folder):
    """A table from an asset: line numbers by words."""
    words = folder / "words.txt"
    words.write_text("one\ntwo\nthree\n")
    index = tf.lookup.TextFileIndex
    asset = tf.saved_model.Asset(str(words))
    initializer = tf.lookup.TextFileInitializer(asset, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    module.asset, module.table = asset, tf.lookup.StaticHashTable(initializer, -1)
    return words


def test_several_signatures_and_assets(tmp_path):
    module = tf.Module()
    words = add_table(module, tmp_path)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def look_up(text):
        place = module.table.lookup(text)
        return {"place": place, "scaled": spike(tf.cast(place, tf.float32)), "text": text}

    @tf.function(input_signature=[tf.TensorSpec([2, 3]), tf.TensorSpec([], tf.bool)])
    def choose(x, flag):
        return {"y": tf.where(flag, spike(x), x)}

    module.look_up, module.choose = look_up, choose
    report = save_and_strip(module, tmp_path, signatures={"look_up": look_up, "choose": choose})
    words.unlink()
    loaded = tf.saved_model.load(tmp_path / "target")
    found = loaded.signatures["look_up"](text=tf.constant(["two", "four"]))
    assert_same(found["place"], tf.constant([1, -1], tf.int64))
    assert_same(found["scaled"], tf.constant([1.0, 0.0]))
    assert_same(loaded.signatures["choose"](x=X, flag=tf.constant(True))["y"], spike(X))
    verdicts = {c.name: c.verdict for c in report.comparisons}
    assert verdicts == dict.fromkeys(["look_up", "choose", ".look_up", ".choose"], "equal, bit for bit")


def test_composite_inputs(tmp_path):
    module = module_of(lambda r: r.with_values(spike(r.values)), tf.RaggedTensorSpec([None, None], tf.float32))
    module.g = tf.function(lambda s: s.with_values(spike(s.values)), input_signature=[tf.SparseTensorSpec([None, 3])])
    report = save_and_strip(module, tmp_path)
    assert [(c.name, c.verdict) for c in report.comparisons] == [(f".{name}", "equal, bit for bit") for name in "fg"]
    loaded = tf.saved_model.load(tmp_path / "target")
    ragged, sparse = tf.ragged.constant([[1.0], [2.0, -3.0]]), tf.sparse.from_dense(X)
    assert_same(loaded.f(ragged), module.f(ragged))
    assert_same(loaded.g(sparse), module.g(sparse))


def save_with_tensorflow_1(path):
    """One graph that contains ops of this library directly, also for a gradient.

    Only a gradient rule reads the "unseen" node. A node that stays is colocated with it.
    """
    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None, 3], name="x")
        w = tf1.get_variable("w", initializer=[2.0, 3.0, 5.0], use_resource=True)
        unseen = tf.exp(w, name="unseen")
        kept = tf.exp(2.0 * w, name="kept_in_a_collection")
        tf1.add_to_collection("mine", kept)
        h = cg.custom_gradient(lambda x: (tf.sign(x), lambda dy: dy * unseen * kept))(x * w)
        with graph.colocate_with(unseen.op):
            gx = tf.multiply(3.0, w, name="beside_what_goes")
        with graph.colocate_with(unseen.op), graph.colocate_with(kept.op):
            y = tf.identity(cg.embed_gradient(h, gx, x), name="beside_both")
        (dx,) = tf.gradients(y, x, grad_ys=tf.sin(x))
        session.run(tf1.global_variables_initializer())
        simple_save(session, path, x, y=y, dx=dx)


def simple_save(session, path, x, **outputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tf.compat.v1.saved_model.simple_save(session, str(path), {"x": x}, outputs)


def run_with_tensorflow_1(path):
    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], str(path)).signature_def["serving_default"]
        names = [info.name for _, info in sorted(signature.outputs.items())]
        collected = tf1.get_collection("mine")
        return session.run([*names, *collected], {signature.inputs["x"].name: X}), graph


def test_a_graph_of_tensorflow_1(tmp_path):
    save_with_tensorflow_1(tmp_path / "source")
    before, graph = run_with_tensorflow_1(tmp_path / "source")
    assert "unseen" in {op.name for op in graph.get_operations()}
    report = strip(tmp_path / "source", tmp_path / "target")
    assert report.replaced == {
        "CustomGradientEmbed": 1,
        "CustomGradientEmbedGrad": 1,
        "CustomGradientRule": 1,
    }
    after, graph = run_with_tensorflow_1(tmp_path / "target")
    assert "unseen" not in {op.name for op in graph.get_operations()}
    assert graph.get_operation_by_name("beside_both").get_attr("_class") == [b"loc:@kept_in_a_collection"]
    with pytest.raises(ValueError, match="has no attr named"):
        graph.get_operation_by_name("beside_what_goes").get_attr("_class")
    assert_same(after, before)
    np.testing.assert_allclose(before[0], 3.0 * np.array([2.0, 3.0, 5.0]) * np.sin(X), rtol=1e-6)
    loaded = tf.saved_model.load(tmp_path / "target")
    assert_same(loaded.signatures["serving_default"](x=tf.constant(X))["y"], before[1])


def test_an_assignment_that_only_a_gradient_waits_for_stays_in_a_graph_of_tensorflow_1(tmp_path):
    """A program could run it by name."""
    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None, 3], name="x")
        count = tf1.get_variable("count", initializer=0.0, use_resource=True)
        with tf.control_dependencies([count.assign_add(1.0, name="counted", read_value=False)]):
            gx = tf.multiply(2.0, x, name="unseen")
        y = cg.embed_gradient(x**2, gx, x)
        session.run(tf1.global_variables_initializer())
        simple_save(session, tmp_path / "source", x, y=y)
    cg.saved_model.strip(tmp_path / "source", tmp_path / "target", check=False)
    _, graph = run_with_tensorflow_1(tmp_path / "target")
    assert {"counted", "unseen"} & {op.name for op in graph.get_operations()} == {"counted"}


def test_a_loop_of_tensorflow_1(tmp_path):
    """Its operations are in the graph itself, with loop invariants that only gradients read."""
    tf1 = tf.compat.v1
    tf1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), tf1.Session() as session:
            x = tf1.placeholder(tf.float32, [None, 3], name="x")
            invariant = tf.cos(x, name="invariant")
            rule = cg.custom_gradient(lambda y: (tf.sign(y) + 0.5 * y, lambda dy: dy * invariant))
            y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, rule(y)), (0, x))[1]
            (dx,) = tf.gradients(y, x)
            simple_save(session, tmp_path / "both", x, y=y, dx=dx)
            simple_save(session, tmp_path / "value", x, y=y)
    finally:
        tf1.enable_control_flow_v2()
    for kind in ("both", "value"):
        strip(tmp_path / kind, tmp_path / f"{kind} stripped")
        before, _ = run_with_tensorflow_1(tmp_path / kind)
        after, _ = run_with_tensorflow_1(tmp_path / f"{kind} stripped")
        assert_same(after, before)


def test_the_fingerprint_is_that_of_the_new_graphs_if_there_is_one(tmp_path):
    module = module_of(spike, tf.TensorSpec([None]))
    save_and_strip(module, tmp_path, signatures=module.f, check=False)
    old, new = (tf.saved_model.experimental.read_fingerprint(str(tmp_path / name)) for name in ("source", "target"))
    assert new.saved_model_checksum != old.saved_model_checksum
    assert new.checkpoint_hash == old.checkpoint_hash
    assert new.signature_def_hash == old.signature_def_hash
    (tmp_path / "source" / "fingerprint.pb").unlink()
    strip(tmp_path / "source", tmp_path / "without", check=False)
    assert not (tmp_path / "without" / "fingerprint.pb").exists()
    loaded = tf.saved_model.load(tmp_path / "without")
    assert_same(loaded.f(tf.constant([1.0, -1.0])), tf.constant([1.0, 0.0]))
