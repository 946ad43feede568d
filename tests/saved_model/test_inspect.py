"""The report of inspect on a SavedModel, which is not run."""

import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from .test_strip_kinds import save_with_tensorflow_1

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
    def untraceable(self, x):
        return cg.custom_gradient(lambda x: (x * 1.0, lambda dy: dy.numpy()))(x)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    tf.saved_model.save(Model(), folder / "model")
    return {gradient.user_function or gradient.kind: gradient for gradient in cg.saved_model.inspect(folder / "model")}


def test_an_embedded_gradient(found):
    gradient = found["embed_gradient"]
    assert gradient.function.startswith("__inference_embedded_")
    assert gradient.node == "CustomGradientEmbed"
    assert gradient.kind == "embed_gradient"
    assert gradient.user_function == ""
    assert gradient.dtypes == ("float32",)
    assert gradient.shapes == ((None, 3),)
    assert gradient.inputs_with_gradients == 2
    assert gradient.rule_ops is None
    assert gradient.error == ""


def test_a_custom_gradient_of_several_values(found):
    gradient = found["pair"]
    assert gradient.function.startswith("__inference_several_")
    assert gradient.kind == "custom_gradient"
    assert gradient.dtypes == ("float64", "int64")
    assert gradient.shapes == (None, ())
    assert gradient.inputs_with_gradients == 1
    assert gradient.rule_ops >= 1
    assert gradient.error == ""


def test_one_in_a_loop_stands_in_the_body(found):
    gradient = found["in_loop"]
    assert "while_body" in gradient.function
    assert gradient.node == "while/CustomGradientRule"
    assert gradient.shapes == ((4,),)


def test_one_that_could_not_be_traced_says_why(found):
    assert found["<lambda>"].error == (
        "custom_gradient: the gradient of '<lambda>' is not there; expected a grad_fn that TensorFlow can trace into a "
        "graph, got this while tracing it: AttributeError: 'SymbolicTensor' object has no attribute 'numpy'. Use "
        "TensorFlow operations in grad_fn."
    )
    assert found["<lambda>"].inputs_with_gradients == 0


def test_the_order_of_magnitude_of_a_rule_is_that_of_its_operations(tmp_path):
    def with_rule_of(number):
        def grad_fn(dy):
            for _ in range(number):
                dy = tf.sin(dy)
            return tf.function(lambda dy: tf.cos(tf.cos(dy)))(dy)

        module = tf.Module()
        function = cg.custom_gradient(lambda x: (x * 1.0, grad_fn))
        module.f = tf.function(function, input_signature=[tf.TensorSpec([])])
        tf.saved_model.save(module, tmp_path / str(number))
        (gradient,) = cg.saved_model.inspect(tmp_path / str(number))
        return gradient.rule_ops

    assert with_rule_of(7) - with_rule_of(2) == 5
    assert with_rule_of(1) >= 1 + 2  # Only functions that are called count.


def test_a_graph_of_tensorflow_1_has_no_function_there(tmp_path):
    save_with_tensorflow_1(tmp_path / "model")
    rule, embedded = cg.saved_model.inspect(tmp_path / "model")
    assert (rule.function, rule.kind, rule.shapes) == ("", "custom_gradient", ((None, 3),))
    assert (embedded.function, embedded.kind, embedded.shapes) == ("", "embed_gradient", ((None, 3),))


def test_a_gradient_that_a_graph_of_tensorflow_1_overrides_is_none_of_tf_custom_gradient(tmp_path):
    tf.RegisterGradient("of_test_inspect")(lambda op, dy: 2.0 * dy)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [3])
        with graph.gradient_override_map({"Relu": "of_test_inspect"}):
            y = tf.nn.relu(x)
        tf.compat.v1.saved_model.simple_save(session, str(tmp_path / "model"), {"x": x}, {"y": y})
    assert cg.saved_model.inspect(tmp_path / "model") == []


def test_a_model_without_embedded_gradients_gives_an_empty_list(tmp_path):
    tf.saved_model.save(tf.Module(), tmp_path / "model")
    assert cg.saved_model.inspect(tmp_path / "model") == []


def test_the_stripped_model_has_none(tmp_path):
    tf.saved_model.save(Model(), tmp_path / "model")
    cg.saved_model.strip(tmp_path / "model", tmp_path / "stripped")
    assert cg.saved_model.inspect(tmp_path / "stripped") == []


def test_nothing_of_the_model_is_run(tmp_path):
    """Its initialisation would fail: the variables are gone."""
    tf.saved_model.save(Model(), tmp_path / "model")
    for file in (tmp_path / "model" / "variables").iterdir():
        file.unlink()
    assert len(cg.saved_model.inspect(tmp_path / "model")) == 4


OTHER_OPS = """
import sys
import tensorflow as tf
import tf_cg_ops as cg
from tensorflow.core.protobuf import saved_model_pb2
import pathlib
file = pathlib.Path(sys.argv[1]) / "saved_model.pb"
proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
for function in proto.meta_graphs[0].graph_def.library.function:
    for node in function.node_def:
        if node.op == "Sign":
            node.op = "OpOfSomebodyElse"
file.write_bytes(proto.SerializeToString())
try:
    cg.saved_model.inspect(sys.argv[1])
except ValueError as error:
    print(error)
"""


def test_ops_of_other_libraries_have_to_be_registered(tmp_path):
    tf.saved_model.save(Model(), tmp_path / "model")
    text = run_python(OTHER_OPS, tmp_path / "model", cwd=tmp_path).stdout
    assert text.startswith(
        f"saved_model.inspect: TensorFlow cannot build the graphs in '{tmp_path / 'model'}': Op type not "
        "registered 'OpOfSomebodyElse'"
    )
    assert text.endswith(
        ". First import the packages that register missing ops; if the file was changed, save or copy the model again.\n"
    )


@pytest.mark.parametrize("path", ["missing", "file", "empty", "cut off"])
def test_a_path_without_a_saved_model_is_an_error(tmp_path, path):
    place = tmp_path / path
    if path == "file":
        place.write_text("text")
    elif path == "empty":
        place.mkdir()
    elif path == "cut off":
        tf.saved_model.save(Model(), place)
        file = place / "saved_model.pb"
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    expected = {
        "missing": f"there is no SavedModel at '{place}'; expected a folder with saved_model.pb, got nothing there",
        "file": f"there is no SavedModel at '{place}'; expected a folder with saved_model.pb, got a file",
        "empty": f"there is no SavedModel at '{place}'; expected a folder with saved_model.pb, got a folder without",
        "cut off": f"'{place / 'saved_model.pb'}' cannot be read; expected a SavedModel with its graphs, got Error parsing",
    }[path]
    with pytest.raises((OSError, ValueError)) as caught:
        cg.saved_model.inspect(place)
    assert str(caught.value).startswith(f"saved_model.inspect: {expected}")
    assert "\n" not in str(caught.value)
