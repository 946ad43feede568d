"""Failures of strip: their messages, and that nothing is left behind."""

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _folder, _replace_ops

from ..support.saved_models import break_values, contents, ops_of, proto_of, save_and_strip


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def f(self, x):
        h = cg.custom_gradient(lambda x: (tf.sign(x) * 2.0, lambda dy: dy))(x)
        return {"y": cg.embed_gradient(h, x, x) + self.w}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    module = Model()
    tf.saved_model.save(module, folder, signatures=module.f)
    return folder


def assert_fails(error, message, source, target, **keywords):
    """It raises just this, and changes nothing beside the source and the target."""
    before = contents(target.parent) if target.parent.is_dir() else None
    with pytest.raises(error) as caught:
        cg.saved_model.strip(source, target, **keywords)
    assert str(caught.value) == message
    assert (contents(target.parent) if target.parent.is_dir() else None) == before


def test_an_existing_target_is_not_touched(source, tmp_path):
    for make in (pathlib.Path.mkdir, pathlib.Path.touch, lambda path: path.symlink_to(tmp_path / "nowhere")):
        target = tmp_path / f"target of {make.__name__}"
        make(target)
        message = f"saved_model.strip: the target '{target}' exists already. Name another path, or remove it first."
        assert_fails(FileExistsError, message, source, target)
    assert_fails(FileExistsError, message.replace(str(target), str(source)), source, source)


