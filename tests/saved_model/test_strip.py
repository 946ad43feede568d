"""strip drops what only gradients need. That the copy computes the same is in test_strip_gradients."""

import pathlib
import shutil

import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.saved_models import assert_same, bodies_of, contents, ops_of, proto_of, save_and_strip, strip

SPEC = [tf.TensorSpec([None, 2])]


class ReadingForGradients(tf.Module):
    """The value reads `seen`. Only the gradient reads `unseen`, once outside of grad_fn and once inside."""

    def __init__(self):
        super().__init__()
        self.seen, self.unseen = tf.Variable([2.0, 3.0]), tf.Variable([5.0, 7.0])
        self.frozen = tf.Variable(1.0, trainable=False)

    def spike(self, x):
        @cg.custom_gradient
        def spike(x):
            factor = tf.exp(self.unseen + 1.0)
            return tf.sign(x) * tf.stop_gradient(self.seen), lambda dy, variables: (
                dy * factor * self.unseen,
                [None for _ in variables],
            )

        return spike(x)

    @tf.function(input_signature=SPEC)
    def plain(self, x):
        return self.spike(x)

    @tf.function(input_signature=SPEC)
    def looped(self, x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, self.spike(y) + x), (0, x))[1]

    @tf.function(input_signature=SPEC)
    def written(self, x):
        """A read for the gradient is between two writes, which keep their order."""

        @cg.custom_gradient
        def spike(x):
            factor = tf.exp(self.frozen)
            return tf.sign(x), lambda dy: dy * factor

        self.frozen.assign(2.0)
        y = spike(x)
        self.frozen.assign(3.0)
        return y


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    """The module, the folder of the model, and the report."""
    folder = tmp_path_factory.mktemp("reading")
    module = ReadingForGradients()
    return module, folder, save_and_strip(module, folder, signatures=module.looped)


# In a process of its own, because it removes functions from TensorFlow.
FREEZE = """
import sys
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
model = tf.saved_model.load(sys.argv[1])
frozen = convert_variables_to_constants_v2(model.signatures["serving_default"])
assert not frozen.variables
print(frozen(tf.constant([[1.0, -1.0]]))[0].numpy().tolist())
"""


def test_a_stripped_loop_can_be_frozen(stripped):
    module, folder, _ = stripped
    found = run_python(FREEZE, folder / "target", cwd=folder).stdout
    assert found.splitlines()[-1] == str(module.looped(tf.constant([[1.0, -1.0]])).numpy().tolist())


def test_a_stripped_model_can_be_stripped_and_saved_again(stripped, tmp_path):
    module, folder, _ = stripped
    report = strip(folder / "target", tmp_path / "again")
    assert (report.replaced, report.nodes_dropped, report.functions_dropped) == ({}, 0, 0)
    assert report.comparisons == []
    assert contents(tmp_path / "again") == contents(folder / "target")
    tf.saved_model.save(tf.saved_model.load(folder / "target"), tmp_path / "saved")
    assert not [op for op in ops_of(tmp_path / "saved") if op.startswith("CustomGradient")]
    loaded, x = tf.saved_model.load(tmp_path / "saved"), tf.constant([[1.0, -1.0]])
    assert_same(loaded.looped(x), module.looped(x))


def nodes_of(path, function):
    """The nodes of a function of the module."""
    (nodes,) = [nodes for name, nodes in bodies_of(path).items() if name.startswith(f"__inference_{function}_")]
    return nodes


def test_nodes_that_only_gradients_read_are_dropped(stripped):
    _, folder, report = stripped
    ops, left = ([node.op for node in nodes_of(folder / name, "plain")] for name in ("source", "target"))
    assert ops.count("ReadVariableOp") > left.count("ReadVariableOp") == 1
    assert ("Exp" in ops, "Exp" in left) == (True, False)
    assert not [name for name in bodies_of(folder / "target") if "rule" in name]
    assert min(report.nodes_dropped, report.functions_dropped) > 0
    verdicts = {each.name: each.verdict for each in report.comparisons}
    for name in ("plain", "looped", "written"):
        assert verdicts[f".{name}"] == "equal, bit for bit"


def test_order_of_writes_stays_where_a_read_between_them_is_dropped(stripped, tmp_path):
    """Here the second write only waits for the read, and the read waits for the first write."""
    source = pathlib.Path(shutil.copytree(stripped[1] / "source", tmp_path / "source"))
    proto = proto_of(source)
    library = proto.meta_graphs[0].graph_def.library
    (function,) = [f for f in library.function if f.signature.name.startswith("__inference_written_")]
    first, second = [node for node in function.node_def if node.op == "AssignVariableOp"]
    (read,) = [node for node in function.node_def if node.op == "ReadVariableOp"]
    assert "^" + first.name in read.input
    assert "^" + read.name in second.input
    second.input.remove("^" + first.name)
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())

    strip(source, tmp_path / "target", check=False)
    nodes = {node.name: node for node in nodes_of(tmp_path / "target", "written")}
    assert read.name not in nodes
    assert "^" + first.name in nodes[second.name].input
    loaded = tf.saved_model.load(tmp_path / "target")
    loaded.written(tf.ones([1, 2]))
    assert float(loaded.frozen) == 3.0
