"""strip: the copy computes the same without the library, and contains nothing for gradients."""

import json
import pathlib
import sys
import sysconfig

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import FOR_KERAS_ALONE, run_interpreter
from ..support.saved_models import (
    assert_same,
    bodies_of,
    contents,
    ops_of,
    proto_of,
    save_and_strip,
    strip,
)
from ..support.without_python import CASES, FAILURES, MODULE

# Everything that can be saved and has a value. If gradients fail without Python, only some of the values.
VALUES = CASES | {name: FAILURES[name][0] for name in ("untraceable", "while_loop", "embed_in_while_loop", "cond")}

ROW = tf.constant([[1.0, -1.0]])


def f64(value):
    return tf.constant(value, tf.float64)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """A model with all cases: its folder, the values before stripping, and the verdicts."""
    folder = tmp_path_factory.mktemp("values")
    module, functions = tf.Module(), {name: case.save() for name, case in VALUES.items()}
    module.w, module.others = MODULE.w, MODULE.others
    report = save_and_strip(module, folder, signatures=functions)
    before = {name: functions[name](*map(f64, case.inputs())) for name, case in VALUES.items()}
    before = {name: {n: t.numpy().tolist() for n, t in outputs.items()} for name, outputs in before.items()}
    return folder, before, {c.name: c.verdict for c in report.comparisons}


class Training(tf.Module):
    """A saved training step, which computes gradients in the graph, with axis, lists, broadcasting and recomputation."""

    def __init__(self, dtype=tf.float32):
        super().__init__()
        self.dtype = dtype
        self.w = tf.Variable(tf.cast([[0.5, -1.0], [2.0, 0.25], [1.5, 3.0]], dtype))
        self.b = tf.Variable(tf.cast(0.5, dtype))

    def loss(self, x):
        h = cg.embed_gradient(tf.sign(x @ self.w), tf.exp(-tf.abs(x @ self.w)), x @ self.w)
        h = cg.recompute_grad(lambda t: tf.sin(t) * t)(h + self.b)
        summed = cg.embed_gradient(tf.reduce_sum(h, 1), 3.0 * h, h, axis=-1)
        both = cg.embed_gradient(summed, [summed, 2.0 * summed], [self.b, summed])
        return tf.reduce_sum(both * tf.cast(tf.range(1, tf.shape(x)[0] + 1), self.dtype))

    @tf.function
    def step(self, x):
        with tf.GradientTape() as tape:
            loss = self.loss(x)
        variables = [self.w, self.b]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(tf.cast(0.01, self.dtype) * gradient)
        return loss


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """A training step in double precision: the module, its folder and the report."""
    folder = tmp_path_factory.mktemp("training")
    module = Training(tf.float64)
    module.step.get_concrete_function(tf.TensorSpec([None, 3], tf.float64))
    return module, folder, save_and_strip(module, folder)


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

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def plain(self, x):
        return self.spike(x)

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def looped(self, x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, self.spike(y) + x), (0, x))[1]

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
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
def reading(tmp_path_factory):
    """The same for a model whose gradients read variables."""
    folder = tmp_path_factory.mktemp("reading")
    module = ReadingForGradients()
    return module, folder, save_and_strip(module, folder, signatures=module.looped)


@pytest.fixture(scope="module")
def without_library(values, training, reading, tmp_path_factory):
    """What a process prints that has all installed packages except this library, and the training input."""
    folder = tmp_path_factory.mktemp("site")
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for package in pathlib.Path(site).iterdir():
            if not package.name.startswith(("tf_cg_ops", "__editable__", *FOR_KERAS_ALONE)):
                (folder / package.name).symlink_to(package)
    x = np.random.default_rng(20240229).normal(size=[4, 3])
    inputs = {name: [x.tolist() for x in case.inputs()] for name, case in VALUES.items()}
    file = values[0] / "inputs.json"
    file.write_text(json.dumps([inputs, x.tolist()]))
    targets = [place / "target" for place in (values[0], training[1], reading[1])]
    # TensorFlow 2.18 imports distutils, and without site-packages that is Python's own.
    options = ["-I", "-S", "-W", "error", "-W", "ignore:The distutils package is deprecated:DeprecationWarning"]
    program = pathlib.Path(__file__).with_name("programs") / "without_library.py"
    result = run_interpreter([sys.executable, *options, program, folder, *targets, file], folder)
    return *json.loads(result.stdout.splitlines()[-1]), x


