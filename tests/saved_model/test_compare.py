"""compare: what it calls, with which inputs, what counts as equal, and what it cannot compare."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _compare, _inputs

from ..support.saved_models import break_values, in_a_loop, save_and_strip, strip

pytestmark = pytest.mark.core

X = tf.TensorSpec([None], name="x")
EQUAL, ROUNDING, DIFFERENT, NOT_COMPARED = "equal, bit for bit", "equal up to rounding", "different", "not compared"


def spike(x):
    return cg.embed_gradient(tf.sign(x), 2.0 * x, x * 3.0)


def traced(function=spike, spec=X):
    return tf.function(function, input_signature=[spec], autograph=False)


def holder(**values):
    module = tf.Module()
    for name, value in values.items():
        setattr(module, name, value)
    return module


def verdicts(comparisons):
    return {(found.name, found.what): found.verdict for found in comparisons}


def values_of(names, verdict=EQUAL):
    return {(name, "values"): verdict for name in names}


def refuse(x):
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x > 1e6), [x])]):
        return tf.identity(x)


# TensorFlow cannot differentiate it in a loop after loading.
fires = tf.custom_gradient(lambda x: (tf.sign(x), lambda dy: dy * x))
W = tf.Variable([2.0, 3.0])
COUNT = tf.Variable(0.0)
RANDOM = "the first model draws random numbers without a seed"
# A function in each of two models, the verdicts on values and gradients (None for no row), and a part of the detail.
PAIRS = {
    "rounding": (lambda x: x + 1.0, lambda x: 1.0 + 1e-7 + x, ROUNDING, EQUAL, "output 0"),
    "other_values": (lambda x: x, lambda x: x + 0.01, DIFFERENT, EQUAL, "output 0"),
    "other_gradients": (spike, tf.sign, EQUAL, DIFFERENT, "input 0"),
    "named": (lambda x: {"y": x, "z": x}, lambda x: {"y": x, "z": 2.0 * x}, DIFFERENT, DIFFERENT, "output z"),
    "other_structure": (lambda x: {"y": x}, lambda x: {"z": x}, DIFFERENT, EQUAL, "output"),
    "integers": (lambda x: tf.size(x), lambda x: tf.size(x), EQUAL, None, ""),
    "variable": (lambda x: x * W, lambda x: x * W + tf.stop_gradient(x) * W, DIFFERENT, DIFFERENT, "0"),
    "assigned": (lambda x: COUNT.assign_add(tf.norm(x)), lambda x: COUNT.assign_add(1.0), DIFFERENT, EQUAL, "0"),
    "refused": (refuse, refuse, NOT_COMPARED, None, "the first model raises InvalidArgumentError"),
    "refused_by_one": (lambda x: x, refuse, DIFFERENT, None, "the second model raises InvalidArgumentError"),
    "no_gradient": (in_a_loop(fires), in_a_loop(tf.sign), EQUAL, NOT_COMPARED, "the first model raises TypeError"),
    "random": (lambda x: x * tf.random.uniform([]), lambda x: x, NOT_COMPARED, None, RANDOM),
    "seeded": (lambda x: x * tf.random.uniform([], seed=3), lambda x: 9.0 * x, DIFFERENT, DIFFERENT, "0"),
    "changing": (
        lambda x: x * tf.numpy_function(lambda: np.float32(np.random.normal()), [], tf.float32),
        lambda x: x,
        NOT_COMPARED,
        NOT_COMPARED,
        "the first model gives different results each time",
    ),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """The comparisons of two models with all pairs, and of functions that only one of them has."""
    folder = tmp_path_factory.mktemp("pairs")
    take = tf.function(lambda slices: slices.values, input_signature=[tf.IndexedSlicesSpec([4], tf.float32)])
    modules = []  # What `tf.numpy_function` calls lives as long as its graph.
    for i, name in enumerate("ab"):
        functions = {f"f_{key}": traced(pair[i]) for key, pair in PAIRS.items()}
        modules.append(holder(w=W, count=COUNT, take=take, **functions, **{f"only_{name}": traced()}))
        tf.saved_model.save(modules[-1], folder / name, signatures={})
    found = cg.saved_model.compare(folder / "a", folder / "b")
    return {(each.name, each.what): each for each in found}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_of_functions(name, pairs):
    *_, of_values, of_gradients, detail = PAIRS[name]
    found = {what: pairs.get((f".f_{name}", what)) for what in ("values", "gradients")}
    assert {what: each and each.verdict for what, each in found.items()} == {
        "values": of_values,
        "gradients": of_gradients,
    }
    told = [each for each in found.values() if each and each.verdict != EQUAL]
    for each in told:
        assert each.name in str(each)
        assert each.verdict in str(each)
        assert (each.difference is None) == (" raises" in each.detail or "model" in each.detail)
    assert detail in " ".join(each.detail for each in told)


def test_functions_that_only_one_model_has_or_whose_inputs_cannot_be_made_up(pairs):
    details = {
        ".only_a": (DIFFERENT, "the second model does not have it"),
        ".only_b": (NOT_COMPARED, "the first model does not have it"),
        ".take": (
            NOT_COMPARED,
            "the first model takes an input of type IndexedSlicesSpec, and made-up inputs are only Tensors",
        ),
    }
    found = {name: pairs[name, "values"] for name in details}
    assert {name: (each.verdict, each.detail) for name, each in found.items()} == details


class Called(tf.Module):
    @tf.function(input_signature=[X])
    def __call__(self, x):
        return spike(x)

    @tf.function(input_signature=[X])
    def _private(self, x):
        return spike(x)


def two_forms():
    """Only the second one has an embedded gradient."""
    function = tf.function(lambda x: tf.sign(x) if x.shape[0] == 2 else spike(x))
    function.get_concrete_function(tf.TensorSpec([2]))
    function.get_concrete_function(X)
    return function


def test_every_function_of_every_object_is_compared_once_in_each_of_its_forms(tmp_path):
    """Also if objects refer to each other, and if another trace takes the same inputs."""
    part = Called()
    deeper = holder(held=[holder(held=tf.Module()), (Called(),), {"key": Called()}])
    concrete = traced().get_concrete_function()
    module = holder(deeper=deeper, concrete=concrete, part=part, other_name=part, several=two_forms())
    part.whole, part.same = module, part
    names = [".concrete", ".several", ".several (2)"]
    names += [
        f"{place}.{name}"
        for place in (".other_name", ".deeper.held.1.0", ".deeper.held.2.key")
        for name in ("__call__", "_private")
    ]
    comparisons = save_and_strip(module, tmp_path, signatures={}).comparisons
    assert len(comparisons) == len(names)
    assert verdicts(comparisons) == values_of(names)


@pytest.mark.parametrize("place", ["deep", "second form"])
def test_a_copy_with_other_values_is_an_error_and_not_written(tmp_path, monkeypatch, place):
    deep = holder(held=[tf.Module(), holder(held={"key": Called()})])
    module, name = (deep, ".held.1.held.key.__call__") if place == "deep" else (holder(f=two_forms()), ".f (2)")
    break_values(monkeypatch)
    message = (
        f"the new model must have the same values, got values of {re.escape(name)}: different by .* \\(output 0\\)"
    )
    with pytest.raises(RuntimeError, match=rf"^saved_model\.strip: {message}\. Nothing was written\. "):
        save_and_strip(module, tmp_path, signatures={})
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    report = cg.saved_model.strip(tmp_path / "source", tmp_path / "unchecked", check=False)
    assert (report.comparisons, (tmp_path / "unchecked").is_dir()) == (None, True)


def test_a_call_does_not_change_what_later_calls_give(tmp_path):
    """One function writes a variable. Another counts its calls in a table, and takes only five rows."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, default_value=0.0)
    key = tf.constant(["calls"])

    def count(x):
        with tf.control_dependencies([table.insert(key, table.lookup(key) + 1.0)]):
            return tf.reshape(spike(x), [5])

    module = holder(table=table, v=tf.Variable([1.0, 2.0]), b=traced(lambda x: spike(x) * module.v), c=traced(count))
    module.a = traced(lambda x: module.v.assign(spike(x) * module.v))
    module.d = traced(lambda x: spike(x) + table.lookup(key))
    report = save_and_strip(module, tmp_path, signatures={})
    assert verdicts(report.comparisons) == values_of([".a", ".b", ".c", ".d"])