def test_a_source_that_is_not_there(tmp_path):
    message = (
        f"saved_model.strip: there is no SavedModel at '{tmp_path / 'no'}'; expected a folder with saved_model.pb, got "
        "{}. Pass the folder that tf.saved_model.save wrote."
    )
    assert_fails(FileNotFoundError, message.format("nothing there"), tmp_path / "no", tmp_path / "target")
    (tmp_path / "no").touch()
    assert_fails(NotADirectoryError, message.format("a file"), tmp_path / "no", tmp_path / "target")
    (tmp_path / "no").unlink()
    (tmp_path / "no").mkdir()
    assert_fails(
        FileNotFoundError, message.format("a folder without saved_model.pb"), tmp_path / "no", tmp_path / "target"
    )


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_file_that_is_cut_off(source, tmp_path, kept):
    file = source / "saved_model.pb"
    file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])
    got = "Error parsing message with type 'tensorflow.SavedModel'" if kept else "none"
    with pytest.raises(ValueError, match=r"^saved_model\.strip: ") as caught:
        cg.saved_model.strip(source, tmp_path / "target")
    message = f"saved_model.strip: '{file}' cannot be read; expected a SavedModel with its graphs, got {got}"
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(". It may be cut off: save or copy the model again.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize("missing", ["variables.index", "variables.data-00000-of-00001", "all", "folder"])
def test_variables_that_are_missing(source, tmp_path, missing):
    for file in (source / "variables").iterdir():
        if missing in (file.name, "all", "folder"):
            file.unlink()
    if missing == "folder":
        (source / "variables").rmdir()
    file = "variables.index" if missing in ("all", "folder") else missing
    message = (
        f"saved_model.strip: values of variables are missing: there is no file {file} in '{source / 'variables'}'. Copy "
        "the whole folder of the SavedModel."
    )
    assert_fails(FileNotFoundError, message, source, tmp_path / "target")


def test_one_of_several_files_of_variables_that_is_missing(source, tmp_path):
    (shard,) = (source / "variables").glob("variables.data-*")
    shard.rename(source / "variables" / "variables.data-00000-of-00002")
    with pytest.raises(FileNotFoundError, match=r"there is no file variables\.data-00001-of-00002 in "):
        cg.saved_model.strip(source, tmp_path / "target")


def test_a_source_that_cannot_be_loaded(source, tmp_path):
    """The values of its variables are cut off: only who runs it can tell."""
    (shard,) = (source / "variables").glob("variables.data-*")
    shard.write_bytes(b"")
    message = (
        rf"saved_model\.strip: TensorFlow cannot load the source '{re.escape(str(source))}': \w+: [^\n]+\. Copy the "
        r"whole folder of the SavedModel, or skip the check with check=False \(--no-check\)\."
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        cg.saved_model.strip(source, tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    assert cg.saved_model.strip(source, tmp_path / "target", check=False).comparisons is None


def test_an_asset_that_is_missing(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("one\n")
    module = Model()
    module.asset = tf.saved_model.Asset(str(words))
    initializer = tf.lookup.TextFileInitializer(
        module.asset, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.table = tf.lookup.StaticHashTable(initializer, -1)
    module.g = tf.function(module.table.lookup, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, tmp_path / "source")
    (tmp_path / "source" / "assets" / "words.txt").unlink()
    with pytest.raises(ValueError, match=r"^saved_model\.strip: TensorFlow cannot load the source .*words\.txt"):
        cg.saved_model.strip(tmp_path / "source", tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "words.txt"]


def test_a_target_inside_of_the_source(source):
    message = f"saved_model.strip: the target '{source / 'assets' / 'target'}' lies inside the source. Name a path outside of it."
    assert_fails(ValueError, message, source, source / "assets" / "target")


def test_a_target_without_a_folder(source, tmp_path):
    message = f"saved_model.strip: '{tmp_path / 'no'}', the parent of the target, is not a folder. Make it first."
    assert_fails(FileNotFoundError, message, source, tmp_path / "no" / "target")


OUTPUTS_DIFFER = (
    "saved_model.strip: serving_default of the new model gives another output y than that of the source. Nothing "
    "was written; please report it, with the model."
)


def test_other_outputs_are_an_error_and_leave_no_target(source, tmp_path, monkeypatch):
    break_values(monkeypatch)
    assert_fails(RuntimeError, OUTPUTS_DIFFER, source, tmp_path / "target")
    report = cg.saved_model.strip(source, tmp_path / "unchecked", check=False)
    assert report.comparisons is None
    assert (tmp_path / "unchecked").is_dir()


def test_inputs_that_are_passed_are_what_is_compared(source, tmp_path, monkeypatch):
    """The broken signature equals the source if x = 2 sign(x); the function gets other inputs."""
    break_values(monkeypatch)
    lucky = {"serving_default": {"x": [[2.0, -2.0]]}}
    message = OUTPUTS_DIFFER.replace("serving_default", ".f")
    assert_fails(RuntimeError, message, source, tmp_path / "target", inputs=lucky)


def test_wrong_variables_are_seen(tmp_path, monkeypatch):
    """A step without outputs, whose effect alone differs."""
    module = tf.Module()
    module.w = tf.Variable([0.0, 0.0])

    def step(x):
        module.w.assign_add(cg.embed_gradient(tf.sign(x), x, x * 3.0))

    module.step = tf.function(step, input_signature=[tf.TensorSpec([2])])
    break_values(monkeypatch)
    with pytest.raises(RuntimeError, match=r"^saved_model\.strip: \.step of the new model gives another variable "):
        save_and_strip(module, tmp_path)
    assert not (tmp_path / "target").exists()


def test_a_model_that_does_not_load_any_more_is_an_error(source, tmp_path, monkeypatch):
    outputs = dict(_replace_ops.OUTPUT_NAMES, CustomGradientRule="nonsense")
    monkeypatch.setattr(_replace_ops, "OUTPUT_NAMES", outputs)
    with pytest.raises(RuntimeError, match=r"^saved_model\.strip: tf\.saved_model\.load fails for the new model, "):
        cg.saved_model.strip(source, tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_strip_leaves_nothing_behind(source, tmp_path, monkeypatch, error):
    def copy_half(api, source, target, proto):
        target.mkdir()
        (target / "half").touch()
        raise error

    monkeypatch.setattr(_folder, "copy_with_graphs", copy_half)
    with pytest.raises(error):
        cg.saved_model.strip(source, tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_the_target_has_the_permissions_of_the_source(source, tmp_path):
    source.chmod(0o755)
    cg.saved_model.strip(source, tmp_path / "target")
    assert (tmp_path / "target").stat().st_mode == source.stat().st_mode


def test_the_copy_of_a_read_only_model_is_writable_by_its_owner(source, tmp_path):
    """As it is moved to the target: only the superuser may move a folder that is read-only."""
    cg.saved_model.strip(source, tmp_path / "once")
    for model, target in ((source, "of a model"), (tmp_path / "once", "of a copy")):
        for path in (*model.rglob("*"), model):
            path.chmod(path.stat().st_mode & 0o555)
        cg.saved_model.strip(model, tmp_path / target)
        assert (tmp_path / target).stat().st_mode & 0o700 == 0o700
        model.chmod(0o755)


def test_a_model_without_embedded_gradients_is_copied(tmp_path):
    module = tf.Module()
    module.f = tf.function(lambda x: tf.sign(x), input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(module, tmp_path / "source")
    report = cg.saved_model.strip(tmp_path / "source", tmp_path / "target")
    assert report.replaced == {}
    assert [(c.name, c.verdict, c.detail) for c in report.comparisons] == [
        ("all", "not compared", "nothing was changed")
    ]
    assert contents(tmp_path / "target") == contents(tmp_path / "source")


def test_inputs_may_be_passed(source, tmp_path):
    x = np.array([[1.0, -2.0]])  # float64: they take the dtype of the signature.
    report = cg.saved_model.strip(source, tmp_path / "target", inputs={"serving_default": {"x": x}})
    assert [c.verdict for c in report.comparisons] == ["equal, bit for bit"] * 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"serving": {}},
            "saved_model.strip: inputs names an unknown signature; expected one of serving_default, got serving. Name "
            "signatures and their arguments as the model does.",
        ),
        (
            {"serving_default": {"z": 1.0}},
            "saved_model.strip: inputs names an unknown argument of serving_default; expected one of x, got z. Name signatures "
            "and their arguments as the model does.",
        ),
        (
            {".f": {"x": 1.0}},
            "saved_model.strip: inputs names an unknown signature; expected one of serving_default, got .f. Name signatures and "
            "their arguments as the model does.",
        ),
    ],
)
def test_inputs_that_name_nothing(source, tmp_path, inputs, message):
    assert_fails(ValueError, message, source, tmp_path / "target", inputs=inputs)


def test_inputs_where_there_is_nothing_to_name(tmp_path):
    message = (
        "saved_model.strip: inputs names an unknown {}; expected none, for {}, got {}. Name signatures and their arguments as the "
        "model does."
    )
    module = tf.Module()
    module.f = tf.function(lambda: {"y": cg.embed_gradient(tf.ones([]), 1.0, 2.0)}, input_signature=[])
    tf.saved_model.save(module, tmp_path / "source", signatures={})
    no_signatures = message.format("signature", "the model has no signatures", ".f")
    assert_fails(ValueError, no_signatures, tmp_path / "source", tmp_path / "target", inputs={".f": {}})
    tf.saved_model.save(module, tmp_path / "source", signatures=module.f)
    no_arguments = message.format("argument of serving_default", "it has no arguments", "x")
    inputs = {"serving_default": {"x": 1.0}}
    assert_fails(ValueError, no_arguments, tmp_path / "source", tmp_path / "target", inputs=inputs)


@pytest.mark.parametrize("x", [[[1.0, 2.0, 3.0]], "text"], ids=["shape", "dtype"])
def test_inputs_that_the_source_refuses(source, tmp_path, x):
    with pytest.raises(
        ValueError, match=r"^saved_model\.strip: serving_default of the source fails with the given inputs: "
    ):
        cg.saved_model.strip(source, tmp_path / "target", inputs={"serving_default": {"x": x}})
    assert not (tmp_path / "target").exists()


def test_a_source_that_takes_no_made_up_inputs_is_not_compared(tmp_path):
    module = tf.Module()

    def f(x):
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x > 1e6), [x])]):
            return {"y": cg.embed_gradient(tf.sign(x), x, x)}

    module.f = tf.function(f, input_signature=[tf.TensorSpec([None], name="x")])
    report = save_and_strip(module, tmp_path, signatures=module.f)
    for comparison in report.comparisons:
        assert comparison.verdict == "not compared"
        assert comparison.detail.startswith("it refuses inputs made from its input specs: InvalidArgumentError: ")
    given = {"serving_default": {"x": [2e6, 3e6]}}
    report = cg.saved_model.strip(tmp_path / "source", tmp_path / "again", inputs=given)
    assert {c.name: c.verdict for c in report.comparisons} == {
        "serving_default": "equal, bit for bit",
        ".f": "not compared",
    }