@pytest.mark.mode_table(feature="strip", mode="op_free")
@pytest.mark.mode_table(feature="embed_gradient", mode="op_free")
@pytest.mark.mode_table(feature="custom_gradient", mode="op_free")
@pytest.mark.mode_table(feature="custom_vjp", mode="op_free")
@pytest.mark.mode_table(feature="custom_jvp", mode="op_free")
@pytest.mark.mode_table(feature="recompute_grad", mode="op_free")
@pytest.mark.mode_table(feature="grad_pass_through", mode="op_free")
@pytest.mark.parametrize("name", VALUES)
def test_values_are_the_same_bits_where_the_library_is_not_installed(values, without_library, name):
    _, before, verdicts = values
    after = without_library[0][name]
    assert after == before[name]
    assert verdicts[name] == "equal, bit for bit"
    for i, expected in enumerate(CASES[name].by_hand()[: len(after)] if name in CASES else ()):
        np.testing.assert_allclose(after[f"y{i}"], expected, rtol=1e-12, atol=1e-12)


def test_a_saved_training_step_trains_equally_without_the_library(training, without_library):
    _, (losses, w, b), _, x = without_library
    module, _, report = training
    assert report.replaced["CustomGradientEmbedGrad"] >= 4
    # Of what is recomputed: the value that it reads, the upstream gradient, the gradient, and the start and the end.
    assert report.replaced["CustomGradientBarrier"] == 5
    (comparison,) = report.comparisons
    assert comparison.name == ".step"
    assert comparison.verdict.startswith("equal")
    expected = [float(module.step(tf.constant(x))) for _ in range(20)]
    for found, by_source in ((losses, expected), (w, module.w), (b, module.b)):
        np.testing.assert_allclose(found, by_source, rtol=1e-9)
    assert len(set(losses)) == 20


def test_a_recomputation_still_waits_for_the_upstream_gradient(training):
    nodes = [node for body in bodies_of(training[1] / "target").values() for node in body]
    waiting = [node for node in nodes if "CustomGradientBarrier" in node.name]
    assert waiting
    for node in waiting:
        assert node.op == "Identity"
        assert [name.startswith("^") for name in node.input][:2] == [False, True]


def test_a_stripped_model_can_be_stripped_and_saved_again(training, tmp_path):
    target = training[1] / "target"
    report = strip(target, tmp_path / "again")
    assert (report.replaced, report.nodes_dropped, report.functions_dropped) == ({}, 0, 0)
    assert report.comparisons == []
    assert contents(tmp_path / "again") == contents(target)
    tf.saved_model.save(tf.saved_model.load(target), tmp_path / "saved")
    assert not [op for op in ops_of(tmp_path / "saved") if op.startswith("CustomGradient")]
    loaded = [tf.saved_model.load(path) for path in (tmp_path / "saved", target)]  # Functions need their variables.
    x = tf.constant([[1.0, 2.0, -1.0]], tf.float64)
    assert_same(loaded[0].step(x), loaded[1].step(x))