def test_a_traced_caller_compares_values_alone(tmp_path):
    tf.saved_model.save(holder(f=traced()), tmp_path / "model", signatures={})
    found = []

    @tf.function(autograph=False)
    def caller():
        found.extend(cg.saved_model.compare(tmp_path / "model", tmp_path / "model"))

    assert not caller.get_concrete_function().graph.get_operations()
    assert verdicts(found) == values_of([".f"])


# Inputs


def save_two_meta_graphs(path):
    builder = tf.compat.v1.saved_model.Builder(str(path))
    signature = tf.compat.v1.saved_model.predict_signature_def
    for tags, name, argument in ((["serve"], "serve_it", "x"), (["train", "gpu"], "train_it", "z")):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None])
            w = tf.compat.v1.get_variable("w", initializer=3.0, use_resource=True)
            signatures = {
                name: signature({argument: x}, {"y": spike(x) * w}),
                "both": signature({argument: x}, {"y": spike(x)}),
            }
            session.run(w.initializer)
            if name == "serve_it":
                builder.add_meta_graph_and_variables(session, tags, signatures)
            else:
                builder.add_meta_graph(tags, signatures)
    builder.save()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_meta_graph_takes_its_own_part_of_the_inputs(tmp_path):
    save_two_meta_graphs(tmp_path / "source")
    names = ["both of serve", "serve_it of serve", "both of train, gpu", "train_it of train, gpu"]
    assert verdicts(strip(tmp_path / "source", tmp_path / "target").comparisons) == values_of(names)
    x = np.array([1.0, -2.0])
    inputs = {"serve_it": {"x": x}, "train_it": {"z": x}, "both": {"x": x, "z": -x}}
    found = verdicts(cg.saved_model.compare(tmp_path / "source", tmp_path / "target", inputs))
    assert {name: verdict for name, verdict in found.items() if name[1] == "values"} == values_of(names)