def test_sizes_that_the_source_does_not_take_are_tried_no_further(tmp_path):
    """Two rows are refused, one is taken."""
    module = tf.Module()

    def f(x):
        return cg.embed_gradient(tf.reshape(x, [1, 3]), 1.0, tf.reshape(x, [1, 3]))

    module.f = tf.function(f, input_signature=[tf.TensorSpec([None, 3])])
    report = save_and_strip(module, tmp_path)
    assert {c.verdict for c in report.comparisons} == {"equal, bit for bit"}


def test_steps_are_told(source, tmp_path):
    steps = []
    cg.saved_model.strip(source, tmp_path / "target", progress=steps.append)
    assert steps[0] == f"reading {source}"
    assert re.fullmatch(r"rewriting \d+ functions", steps[1])
    assert steps[2] == f"writing {tmp_path / 'target'}"
    assert steps[3:5] == ["checking: source, serving_default (1 of 2)", "checking: source, .f (2 of 2)"]
    assert steps[-1] == "checking: target, .f (2 of 2)"


def test_a_model_as_text_is_read_and_written_as_bytes(source, tmp_path):
    text = str(proto_of(source))
    (source / "saved_model.pb").unlink()
    (source / "saved_model.pbtxt").write_text(text)
    cg.saved_model.strip(source, tmp_path / "target")
    assert not [op for op in ops_of(tmp_path / "target") if op.startswith("CustomGradient")]
    assert not (tmp_path / "target" / "saved_model.pbtxt").exists()
