"""add_gradients: a signature of the copy computes the tape's gradients, and all that was there before stays."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.saved_models import contents, in_a_loop, proto_of
from ..support.sources import ROOT

SPEC = tf.TensorSpec([None, 3], tf.float64, name="x")
RNG = np.random.default_rng(5)
UNKNOWN = 6  # A size that the model does not know.
X = RNG.normal(size=[4, 3])


class Case:
    """A model, its function, its variables, inputs, and what to differentiate with respect to."""

    def __init__(self, module, function, variables, inputs, wrt):
        self.module, self.function, self.variables, self.inputs, self.wrt = module, function, variables, inputs, wrt

    def save(self, folder):
        if isinstance(self.module, keras.Model):
            self.module.export(folder, verbose=False)
        else:
            tf.saved_model.save(self.module, folder, signatures=self.function)


def keras_case(x, *layers, wrt=("x", "variables")):
    keras.utils.set_random_seed(1)
    shape = [None if n == UNKNOWN else n for n in x.shape[1:]]
    inputs = y = keras.Input(shape, dtype=x.dtype.name, name="x")
    for layer in layers:
        y = layer(y)
    model = keras.Model(inputs, y)
    variables = [variable.value for variable in model.trainable_variables]
    return Case(model, lambda x: {"output_0": model(x)}, variables, {"x": x}, list(wrt))


def attend(x):
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 4)(x, x))
    return x + keras.layers.Dense(8)(keras.layers.Dense(16, activation="gelu")(x))


def module_case(function, spec=SPEC, x=X, wrt=("x", "variables"), variables=True):
    """A module with a function of x, and perhaps of a variable."""
    module = tf.Module()
    module.w = tf.Variable([2.0, 3.0, -1.0], name="w", dtype=tf.float64)
    arguments = [module.w] if variables else []

    @tf.function(input_signature=[spec], autograph=False)
    def f(x):
        return {"y": function(x, *arguments)}

    return Case(module, f, [module.w] if "variables" in wrt else [], {"x": x}, list(wrt))


@tf.custom_gradient
def steep(x):
    return tf.sin(x), lambda dy: 7.0 * dy


@cg.custom_gradient
def steeper(x):
    return tf.sin(x), lambda dy: 5.0 * dy * x


def spiral(x, w):
    return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.sin(x * w)), (0, x), maximum_iterations=3)[1]


def unbounded(x, w):
    return tf.while_loop(lambda x: tf.reduce_sum(x**2) > 0.1, lambda x: (0.1 * x * w,), (x,))[0]


def scanned(x, w):
    return cg.scan(lambda carry, x: (carry * w + x, tf.sin(carry)), tf.zeros_like(x[0]), x)[1]


def root(x, w):
    return cg.implicit_root(lambda y, x: y * w - tf.sin(x), lambda x: tf.sin(x) / w)(x)


def lookup():
    """A table and a constant that is too large for the graph, besides a variable."""
    keys = tf.constant(["a", "b"])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([0, 2])), 1)
    large = tf.constant(RNG.normal(size=[3, 100]))
    word = tf.TensorSpec([None], tf.string, name="x")
    case = module_case(
        lambda x, w: tf.gather(w, table.lookup(x))[:, None] * tf.gather(large, table.lookup(x)),
        word,
        np.array(["b", "a", "?", "b"]),
        ["variables"],
    )
    case.module.table, case.module.large = table, large
    return case


def shared():
    """A variable with two names, a frozen one, and one that y does not depend on; sizes are unknown."""
    module = tf.Module()
    module.w = module.again = tf.Variable(X[0], name="a/w")
    module.frozen = tf.Variable(X[1], trainable=False)
    module.unused = tf.Variable(1.0)

    @tf.function(input_signature=[SPEC, tf.TensorSpec(None, tf.float64, name="z")])
    def f(x, z):
        return {
            "y": tf.tanh(x * module.w) * module.again * module.frozen * z,
            "other": x + tf.cast(module.unused, x.dtype),
        }

    return Case(module, f, [module.w], {"x": X, "z": X[:, :1]}, ["x", "z", "variables"])


def complex_case():
    spec = tf.TensorSpec([None, 3], tf.complex128, name="x")
    return module_case(lambda x: x**2 * tf.math.conj(x), spec, X + 1j * X[::-1], ["x"], variables=False)


MODELS = {
    "cnn": lambda: keras_case(
        RNG.normal(size=[4, 8, 8, 1]).astype(np.float32),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(5),
    ),
    "lstm": lambda: keras_case(
        RNG.normal(size=[4, UNKNOWN, 3]).astype(np.float32), keras.layers.LSTM(4), keras.layers.Dense(2)
    ),
    "transformer": lambda: keras_case(
        RNG.integers(0, 20, [4, UNKNOWN]).astype(np.int32),
        keras.layers.Embedding(20, 8),
        attend,
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(3),
        wrt=["variables"],
    ),
    "loop": lambda: module_case(spiral),
    "unbounded_loop": lambda: module_case(unbounded),
    "cond": lambda: module_case(lambda x, w: tf.cond(x[0, 0] > 0.0, lambda: x * w, lambda: tf.sin(w * x))),
    "compiled": lambda: module_case(tf.function(lambda x, w: tf.sin(x) * w, jit_compile=True)),
    "custom_gradient": lambda: module_case(lambda x, w: steeper(x) * w),
    "custom_gradient_in_a_loop": lambda: module_case(lambda x, w: in_a_loop(steeper)(x) * w),
    "embed_gradient": lambda: module_case(lambda x, w: cg.embed_gradient(tf.sign(x), x**2, x) * w),
    "recompute_grad": lambda: module_case(lambda x, w: cg.recompute_grad(lambda x: tf.sin(tf.sin(x) * w))(x)),
    "scan": lambda: module_case(scanned),
    "straight_through": lambda: module_case(lambda x, w: cg.straight_through(tf.round, "sigmoid")(x * w)),
    "implicit_root": lambda: module_case(root),
    "tf_custom_gradient": lambda: module_case(lambda x, w: steep(x) * w),
    "tf_custom_gradient_in_a_loop": lambda: module_case(lambda x, w: in_a_loop(steep)(x) * w),
    "shared": shared,
    "without_variables": lambda: module_case(tf.sin, wrt=["x"], variables=False),
    "complex": complex_case,
    "table": lookup,
}


class Added:
    """A model with the added signature, and what its call in a fresh process must return."""

    def __init__(self, case, folder):
        self.case, self.source, self.target = case, folder.parent / "sources" / folder.name, folder
        case.save(self.source)
        self.before = contents(self.source)
        inputs = {name: tf.constant(x) for name, x in case.inputs.items()}
        sources = [inputs[name] for name in case.wrt if name != "variables"] + case.variables
        with tf.GradientTape() as tape:
            tape.watch(sources)
            values = case.function(**inputs)
        self.of, y = max(values.items())
        dy = RNG.normal(size=y.shape).astype(y.dtype.as_numpy_dtype) * (1.0 - 0.5j if y.dtype.is_complex else 1.0)
        self.gradients = [tf.convert_to_tensor(dx) for dx in tape.gradient(y, sources, tf.constant(dy))]
        self.value = y
        self.report = cg.saved_model.add_gradients(self.source, folder, of=self.of, wrt=case.wrt)
        self.inputs = case.inputs | {f"d_{self.of}": dy}

    def outputs(self):
        """The outputs of the signature in a fresh process."""
        np.savez(self.target.with_suffix(".npz"), **self.inputs)
        code = (ROOT / "tests" / "saved_model" / "programs" / "signature.py").read_text()
        run_python(code, self.target, "gradients", cwd=self.target.parent)
        with np.load(f"{self.target}_out.npz") as arrays:
            return dict(arrays)


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    folder = tmp_path_factory.mktemp("add_gradients")
    (folder / "sources").mkdir()
    return functools.cache(lambda name: Added(MODELS[name](), folder / name))


@pytest.mark.parametrize("name", MODELS)
def test_in_a_fresh_process_the_signature_has_the_value_and_the_gradients_of_the_tape(name, added):
    model = added(name)
    outputs = model.outputs()
    assert sorted(outputs) == sorted(each.name for each in model.report.outputs)
    tolerance = 1e-5 if model.value.dtype == tf.float32 else 1e-12
    np.testing.assert_allclose(outputs[model.of], model.value, rtol=tolerance, atol=tolerance)
    names = [each.name for each in model.report.outputs if each.meaning.startswith("gradient")]
    assert len(names) == len(model.gradients) > 0
    for each, dx in zip(names, model.gradients, strict=True):
        np.testing.assert_allclose(outputs[each], dx, rtol=tolerance, atol=tolerance, err_msg=each)


@pytest.mark.parametrize("name", MODELS)
def test_all_that_was_there_stays_and_the_file_grows_by_less_than_twice_the_graph(name, added):
    model = added(name)
    assert contents(model.source) == model.before
    assert {each.verdict for each in model.report.comparisons} == {"equal, bit for bit"}
    before, after = contents(model.source), contents(model.target)
    assert before.keys() == after.keys()
    for file in before.keys() - {"saved_model.pb", "fingerprint.pb"}:
        assert before[file] == after[file]
    assert len(after["saved_model.pb"]) < 3 * len(before["saved_model.pb"])
    (old,), (new,) = proto_of(model.source).meta_graphs, proto_of(model.target).meta_graphs
    del new.signature_def["gradients"]
    assert new.signature_def == old.signature_def
    size = len(old.graph_def.library.function)
    assert new.graph_def.library.function[:size] == old.graph_def.library.function[:]
    assert new.graph_def.node[: len(old.graph_def.node)] == old.graph_def.node[:]


def test_a_session_finds_the_tensors_that_the_report_names(added):
    model = added("cnn")
    rows = {each.name: each.tensor for each in [*model.report.inputs, *model.report.outputs]}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(model.target))
        fetched = {each.name: each.tensor for each in model.report.outputs}
        found = session.run(fetched, {rows[name]: x for name, x in model.inputs.items()})
    for name, array in model.outputs().items():
        np.testing.assert_array_equal(found[name], array)
