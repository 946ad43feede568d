"""Strips SavedModels, and reads and runs them."""

import pathlib
import pickle
import sys
import sysconfig
import warnings

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _replace_ops

from .processes import FOR_KERAS_ALONE, run_interpreter, run_python
from .sources import ROOT


class Model(tf.Module):
    """A function with two ops of the library, and a variable."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable([2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def f(self, x):
        h = cg.custom_gradient(lambda x: (tf.sign(x) * 2.0, lambda dy: dy))(x)
        return {"y": cg.embed_gradient(h, x, x) + self.w}


def save_graph(path, make, spec):
    """Saves what `make` computes from a placeholder, by name, in a graph of TensorFlow 1."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = tf.compat.v1.placeholder(spec.dtype, spec.shape, name="x")
        outputs = make(x)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.saved_model.simple_save(session, str(path), {"x": x}, outputs)


def proto_of(path):
    return saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())


def bodies_of(path):
    """The nodes of every graph and of every function, by name; the graph's name is empty."""
    bodies = {}
    for meta_graph in proto_of(path).meta_graphs:
        bodies[""] = list(meta_graph.graph_def.node)
        bodies |= {
            function.signature.name: list(function.node_def) for function in meta_graph.graph_def.library.function
        }
    return bodies


def ops_of(path):
    return {node.op for nodes in bodies_of(path).values() for node in nodes}


def save_and_strip(module, folder, signatures=None, **keywords):
    """Saves a module, strips it, and checks what must hold for every stripped model."""
    source, target = folder / "source", folder / "target"
    tf.saved_model.save(module, source, signatures=signatures)
    return strip(source, target, **keywords)


def strip(source, target, **keywords):
    before = contents(source)
    report = cg.saved_model.strip(source, target, **keywords)
    assert contents(source) == before
    assert_is_stripped(source, target)
    return report


def assert_is_stripped(source, target):
    assert not [op for op in ops_of(target) if op.startswith("CustomGradient")]
    assert_objects_stay(source, target)
    for meta_graph in proto_of(target).meta_graphs:
        listed = {op.name for op in meta_graph.meta_info_def.stripped_op_list.op}
        assert listed == {op for op in ops_of(target) if tf.raw_ops.__dict__.get(op)}
    others = [f for f in contents(source) if f.rpartition("/")[2] not in ("saved_model.pb", "fingerprint.pb")]
    for file in others:
        assert contents(source)[file] == contents(target)[file]
    assert contents(source).keys() == contents(target).keys()


def assert_objects_stay(source, target):
    for old, new in zip(proto_of(source).meta_graphs, proto_of(target).meta_graphs, strict=True):
        assert new.signature_def == old.signature_def
        assert new.object_graph_def == old.object_graph_def


def contents(folder):
    """The bytes of every file, by path; folders have None."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def assert_same(actual, expected):
    """The same values, bit for bit, in the same structure."""
    tf.nest.assert_same_structure(actual, expected, expand_composites=True)
    flat = [tf.nest.flatten(value, expand_composites=True) for value in (actual, expected)]
    for a, e in zip(*flat, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(e))


def in_a_loop(function, times=3):
    def run(x):
        body = lambda i, x: (i + 1, function(x))  # noqa: E731
        return tf.while_loop(lambda i, x: i < times, body, (0, x), maximum_iterations=times)[1]

    return run


def gradient(function, x, dy):
    """The gradient of a function of one tensor for an upstream, as a Tensor."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tf.convert_to_tensor(tape.gradient(y, x, output_gradients=tf.constant(dy)))


def call_signatures(calls, folder, installed=True):
    """The outputs of calls, each a model, a signature and its inputs, from a process where this library may not be."""
    (folder / "calls").write_bytes(pickle.dumps(calls))
    program = ROOT / "tests" / "saved_model" / "programs" / "signatures.py"
    if installed:
        run_python(program.read_text(), folder / "calls", folder / "outputs", cwd=folder)
    else:
        arguments = [folder / "calls", folder / "outputs", other_packages(folder / "site")]
        run_interpreter([sys.executable, "-I", "-S", "-W", "error", program, *arguments], folder)
    return pickle.loads((folder / "outputs").read_bytes())


def other_packages(folder):
    """A folder with links to all installed packages except this library."""
    folder.mkdir()
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for package in pathlib.Path(site).iterdir():
            if not package.name.startswith(("tf_cg_ops", "__editable__", *FOR_KERAS_ALONE)):
                (folder / package.name).symlink_to(package)
    return folder


def gradient_in_a_fresh_process(path, name, x, dy):
    """The gradient of a function of a SavedModel, or the text of the error."""
    (path.parent / "tasks").write_bytes(pickle.dumps({name: ([x], dy)}))
    code = (ROOT / "tests" / "support" / "reload.py").read_text()
    run_python(code, path, path.parent / "tasks", path.parent / "results", cwd=path.parent)
    found = pickle.loads((path.parent / "results").read_bytes())[name]
    return found if isinstance(found, str) else found[1][0]


def gradients_in_every_form(folder, xla, x, dy):
    """The gradients of each function of a SavedModel: loaded, compiled by XLA, and saved and loaded again."""
    loaded = tf.saved_model.load(folder)
    names = [name for name in vars(loaded) if name.startswith("f_")]
    found = {name: [gradient(getattr(loaded, name), x, dy)] for name in names}
    compute = lambda x: {name: gradient(getattr(loaded, name), x, dy) for name in names if name in xla}  # noqa: E731
    for name, dx in tf.function(compute, jit_compile=True)(tf.constant(x)).items():
        found[name].append(dx)
    tf.saved_model.save(loaded, folder.with_name("again"))
    again = tf.saved_model.load(folder.with_name("again"))
    for name in names:
        found[name].append(gradient(getattr(again, name), x, dy))
    return found


def break_values(monkeypatch):
    """A rewriting that forwards x instead of fx."""
    replace = _replace_ops.OpReplacer._replace

    def wrong(self, node):
        if node.op == "CustomGradientEmbed":
            node.input[0], node.input[2] = node.input[2], node.input[0]
        return replace(self, node)

    monkeypatch.setattr(_replace_ops.OpReplacer, "_replace", wrong)
