"""The check of strip: what it calls, with which inputs, what counts as equal, and what it cannot compare."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _compare_models, _entry_points, _inputs

from ..support.saved_models import break_values, save_and_strip, strip

X = tf.TensorSpec([None], name="x")


def spike(x):
    return cg.embed_gradient(tf.sign(x), 2.0 * x, x * 3.0)


def traced(function=spike):
    return tf.function(function, input_signature=[X], autograph=False)


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


def holder(value):
    module = tf.Module()
    module.held = value
    return module


def verdicts_of(comparisons):
    return {comparison.name: comparison.verdict for comparison in comparisons}


EQUAL = "equal, bit for bit"
RANDOM = "the source gives different outputs each time, as random operations do"


# What is called


def test_every_function_of_every_object_is_compared_once_in_each_of_its_forms(tmp_path):
    """Also if objects refer to each other, and if another trace takes the same inputs."""
    module, part = tf.Module(), Called()
    module.deeper = holder([holder(tf.Module()), (Called(),), {"key": Called()}])
    module.concrete = traced().get_concrete_function()
    module.part, part.whole, part.same, module.other_name = part, module, part, part
    module.several = two_forms()
    names = [".concrete", ".several", ".several (2)"]
    names += [
        f"{place}.{name}"
        for place in (".other_name", ".deeper.held.1.0", ".deeper.held.2.key")
        for name in ("__call__", "_private")
    ]
    comparisons = save_and_strip(module, tmp_path, signatures={}).comparisons
    assert len(comparisons) == len(names)
    assert verdicts_of(comparisons) == dict.fromkeys(names, EQUAL)


@pytest.mark.parametrize("place", ["deep", "second form"])
def test_a_function_that_changed_is_found(tmp_path, monkeypatch, place):
    module, name = (
        (holder([tf.Module(), holder({"key": Called()})]), ".held.1.held.key.__call__")
        if place == "deep"
        else (holder(two_forms()), ".held (2)")
    )
    break_values(monkeypatch)
    message = f"{re.escape(name)} returns a different output .* in the new model\\."
    with pytest.raises(RuntimeError, match=rf"^saved_model\.strip: {message}"):
        save_and_strip(module, tmp_path, signatures={})
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("case", ["object", "signature", "signatures"])
def test_what_cannot_be_reached_is_not_compared_and_that_is_said(tmp_path, monkeypatch, case):
    """As in a malformed file."""
    load = tf.saved_model.load

    def load_with_others(*args, **kwargs):
        loaded = load(*args, **kwargs)
        loaded.signatures = {"f": None} if case == "signature" else None
        return loaded

    name = {"object": ".held", "signature": "f", "signatures": "signatures"}[case]
    if case == "object":
        monkeypatch.setattr(_entry_points, "_get_child", lambda parent, name: None)
    else:
        monkeypatch.setattr(tf.saved_model, "load", load_with_others)
    first, *others = save_and_strip(holder(traced()), tmp_path, signatures={}).comparisons
    assert (first.name, first.verdict, first.detail) == (
        name,
        "not compared",
        "it cannot be reached in the loaded model",
    )
    assert verdicts_of(others) == ({} if case == "object" else {".held": EQUAL})


def test_a_call_does_not_change_what_later_calls_give(tmp_path):
    """A random function writes a variable. Another one counts its calls, and takes only five rows."""
    module = tf.Module()
    module.v, module.count = tf.Variable([1.0, 2.0]), tf.Variable(0.0)

    def count(x):
        with tf.control_dependencies([module.count.assign_add(1.0)]):
            five = tf.debugging.assert_equal(tf.shape(x)[0], 5)
        with tf.control_dependencies([five]):
            return {"y": spike(x) + module.count}

    module.a = traced(lambda x: module.v.assign(spike(x) + tf.random.uniform([2])))
    module.b = traced(lambda x: spike(x) * module.v)
    module.c = traced(count)
    report = save_and_strip(module, tmp_path, signatures=module.c)
    expected = {"serving_default": EQUAL, ".a": "not compared", ".b": EQUAL, ".c": EQUAL}
    assert verdicts_of(report.comparisons) == expected


def test_a_function_that_refuses_all_inputs_changes_nothing_for_the_next(tmp_path):
    """It counts its calls in a table, which the check does not restore. The next function reads the count."""
    module = tf.Module()
    module.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, default_value=0.0)
    key = tf.constant(["calls"])

    def refuse(x):
        with tf.control_dependencies([module.table.insert(key, module.table.lookup(key) + 1.0)]):
            return tf.reshape(spike(x), [3, 7])

    module.a = traced(refuse)
    module.b = traced(lambda x: spike(x) + module.table.lookup(key))
    refused, counted = save_and_strip(module, tmp_path, signatures={}).comparisons
    assert (refused.verdict, counted.verdict) == ("not compared", EQUAL)
    assert refused.detail == (
        "it refuses inputs made from its input specs: InvalidArgumentError: Input to reshape is a tensor with 2 values, "
        "but the requested shape has 21"
    )


def test_an_output_that_is_no_value_is_told_from_inputs_that_are_refused(tmp_path):
    module = holder(traced(lambda x: tf.data.Dataset.from_tensor_slices(spike(x))))
    (comparison,) = save_and_strip(module, tmp_path, signatures={}).comparisons
    assert comparison.verdict == "not compared"
    assert re.fullmatch(r"its output cannot be compared: \w+: .*variant.*", comparison.detail)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_random_operation_that_gave_the_same_twice_is_no_error_unless_it_has_a_seed(tmp_path, monkeypatch, seed):
    module = tf.Module()
    module.f = traced(lambda x: spike(x) * tf.cast(tf.random.uniform([], 0, 2, tf.int32, seed=seed), tf.float32))
    tf.saved_model.save(module, tmp_path / "source", signatures={})
    drawn = iter([1.0, 1.0, 0.0])  # The results instead of random ones: source, source again, target.
    monkeypatch.setattr(_compare_models, "_named_arrays", lambda outputs: {"output 0": np.array(next(drawn))})
    if seed is None:
        (comparison,) = cg.saved_model.strip(tmp_path / "source", tmp_path / "target").comparisons
        assert (comparison.name, comparison.verdict, comparison.detail) == (".f", "not compared", RANDOM)
    else:
        with pytest.raises(
            RuntimeError, match=r"^saved_model\.strip: \.f returns a different output .* in the new model"
        ):
            cg.saved_model.strip(tmp_path / "source", tmp_path / "target")


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
    x = np.array([1.0, -2.0])
    inputs = {"serve_it": {"x": x}, "train_it": {"z": x}, "both": {"x": x, "z": -x}}
    report = strip(tmp_path / "source", tmp_path / "target", inputs=inputs)
    names = ["both of serve", "serve_it of serve", "both of train, gpu", "train_it of train, gpu"]
    assert verdicts_of(report.comparisons) == dict.fromkeys(names, EQUAL)
    message = r"^saved_model\.strip: an argument of both in inputs must be one of x, z, got y\."
    with pytest.raises(ValueError, match=message):
        cg.saved_model.strip(tmp_path / "source", tmp_path / "again", inputs={"both": {"y": x}})


# The inputs that are made up


@pytest.mark.parametrize(
    "dtype",
    [tf.float16, tf.float64, tf.complex64, tf.complex128, tf.int32, tf.uint8, tf.bool, tf.string],
    ids=lambda dtype: dtype.name,
)
def test_made_up_inputs_have_the_dtype_and_fill_unknown_dimensions(dtype):
    for shape, expected in (([2, None, 3], [2, 5, 3]), (None, [5]), ([], []), ([100], [100])):
        value, again = (_inputs.generate({"x": tf.TensorSpec(shape, dtype)}, 5)["x"] for _ in range(2))
        assert value.dtype == dtype
        assert value.shape == expected
        np.testing.assert_array_equal(value, again)
    if dtype.is_floating or dtype.is_complex:  # Both the real and the imaginary parts have both signs.
        for part in (value.numpy().real, value.numpy().imag) if dtype.is_complex else (value.numpy(),):
            assert 25 < np.sum(part > 0) < 75
            assert 0.5 < np.std(part) < 2.0
    assert _inputs.generate([True], 3) == [True]


# What is equal


def verdict(expected, actual, again=None):
    first, again, other = (
        _compare_models._Result({f"output {i}": np.asarray(x) for i, x in enumerate(values)})
        for values in (expected, expected if again is None else again, actual)
    )
    return _compare_models._compare_results("strip", "f", first, again, other, lambda: False).verdict


def array(values, dtype=tf.float32):
    return tf.cast(tf.constant(values, tf.float64), dtype).numpy()


EPS = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7, tf.float32: 2.0**-23, tf.float64: 2.0**-52}
DTYPES = [*EPS, tf.complex64, tf.complex128]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_equal_bits_rounding_and_more_than_rounding(dtype):
    eps = EPS[dtype.real_dtype]
    same, one = array([1.0, np.nan, np.inf], dtype), array([1.0, 8.0], dtype)
    assert verdict([same], [same.copy()]) == EQUAL
    assert verdict([one], [array([1.0 + eps, 8.0], dtype)]) == "equal up to rounding"
    with pytest.raises(RuntimeError, match="returns a different output 0"):
        verdict([array([1.0, 2.0], dtype)], [array([1.0, 2.0 + 4.0 * eps**0.75], dtype)])


def test_results_that_are_equal_or_not_compared():
    assert verdict([array([0.0, 1.0])], [array([-0.0, 1.0])]) == "equal up to rounding"
    for same in (np.array([1, 2]), np.array([True]), np.array([b"a"], object), np.zeros([0, 2])):
        assert verdict([same], [same.copy()]) == EQUAL
    assert verdict([array([1.0])], [array([1.0])], again=[array([2.0])]) == "not compared"


OTHERS = {
    "nan": (array([1.0, np.nan]), array([1.0, 2.0])),
    "new nan": (array([1.0, 2.0]), array([1.0, np.nan])),
    "inf": (array([1.0, np.inf]), array([1.0, 3e38])),
    "zeros": (array([0.0, 0.0]), array([0.0, 1e-30])),
    "size": (array([1.0]), array([1.0, 1.0])),
    "rank": (array([1.0]), array([[1.0]])),
    "dtype": (array([1.0]), array([1.0], tf.float64)),
    "int": (np.array([1, 2]), np.array([1, 3])),
    "bool": (np.array([True]), np.array([False])),
    "string": (np.array([b"a"], object), np.array([b"b"], object)),
    "missing": (array([1.0]), None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_is_an_error(name):
    expected, actual = OTHERS[name]
    with pytest.raises(RuntimeError, match="returns a different output 1 "):
        verdict([array([1.0]), expected], [array([1.0]), *([] if actual is None else [actual])])


def test_the_line_of_an_error_that_tells_most():
    """The first line, or the last one if TensorFlow's message begins with a general line."""
    noise = "Graph execution error:\n\nDetected at node f\nwhere that is\nwhat is wrong\n\t [[{{node f}}]]"
    for text in ("what is wrong\nwhere that is", noise):
        assert _compare_models._in_one_line(ValueError(text)) == "ValueError: what is wrong"