@pytest.mark.parametrize(
    ("dtype", "jit"),
    [(tf.float16, False), (tf.bfloat16, True)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_training_step_in_every_precision_and_under_xla(tmp_path, dtype, jit):
    module = Training(dtype)
    module.step = tf.function(Training.step.python_function.__get__(module), jit_compile=jit)
    module.step.get_concrete_function(tf.TensorSpec([None, 3], dtype))
    report = save_and_strip(module, tmp_path)
    assert [c.verdict.startswith("equal") for c in report.comparisons] == [True]


@pytest.mark.mode_table(feature="strip", mode="while_loop")
@pytest.mark.mode_table(feature="strip", mode="cond")
@pytest.mark.mode_table(feature="strip", mode="nested_functions")
def test_a_training_step_through_a_loop_a_conditional_and_a_call(tmp_path):
    """The gradients are then in functions of their own, which get what they need from the forward pass."""
    module = Training()

    def step(x):
        def body(i, y):
            y = cg.embed_gradient(tf.sin(y), tf.sign(y) * module.b, y, fx_gx_manually_stopped=True)
            return i + 1, tf.cond(module.b > 0.0, lambda: cg.recompute_grad(tf.sin)(y) * module.w[0, 0], lambda: y)

        with tf.GradientTape() as tape:
            called = tf.function(lambda x: tf.sin(cg.embed_gradient(tf.sign(x), x, x * module.b)))
            loss = tf.reduce_sum(tf.while_loop(lambda i, _: i < 3, body, (0, x))[1] * x) + tf.reduce_sum(called(x))
        variables = [module.w, module.b]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    module.step = tf.function(step, input_signature=[tf.TensorSpec([None, 3])])
    report = save_and_strip(module, tmp_path)
    assert report.replaced["CustomGradientEmbedGrad"] >= 3
    loaded = tf.saved_model.load(tmp_path / "target")
    x = tf.constant([[0.5, -1.0, 2.0], [3.0, -0.25, 1.0]])
    for _ in range(2):
        np.testing.assert_allclose(loaded.step(x), module.step(x), rtol=1e-5)
    np.testing.assert_allclose(loaded.w, module.w, rtol=1e-5)
    np.testing.assert_allclose(loaded.b, module.b, rtol=1e-5)
    assert not np.allclose(module.b, 0.5)


def reading_nodes(path, function):
    bodies = bodies_of(path)
    (name,) = [name for name in bodies if name.startswith(f"__inference_{function}_")]
    return [node for node in bodies[name] if node.op == "ReadVariableOp"]


def test_nodes_that_only_gradients_read_are_dropped(reading):
    module, folder, report = reading
    source, target = folder / "source", folder / "target"
    assert len(reading_nodes(source, "plain")) > 1
    assert len(reading_nodes(target, "plain")) == 1
    assert ("Exp" in ops_of(source), "Exp" in ops_of(target)) == (True, False)
    assert not [name for name in bodies_of(target) if "rule" in name]
    assert min(report.nodes_dropped, report.functions_dropped) > 0
    loaded = tf.saved_model.load(target)
    for name in ("plain", "looped", "written"):
        assert_same(getattr(loaded, name)(ROW), getattr(module, name)(ROW))


def test_a_stripped_loop_can_be_frozen(reading, without_library):
    assert without_library[2] == reading[0].looped(ROW).numpy().tolist()


def nodes_of_written(proto):
    library = proto.meta_graphs[0].graph_def.library
    (function,) = [f for f in library.function if f.signature.name.startswith("__inference_written_")]
    return function.node_def


def test_order_of_writes_stays_where_a_read_between_them_is_dropped(tmp_path):
    """Here the second write only waits for the read, and the read waits for the first write."""
    tf.saved_model.save(ReadingForGradients(), tmp_path / "source")
    proto = proto_of(tmp_path / "source")
    first, second = [node for node in nodes_of_written(proto) if node.op == "AssignVariableOp"]
    (read,) = [node for node in nodes_of_written(proto) if node.op == "ReadVariableOp"]
    assert "^" + first.name in read.input
    assert "^" + read.name in second.input
    second.input.remove("^" + first.name)
    (tmp_path / "source" / "saved_model.pb").write_bytes(proto.SerializeToString())

    strip(tmp_path / "source", tmp_path / "target")
    nodes = {node.name: node for node in nodes_of_written(proto_of(tmp_path / "target"))}
    assert read.name not in nodes
    assert "^" + first.name in nodes[second.name].input
    loaded = tf.saved_model.load(tmp_path / "target")
    loaded.written(tf.ones([1, 2]))
    assert float(loaded.frozen) == 3.0
