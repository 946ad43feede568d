"""What inspect reports, without running the SavedModel."""

import shutil

import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.saved_models import gradient, proto_of, save_graph
from .test_strip_kinds import of_tensorflow_1

pytestmark = pytest.mark.core


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([1.0, 2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def embedded(self, x):
        return cg.embed_gradient(tf.sign(x), [x, 2.0 * x], [x, self.w])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64), tf.TensorSpec([2], tf.float64)])
    def several(self, x, z):
        @cg.custom_gradient
        def pair(x, z):
            return (x * 2.0, tf.argmax(z)), lambda dx, _: (tf.sin(dx), None)

        return pair(x, z)

    @tf.function(input_signature=[tf.TensorSpec([4])])
    def looped(self, x):
        @cg.custom_gradient
        def in_loop(x):
            return tf.sign(x), lambda dy: dy

        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, in_loop(y)), (0, x))[1]

    @tf.function(input_signature=[tf.TensorSpec([4])])
    def calling(self, x):
        @cg.custom_gradient
        def with_long_rule(x):
            return tf.sign(x), lambda dy: tf.function(lambda dy: tf.cos(tf.cos(dy)))(tf.sin(tf.sin(tf.sin(dy))))

        return with_long_rule(x)

    @tf.function(input_signature=[tf.TensorSpec([4])])
    def untraceable(self, x):
        return cg.custom_gradient(lambda x: (x * 1.0, lambda dy: dy.numpy()))(x)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect") / "model"
    tf.saved_model.save(Model(), folder)
    return folder


def test_every_kind_of_gradient(saved, tmp_path):
    """Nothing of the model runs: its variables are deleted, so its initialisation would fail."""
    model = shutil.copytree(saved, tmp_path / "model", ignore=lambda *_: ["variables"])
    found = {gradient.user_function or gradient.kind: gradient for gradient in cg.saved_model.inspect(model)}
    names = ("embed_gradient", "pair", "in_loop", "with_long_rule", "<lambda>")
    embedded, several, looped, calling, untraceable = (found[name] for name in names)
    assert len(found) == 5
    assert embedded.function.startswith("__inference_embedded_")
    assert several.function.startswith("__inference_several_")
    assert several.rule_ops >= 1
    assert "while_body" in looped.function
    names = ("node", "kind", "user_function", "dtypes", "shapes", "inputs_with_gradients", "error")
    assert [[getattr(gradient, name) for name in names] for gradient in (embedded, several, looped)] == [
        ["CustomGradientEmbed", "embed_gradient", "", ("float32",), ((None, 3),), 2, ""],
        ["CustomGradientRule", "custom_gradient", "pair", ("float64", "int64"), (None, ()), 1, ""],
        ["while/CustomGradientRule", "custom_gradient", "in_loop", ("float32",), ((4,),), 1, ""],
    ]
    assert embedded.rule_ops is None
    assert calling.rule_ops - looped.rule_ops == 3 + 1 + 2  # A call, and the function that it calls.
    assert untraceable.inputs_with_gradients == 0
    assert untraceable.error == (
        "custom_gradient: the gradient of '<lambda>' is not in this file, because TensorFlow could not trace grad_fn: "
        "AttributeError: 'SymbolicTensor' object has no attribute 'numpy'. Correct grad_fn, or compute it with TensorFlow "
        "operations."
    )


def cube(rule_of, **options):
    @cg.custom_gradient(**options)
    def cube(x):
        return x**3, lambda dy: dy * rule_of(cube, x)

    return cube


@tf.custom_gradient
def tripled(x):
    return 2.0 * x, lambda dy: 3.0 * tripled_once(dy)


@tf.custom_gradient
def tripled_once(x):
    return 2.0 * x, lambda dy: 3.0 * dy


# A function, and the orders of derivatives that a file has of it.
ORDERS = {
    "built-in ops": (cube(lambda _, x: 3.0 * x**2), None),
    "itself": (cube(lambda cube, x: 3.0 * cube(x) / x), 1),
    "itself, in a loop": (cube(lambda cube, x: tf.while_loop(lambda x: x < 1.0, lambda x: [cube(x)], [x])[0]), 1),
    "itself, three orders": (cube(lambda cube, x: 3.0 * cube(x) / x, saved_orders=3), 3),
    "another one": (cube(lambda _, x: cg.scale_gradient(x, 2.0)), None),
    "none": (cube(lambda _, x: x.numpy()), 0),
    "tf.custom_gradient": (tripled, 1),  # TensorFlow does not save the gradient of its gradient.
}


@pytest.mark.parametrize("case", ORDERS)
def test_the_number_of_orders_in_the_file(case, tmp_path):
    function, orders = ORDERS[case]
    module = tf.Module()
    module.f = tf.function(function, input_signature=[tf.TensorSpec([])], autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, tmp_path / "model", options=options)
    found = cg.saved_model.inspect(tmp_path / "model")
    (outermost,) = [each for each in found if each.function.startswith(("__inference_cube", "__inference_tripled"))]
    assert outermost.orders == orders
    x, derivative = tf.constant(2.0), lambda f: lambda x: gradient(f, x, 1.0)
    dx = tf.saved_model.load(tmp_path / "model").f
    for _ in range(orders or 0):
        dx = derivative(dx)
        dx(x)
    if orders is not None and function is not tripled:  # This process still has the gradient of tf.custom_gradient.
        with pytest.raises(RuntimeError, match=r"is not in this file|saved_orders"):
            derivative(dx)(x)


def test_graphs_of_tensorflow_1(tmp_path):
    """They have no function there, and an overridden gradient of such a graph is not from tf.custom_gradient."""
    save_graph(tmp_path / "model", of_tensorflow_1, tf.TensorSpec([None, 3]))
    found = [
        (gradient.function, gradient.kind, gradient.shapes) for gradient in cg.saved_model.inspect(tmp_path / "model")
    ]
    assert found == [("", kind, ((None, 3),)) for kind in ("custom_gradient", "embed_gradient")]
    tf.RegisterGradient("of_test_inspect")(lambda op, dy: 2.0 * dy)

    def overridden(x):
        with tf.compat.v1.get_default_graph().gradient_override_map({"Relu": "of_test_inspect"}):
            return {"y": tf.nn.relu(x)}

    save_graph(tmp_path / "overridden", overridden, tf.TensorSpec([3]))
    assert cg.saved_model.inspect(tmp_path / "overridden") == []


def test_a_stripped_model_gives_an_empty_list(saved, tmp_path):
    cg.saved_model.strip(saved, tmp_path / "stripped", check=False)
    assert cg.saved_model.inspect(tmp_path / "stripped") == []


def test_ops_of_other_libraries_have_to_be_registered(saved, tmp_path):
    model = shutil.copytree(saved, tmp_path / "model")
    proto = proto_of(model)
    for function in proto.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            node.op = "OpOfSomebodyElse" if node.op == "Sign" else node.op
    (model / "saved_model.pb").write_bytes(proto.SerializeToString())
    code = "import sys, tf_cg_ops\ntry:\n    tf_cg_ops.saved_model.inspect(sys.argv[1])\nexcept ValueError as e:\n    print(e)"
    text = run_python(code, model, cwd=tmp_path).stdout
    assert text.startswith(
        f"saved_model.inspect: TensorFlow cannot build the graphs in '{model}': Op type not registered 'OpOfSomebodyElse'"
    )
    assert text.endswith(
        ". First import the packages that register missing ops; if the file was changed, save or copy the model again.\n"
    )
