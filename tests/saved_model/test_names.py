"""Names of operations in the files that are written: TensorFlow crashes if two are equal after it has inlined calls.

The written files are run in test_strip_gradients.
"""

import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _replace_ops

from ..support.saved_models import proto_of
from ..support.tensors import pairs


@pytest.fixture
def model(tmp_path):
    """The folder of a model with a function that calls a function that calls another one."""
    inner = tf.function(lambda x: cg.scale_gradient(x, 2.0) + tf.sin(x), autograph=False)
    middle = tf.function(lambda x: tf.cos(inner(x)), autograph=False)
    module = tf.Module()
    module.f = tf.function(lambda x: {"y": middle(x) + 1.0}, input_signature=[tf.TensorSpec([3], name="x")])
    tf.saved_model.save(module, tmp_path / "model", signatures=module.f)
    return tmp_path / "model"


def rename(model, name_of_new):
    """Names a constant of the function f, with a name that depends on the names there."""
    proto = proto_of(model)
    library = {each.signature.name: each for each in proto.meta_graphs[0].graph_def.library.function}
    f = next(
        each for each in library.values() if [node.op for node in each.node_def].count("Const") == 1 and _call(each)
    )
    callee = library[_call(f).attr["f"].func.name]
    inner = library[_call(callee).attr["f"].func.name]
    constant = next(node for node in f.node_def if node.op == "Const")
    old, constant.name = f"{constant.name}:output:0", name_of_new(f, callee, inner)
    for node in f.node_def:
        node.input[:] = [f"{constant.name}:output:0" if each == old else each for each in node.input]
    (model / "saved_model.pb").write_bytes(proto.SerializeToString())
    return constant.name


def _call(function):
    return next((node for node in function.node_def if node.op == "PartitionedCall"), None)


def _sin(function):
    return next(node.name for node in function.node_def if node.op == "Sin")


CLASHES = {
    "another node": lambda f, callee, inner: _call(f).name,
    "an argument": lambda f, callee, inner: f.signature.input_arg[0].name,
    "in a called function": lambda f, callee, inner: f"{_call(f).name}/{_call(callee).name}",
    "in a nested function": lambda f, callee, inner: f"{_call(f).name}/{_call(callee).name}/{_sin(inner)}",
}
WRITERS = {
    "strip": cg.saved_model.strip,
    "override": lambda *paths: cg.saved_model.override(*paths, {"Sin": cg.rules.pass_through}),
    "adopt": cg.saved_model.adopt,
    "add_gradients": lambda *paths: cg.saved_model.add_gradients(*paths, of="y", wrt="x"),
    "lite": lambda *paths: cg.saved_model.add_gradients(*paths, of="y", wrt="x", lite=True),
}


@pytest.mark.parametrize(("writer", "clash"), pairs(WRITERS, CLASHES))
def test_a_file_with_equal_names_is_refused(model, clash, writer):
    name = rename(model, CLASHES[clash])
    with pytest.raises(ValueError, match=f"two operations with the name '{name}' in function '.*f.*'"):
        WRITERS[writer](model, model.with_name("new"))
    assert not model.with_name("new").exists()


def test_nodes_beside_an_inlined_call_may_have_names_under_it(model):
    rename(model, lambda f, *_: f"{_call(f).name}/beside")
    assert cg.saved_model.strip(model, model.with_name("new")).comparisons[0].verdict == "equal, bit for bit"


@pytest.mark.parametrize("check", [True, False])
def test_the_written_names_are_checked(model, check, monkeypatch):
    """Here with a replacement that names its nodes as before the check."""
    cg.saved_model.add_gradients(model, model.with_name("gradients"), of="y", wrt="x")
    monkeypatch.setattr(_replace_ops, "change_references", lambda *_: None)
    define = _replace_ops.OpReplacer._define_function

    def equal_names(self, *arguments):
        name = define(self, *arguments)
        for node in self.functions[name].node_def:
            node.name = "Const"
        return name

    monkeypatch.setattr(_replace_ops.OpReplacer, "_define_function", equal_names)
    with pytest.raises(RuntimeError, match="the new model must be one that TensorFlow can run, got two operations"):
        cg.saved_model.strip(model.with_name("gradients"), model.with_name("new"), check=check)
    assert not model.with_name("new").exists()
