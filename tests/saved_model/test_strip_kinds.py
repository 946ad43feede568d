"""strip on every kind of SavedModel: who wrote it, what inputs it has, what it is used for afterwards."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from ai_edge_litert.interpreter import Interpreter

import tf_cg_ops as cg

from ..support.mode_table import fills
from ..support.saved_models import assert_same, save_and_strip, save_graph, strip
from ..support.without_python import residual, with_tangent

X = np.array([[0.5, -1.0, 2.0], [-0.25, 3.0, 0.0]], np.float32)


spike = cg.custom_gradient(lambda x: (tf.cast(x > 0.0, x.dtype), lambda dy: dy / (1.0 + tf.abs(x))))


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


@fills("tflite", "strip", "embed_gradient", "custom_gradient", "custom_vjp", "custom_jvp")
@fills("tflite", "recompute_grad", "grad_pass_through")
def test_stripped_models_convert_to_tensorflow_lite_with_equal_outputs(tmp_path):
    module = module_of(lambda x: {"y": every_kind(x)}, tf.TensorSpec([2, 3]))
    save_and_strip(module, tmp_path, signatures=module.f)
    converted = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "target")).convert()
    interpreter = Interpreter(model_content=converted)
    run = interpreter.get_signature_runner("serving_default")
    for x in (X, -X):
        np.testing.assert_allclose(run(x=x)["y"], module.f(x)["y"], rtol=1e-6)


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_models_of_keras_can_be_loaded_by_keras_again(library, tmp_path):
    """Keras 3 loads an exported model as a layer, and tf_keras a whole model by its metadata."""

    class Spike(library.layers.Layer):
        def call(self, inputs):
            return spike(inputs - 0.1)

    inputs = library.Input([3])
    hidden = library.layers.Dense(4, kernel_initializer="ones")(inputs)
    model = library.Model(inputs, library.layers.Dense(2, kernel_initializer="ones")(Spike()(hidden)))
    if library is keras:
        model.export(tmp_path / "source", verbose=False)
    else:
        model.save(tmp_path / "source", save_format="tf")
    report = strip(tmp_path / "source", tmp_path / "target")
    assert {c.name: c.verdict for c in report.comparisons}["serving_default"] == "equal, bit for bit"
    if library is keras:
        again = keras.layers.TFSMLayer(tmp_path / "target", call_endpoint="serve")
    else:
        again = tf_keras.models.load_model(tmp_path / "target", custom_objects={"Spike": Spike})
    assert_same(again(X), model(X))


def test_a_table_from_an_asset(tmp_path):
    words, keys, module = tmp_path / "words.txt", tf.lookup.TextFileIndex, tf.Module()
    words.write_text("one\ntwo\nthree\n")
    module.asset = tf.saved_model.Asset(str(words))
    lines = tf.lookup.TextFileInitializer(module.asset, tf.string, keys.WHOLE_LINE, tf.int64, keys.LINE_NUMBER)
    module.table = tf.lookup.StaticHashTable(lines, -1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def look_up(text):
        place = module.table.lookup(text)
        return {"place": place, "scaled": spike(tf.cast(place, tf.float32)), "text": text}

    module.look_up = look_up
    save_and_strip(module, tmp_path, signatures=look_up)
    words.unlink()
    found = tf.saved_model.load(tmp_path / "target").signatures["serving_default"](text=tf.constant(["two", "four"]))
    assert_same(found["place"], tf.constant([1, -1], tf.int64))
    assert_same(found["scaled"], tf.constant([1.0, 0.0]))


def test_composite_inputs(tmp_path):
    module = module_of(lambda r: r.with_values(spike(r.values)), tf.RaggedTensorSpec([None, None], tf.float32))
    module.g = tf.function(lambda s: s.with_values(spike(s.values)), input_signature=[tf.SparseTensorSpec([None, 3])])
    report = save_and_strip(module, tmp_path)
    assert [(c.name, c.verdict) for c in report.comparisons] == [(f".{name}", "equal, bit for bit") for name in "fg"]


def of_tensorflow_1(x):
    """Outputs of a graph that contains ops of this library directly, also for a gradient.

    Only a gradient rule reads the "unseen" node. A node that stays is colocated with it.
    """
    graph, tf1 = tf.compat.v1.get_default_graph(), tf.compat.v1
    w = tf1.get_variable("w", initializer=[2.0, 3.0, 5.0], use_resource=True)
    unseen = tf.exp(w, name="unseen")
    kept = tf.exp(2.0 * w, name="kept_in_a_collection")
    tf1.add_to_collection("mine", kept)
    h = cg.custom_gradient(lambda x: (tf.sign(x), lambda dy: dy * unseen * kept))(x * w)
    with graph.colocate_with(unseen.op):
        gx = tf.multiply(3.0, w, name="beside_what_goes")
    with graph.colocate_with(unseen.op), graph.colocate_with(kept.op):
        y = tf.identity(cg.embed_gradient(h, gx, x), name="beside_both")
    return {"y": y, "dx": tf.gradients(y, x, grad_ys=tf.sin(x))[0]}


def run_with_tensorflow_1(path):
    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], str(path)).signature_def["serving_default"]
        names = [info.name for _, info in sorted(signature.outputs.items())]
        collected = tf1.get_collection("mine")
        return session.run([*names, *collected], {signature.inputs["x"].name: X}), graph


def test_a_graph_of_tensorflow_1(tmp_path):
    save_graph(tmp_path / "source", of_tensorflow_1, tf.TensorSpec([None, 3]))
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

    def counting(x):
        count = tf.compat.v1.get_variable("count", initializer=0.0, use_resource=True)
        with tf.control_dependencies([count.assign_add(1.0, name="counted", read_value=False)]):
            gx = tf.multiply(2.0, x, name="unseen")
        return {"y": cg.embed_gradient(x**2, gx, x)}

    save_graph(tmp_path / "source", counting, tf.TensorSpec([None, 3]))
    cg.saved_model.strip(tmp_path / "source", tmp_path / "target", check=False)
    _, graph = run_with_tensorflow_1(tmp_path / "target")
    assert {"counted", "unseen"} & {op.name for op in graph.get_operations()} == {"counted"}


def loop_of_tensorflow_1(x):
    invariant = tf.cos(x, name="invariant")
    rule = cg.custom_gradient(lambda y: (tf.sign(y) + 0.5 * y, lambda dy: dy * invariant))
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, rule(y)), (0, x))[1]


def value_and_gradient(x):
    y = loop_of_tensorflow_1(x)
    return {"y": y, "dx": tf.gradients(y, x)[0]}


@pytest.mark.parametrize("make", [value_and_gradient, lambda x: {"y": loop_of_tensorflow_1(x)}], ids=["both", "value"])
def test_a_loop_of_tensorflow_1(make, tmp_path):
    """Its operations are in the graph itself, with loop invariants that only gradients read."""
    tf.compat.v1.disable_control_flow_v2()
    try:
        save_graph(tmp_path / "source", make, tf.TensorSpec([None, 3]))
    finally:
        tf.compat.v1.enable_control_flow_v2()
    strip(tmp_path / "source", tmp_path / "target")
    before, after = (run_with_tensorflow_1(tmp_path / name)[0] for name in ("source", "target"))
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
