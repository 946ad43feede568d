"""Calls of strip's check: their functions, their inputs, and the report of calls that it cannot compare."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _compare_models, _entry_points

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


class Private(tf.Module):
    @tf.function(input_signature=[X])
    def _private(self, x):
        return spike(x)


def holder(value):
    module = tf.Module()
    module.held = value
    return module


MODULES = {
    ".__call__": Called,
    "._private": Private,
    ".held.__call__": lambda: holder(Called()),
    ".held.held._private": lambda: holder(holder(Private())),
    ".held.1.__call__": lambda: holder([tf.Module(), Called()]),
    ".held.0._private": lambda: holder((Private(),)),
    ".held.key.__call__": lambda: holder({"key": Called()}),
    ".held": lambda: holder(traced().get_concrete_function()),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_function_of_every_object_is_compared(tmp_path, monkeypatch, name):
    report = save_and_strip(MODULES[name](), tmp_path, signatures={})
    assert [(c.name, c.verdict) for c in report.comparisons] == [(name, "equal, bit for bit")]
    break_values(monkeypatch)
    message = (
        rf"^saved_model\.strip: {re.escape(name)} of the new model gives another output .* than that of the source\."
    )
    with pytest.raises(RuntimeError, match=message):
        cg.saved_model.strip(tmp_path / "source", tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


def test_a_function_is_called_once_in_each_of_its_forms_although_objects_hold_each_other(tmp_path):
    module, part = Called(), Private()
    module.part, part.whole, part.same = part, module, part
    module.other_name, module.several = part, tf.function(spike)
    module.several(tf.ones([2]))
    module.several(tf.ones([2, 3]))
    report = save_and_strip(module, tmp_path, signatures={})
    assert [c.name for c in report.comparisons] == [".__call__", ".several", ".several (2)", ".other_name._private"]
    assert {c.verdict for c in report.comparisons} == {"equal, bit for bit"}


def test_a_form_is_compared_although_another_one_takes_its_inputs(tmp_path, monkeypatch):
    module = tf.Module()
    module.f = tf.function(lambda x: tf.sign(x) if x.shape[0] == 2 else spike(x))
    module.f.get_concrete_function(tf.TensorSpec([2]))
    module.f.get_concrete_function(X)
    report = save_and_strip(module, tmp_path, signatures={})
    assert [(c.name, c.verdict) for c in report.comparisons] == [
        (".f", "equal, bit for bit"),
        (".f (2)", "equal, bit for bit"),
    ]
    break_values(monkeypatch)
    with pytest.raises(RuntimeError, match=r"^saved_model\.strip: \.f \(2\) of the new model gives another output "):
        cg.saved_model.strip(tmp_path / "source", tmp_path / "broken")


def test_unreachable_functions_are_reported_as_not_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(_entry_points, "_get_child", lambda parent, name: None)
    report = save_and_strip(holder(Called()), tmp_path, signatures={})
    assert [(c.name, c.verdict, c.detail) for c in report.comparisons] == [
        (".held.__call__", "not compared", "it cannot be reached in the loaded model")
    ]


@pytest.mark.parametrize(("signatures", "name"), [({"f": None}, "f"), (None, "signatures")])
def test_signatures_that_are_none_are_not_compared_and_that_is_said(tmp_path, monkeypatch, signatures, name):
    """As where somebody changed the objects of the file."""
    load = tf.saved_model.load

    def load_with_others(*args, **kwargs):
        loaded = load(*args, **kwargs)
        loaded.signatures = signatures
        return loaded

    monkeypatch.setattr(tf.saved_model, "load", load_with_others)
    report = save_and_strip(holder(Called()), tmp_path, signatures={})
    assert [(c.name, c.verdict, c.detail) for c in report.comparisons] == [
        (name, "not compared", "it cannot be reached in the loaded model"),
        (".held.__call__", "equal, bit for bit", ""),
    ]


def test_inputs_that_are_refused_leave_nothing_behind(tmp_path):
    """The function counts its calls before it refuses all but five rows."""
    module = tf.Module()
    module.count = tf.Variable(0.0)

    def f(x):
        with tf.control_dependencies([module.count.assign_add(1.0)]):
            five = tf.debugging.assert_equal(tf.shape(x)[0], 5)
        with tf.control_dependencies([five]):
            return {"y": spike(x) + module.count}

    module.f = traced(f)
    report = save_and_strip(module, tmp_path, signatures=module.f)
    assert {c.name: c.verdict for c in report.comparisons} == {
        "serving_default": "equal, bit for bit",
        ".f": "equal, bit for bit",
    }


def save_random_choice(path, seed=None):
    """Source and stripped model draw from the same two values, and seldom draw the same."""
    module = tf.Module()
    module.f = traced(lambda x: spike(x) * tf.cast(tf.random.uniform([], 0, 2, tf.int32, seed=seed), tf.float32))
    tf.saved_model.save(module, path, signatures={})


def draw(monkeypatch, values):
    """Fixed results for the calls of f, in the place of random ones."""
    drawn = iter(values)
    monkeypatch.setattr(_compare_models, "_named_arrays", lambda outputs: {"output 0": np.array(next(drawn))})


def test_a_random_operation_that_gave_the_same_twice_is_no_error(tmp_path, monkeypatch):
    save_random_choice(tmp_path / "source")
    draw(monkeypatch, [1.0, 1.0, 0.0])
    (comparison,) = cg.saved_model.strip(tmp_path / "source", tmp_path / "target").comparisons
    assert (comparison.name, comparison.verdict) == (".f", "not compared")
    assert comparison.detail == "the source gives other outputs each time, as random operations do"


def test_a_random_operation_with_a_seed_has_to_give_the_same(tmp_path, monkeypatch):
    save_random_choice(tmp_path / "source", seed=3)
    draw(monkeypatch, [1.0, 1.0, 0.0])
    with pytest.raises(RuntimeError, match=r"^saved_model\.strip: \.f of the new model gives another output "):
        cg.saved_model.strip(tmp_path / "source", tmp_path / "target")


def test_assignments_of_one_call_are_undone_before_the_next(tmp_path):
    """A random function writes what the next one reads."""
    module = tf.Module()
    module.v = tf.Variable([1.0, 2.0])
    module.a = traced(lambda x: module.v.assign(spike(x) + tf.random.uniform([2])))
    module.b = traced(lambda x: spike(x) * module.v)
    report = save_and_strip(module, tmp_path, signatures={})
    assert {c.name: c.verdict for c in report.comparisons} == {".a": "not compared", ".b": "equal, bit for bit"}


def test_functions_after_a_failing_one_are_compared(tmp_path):
    module = tf.Module()
    module.a = traced(lambda x: tf.reshape(spike(x), [3, 7]))
    module.b = traced(spike)
    report = save_and_strip(module, tmp_path, signatures={})
    assert {c.name: c.verdict for c in report.comparisons} == {".a": "not compared", ".b": "equal, bit for bit"}


def test_a_function_that_refuses_all_inputs_changes_nothing_for_the_next(tmp_path):
    """It counts its calls in a table, which no check restores; the next function reads the count."""
    module = tf.Module()
    module.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, default_value=0.0)
    key = tf.constant(["calls"])

    def refuse(x):
        with tf.control_dependencies([module.table.insert(key, module.table.lookup(key) + 1.0)]):
            return tf.reshape(spike(x), [3, 7])

    module.a = traced(refuse)
    module.b = traced(lambda x: spike(x) + module.table.lookup(key))
    report = save_and_strip(module, tmp_path, signatures={})
    assert {c.name: c.verdict for c in report.comparisons} == {".a": "not compared", ".b": "equal, bit for bit"}


def test_an_output_that_is_no_value_is_told_from_inputs_that_are_refused(tmp_path):
    module = tf.Module()
    module.f = traced(lambda x: tf.data.Dataset.from_tensor_slices(spike(x)))
    (comparison,) = save_and_strip(module, tmp_path, signatures={}).comparisons
    assert comparison.verdict == "not compared"
    assert re.fullmatch(r"its output cannot be compared: \w+: .*variant.*", comparison.detail)


def test_the_line_of_an_error_that_tells_something_is_shown(tmp_path):
    module = tf.Module()
    module.f = traced(lambda x: tf.reshape(spike(x), [3, 7]))
    (comparison,) = save_and_strip(module, tmp_path, signatures={}).comparisons
    assert comparison.detail == (
        "it refuses inputs made from its input specs: InvalidArgumentError: Input to reshape is a tensor with 2 values, "
        "but the requested shape has 21"
    )


def save_two_meta_graphs(path):
    builder = tf.compat.v1.saved_model.Builder(str(path))
    for tags, name, argument in ((["serve"], "serve_it", "x"), (["train", "gpu"], "train_it", "z")):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None])
            w = tf.compat.v1.get_variable("w", initializer=3.0, use_resource=True)
            signature = tf.compat.v1.saved_model.predict_signature_def
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
    assert {c.name: c.verdict for c in report.comparisons} == dict.fromkeys(
        ["both of serve", "serve_it of serve", "both of train, gpu", "train_it of train, gpu"], "equal, bit for bit"
    )
    message = (
        "saved_model.strip: inputs names an unknown argument of both; expected one of x, z, got y. Name signatures and their "
        "arguments as the model does."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cg.saved_model.strip(tmp_path / "source", tmp_path / "again", inputs={"both": {"y": x}})