def test_given_inputs_are_used(tmp_path):
    module = holder(f=traced(refuse))
    tf.saved_model.save(module, tmp_path / "model", signatures=module.f)
    compare = lambda inputs: cg.saved_model.compare(tmp_path / "model", tmp_path / "model", inputs)  # noqa: E731
    assert compare(None)[0].verdict == NOT_COMPARED
    refused = compare({"serving_default": {"x": [1.0, 2.0]}})[0]
    assert refused.detail == "the first model raises InvalidArgumentError: assertion failed: [1 2]"
    assert compare({"serving_default": {"x": [2e6, 3e6]}})[0].verdict == EQUAL


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "complex128", "int32", "uint8", "bool", "string"])
def test_made_up_inputs_have_the_dtype_and_fill_unknown_dimensions(dtype):
    dtype = tf.as_dtype(dtype)
    for shape, expected in (([2, None, 3], [2, 5, 3]), (None, [5]), ([], []), ([0, 100], [0, 100]), ([100], [100])):
        value, again = (_inputs.generate({"x": tf.TensorSpec(shape, dtype)}, 5)["x"] for _ in range(2))
        assert (value.dtype, value.shape) == (dtype, expected)
        np.testing.assert_array_equal(value, again)
    if dtype.is_floating or dtype.is_complex:  # Both the real and the imaginary parts have both signs.
        for part in (value.numpy().real, value.numpy().imag) if dtype.is_complex else (value.numpy(),):
            assert 25 < np.sum(part > 0) < 75
            assert 0.5 < np.std(part) < 2.0
    assert _inputs.generate([True], 3) == [True]


# What is equal


def array(values, dtype=tf.float32):
    return tf.cast(tf.constant(values, tf.float64), dtype).numpy()


EPS = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7, tf.float32: 2.0**-23, tf.float64: 2.0**-52}


@pytest.mark.parametrize("dtype", [*EPS, tf.complex64, tf.complex128], ids=lambda d: d.name)
def test_equal_bits_rounding_and_more_than_rounding(dtype):
    eps = EPS[dtype.real_dtype]
    same, one = array([1.0, np.nan, np.inf], dtype), array([1.0, 8.0], dtype)
    assert _compare._difference(same, same.copy()) == (EQUAL, 0.0)
    assert _compare._difference(one, array([1.0 + eps, 8.0], dtype)) == (ROUNDING, eps / 8.0)
    verdict, difference = _compare._difference(array([1.0, 2.0], dtype), array([1.0, 2.0 + 4.0 * eps**0.75], dtype))
    assert verdict == DIFFERENT
    np.testing.assert_allclose(difference, 2.0 * eps**0.75, rtol=0.3)


# Two arrays, the verdict, and whether the difference is a number.
ARRAYS = {
    "signed zeros": (array([0.0, 1.0]), array([-0.0, 1.0]), ROUNDING),
    "integers": (np.array([1, 2]), np.array([1, 2]), EQUAL),
    "strings": (np.array([b"a"], object), np.array([b"a"], object), EQUAL),
    "empty": (np.zeros([0, 2]), np.zeros([0, 2]), EQUAL),
    "nan": (array([1.0, np.nan]), array([1.0, 2.0]), DIFFERENT),
    "new nan": (array([1.0, 2.0]), array([1.0, np.nan]), DIFFERENT),
    "inf": (array([1.0, np.inf]), array([1.0, 3e38]), DIFFERENT),
    "other inf": (array([1.0, np.inf]), array([1.0, -np.inf]), DIFFERENT),
    "zeros": (array([0.0, 0.0]), array([0.0, 1e-30]), DIFFERENT),
    "size": (array([1.0]), array([1.0, 1.0]), DIFFERENT),
    "rank": (array([1.0]), array([[1.0]]), DIFFERENT),
    "dtype": (array([1.0]), array([1.0], tf.float64), DIFFERENT),
    "other integers": (np.array([1, 2]), np.array([1, 3]), DIFFERENT),
    "large integers": (np.array([2**60]), np.array([2**60 + 1]), DIFFERENT),
    "bool": (np.array([True]), np.array([False]), DIFFERENT),
    "other strings": (np.array([b"a"], object), np.array([b"b"], object), DIFFERENT),
    "missing": (array([1.0]), None, DIFFERENT),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_two_arrays(name):
    first, second, verdict = ARRAYS[name]
    assert _compare._difference(first, second)[0] == verdict
