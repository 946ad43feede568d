"""Names of operations in the files that are written: TensorFlow crashes if two are equal after it has inlined calls."""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _replace_ops

from ..support import c_program
from ..support.processes import run_python
from ..support.saved_models import proto_of
from ..support.tensors import pairs

X, DY = np.float32([0.7, -0.2, 1.4]), np.float32([1.0, 10.0, 100.0])
# In a process of its own, because it might crash.
PROGRAM = """
import json, sys
import numpy as np, tensorflow as tf, tf_cg_ops as cg

FUNCTIONS = {
    "scale_gradient": lambda x: cg.scale_gradient(x, 2.0),
    "embed_gradient": lambda x: cg.embed_gradient(x, 1.0, x),
    "straight_through": cg.straight_through(tf.identity, "hard_tanh"),
}
branch = lambda f: lambda x: tf.cond(x[0] > 0.0, lambda: f(x), lambda: tf.sin(x))
loop = lambda f: lambda x: tf.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, f(x)), (0, x))[1]
AROUND = {
    "branch": branch,
    "loop": loop,
    "scan": lambda f: lambda x: cg.scan(lambda x, _: (f(x), None), x, length=1)[0],
    "called": lambda f: tf.function(f, autograph=False),
    "compiled": lambda f: tf.function(f, autograph=False, jit_compile=True),
    "nested": lambda f: branch(loop(tf.function(branch(f), autograph=False))),
}
cases, x, dy = map(json.loads, sys.argv[1:])
found = {}
for place, name in cases:
    body = AROUND[place](FUNCTIONS[name])
    module = tf.Module()
    spec = tf.TensorSpec([3], name="x")
    module.f = tf.function(lambda x: {"y": body(x)}, input_signature=[spec], autograph=False)
    tf.saved_model.save(module, f"{place}_model", signatures=module.f)
    cg.saved_model.add_gradients(f"{place}_model", f"{place}_gradients", of="y", wrt="x")
    for check in (True, False):
        target = f"{place}_check_{check}"
        cg.saved_model.strip(f"{place}_gradients", target, check=check)
        call = tf.saved_model.load(target).signatures["gradients"]
        found[target] = call(x=tf.constant(x), d_y=tf.constant(dy))["d_x"].numpy().tolist()
print(json.dumps(found))
"""
FACTORS = {"scale_gradient": 2.0, "embed_gradient": 1.0, "straight_through": np.float32([1, 1, 0])}
CASES = list(zip(["branch", "loop", "scan", "called", "compiled", "nested"], itertools.cycle(FACTORS), strict=False))


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    """The folder of stripped models, and the gradients that Python computes."""
    folder = tmp_path_factory.mktemp("stripped")
    arguments = [json.dumps(each) for each in (CASES, X.tolist(), DY.tolist())]
    return folder, json.loads(run_python(PROGRAM, *arguments, cwd=folder).stdout.splitlines()[-1])


@pytest.mark.parametrize(("place", "name"), CASES)
def test_a_stripped_gradient_runs(name, place, stripped):
    """With and without the check of its values, in Python and in C."""
    folder, found = stripped
    in_c = c_program.run_signature(folder / f"{place}_check_False", "gradients", {"x": X, "d_y": DY})
    for dx in (found[f"{place}_check_True"], found[f"{place}_check_False"], in_c["d_x"]):
        np.testing.assert_allclose(dx, FACTORS[name] * DY, rtol=1e-6)


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
