"""The program `tf-cg-ops`: its output, messages of one line, exit statuses, and interruptions."""

import importlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
import tf_cg_ops_cli
from tf_cg_ops import _command_line, saved_model
from tf_cg_ops._src.core import text

from ..support.processes import run_python
from ..support.saved_models import Model, gradient, ops_of, proto_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    module = Model()
    tf.saved_model.save(module, folder, signatures=module.f)
    return folder


def main(capsys, *arguments):
    """The status, output and errors of a command in this process."""
    status = _command_line.run(tf_cg_ops_cli.parse([str(argument) for argument in arguments]))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_strip_as_a_program(model, tmp_path):
    """As users start it, with TensorFlow's own defaults for its output."""
    silent = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")
    environment = {name: value for name, value in os.environ.items() if name not in silent}
    command = [pathlib.Path(sys.executable).with_name("tf-cg-ops"), "strip", model, "target"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "replaced  1 CustomGradientEmbed, 1 CustomGradientRule",
        "dropped   1 operation and 1 function that only gradients need",
        "compared  values of serving_default: equal, bit for bit",
        "compared  values of .f: equal, bit for bit",
        "written   target",
    ]
    assert result.stderr == ""  # TensorFlow has written nothing.
    assert "\033" not in result.stdout
    assert not [op for op in ops_of(tmp_path / "target") if op.startswith("CustomGradient")]


def test_a_folder_that_is_not_there_is_noticed_before_tensorflow_is_imported(tmp_path, capsys, monkeypatch):
    for name in ("tensorflow", "tf_cg_ops"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "tf_cg_ops_cli")
    program = importlib.import_module("tf_cg_ops_cli")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "model.keras").touch()
    for command, *rest in (["inspect"], ["audit"], ["strip", "target"], ["compare", "other"]):
        keras = "a file. For a file of Keras, load the model, write model.export('folder'), and pass that folder"
        for path, got in (("missing", "a path that does not exist"), ("file", "a file"), ("model.keras", keras)):
            monkeypatch.setattr(sys, "argv", ["tf-cg-ops", command, path, *rest])
            assert program.main() == 1
            said = f"tf-cg-ops {command}: '{path}' must be a folder that tf.saved_model.save wrote, got {got}.\n"
            assert capsys.readouterr() == ("", said)
    (tmp_path / "model").mkdir()
    for html in ("missing/a.html", "model"):
        monkeypatch.setattr(sys, "argv", ["tf-cg-ops", "audit", "model", "--html", html])
        assert program.main() == 1
        said = f"tf-cg-ops audit: --html must be a file in a folder that exists, got '{html}'.\n"
        assert capsys.readouterr() == ("", said)
    monkeypatch.setattr(sys, "argv", ["tf-cg-ops", "inspect"])
    with pytest.raises(SystemExit, match="2"):
        program.main()


RULE = (
    "must be an op type and a rule, such as Relu=guided, Relu=deconvnet, Round=pass_through, Exp=zero, elementwise=masked or "
    "Exp=clip:value=5, got '{}'"
)
PLACE = "must be a place and saved, autodiff, pass_through or zero, such as IdentityN=autodiff, got 'IdentityN'"
WRONG = {
    "": "the following arguments are required: COMMAND",
    "srtip": "argument COMMAND: invalid choice: 'srtip' (choose from demo, audit, inspect, adopt, override, strip, add-gradients, compare)",
    "strip a": "the following arguments are required: TARGET",
    "strip a b --nocheck": "unrecognized arguments: --nocheck",
    "--nocheck strip a b": "unrecognized arguments: --nocheck",
    "inspect": "the following arguments are required: PATH",
    "audit --intended spike": "the following arguments are required: MODEL",
    "audit --intended m --html": "argument --html: expected one argument",
    "add-gradients a --of y --wrt x b": "the following arguments are required: TARGET",
    "add-gradients --of y b --wrt x --lite": "the following arguments are required: SOURCE, TARGET",
    "override a b Relu=guided Relu=zero": "argument TYPE=RULE: must name 'Relu' once, got it 2 times",
    "add-gradients a b --of y --wrt x --rule Relu=zero --rule Relu=zero": "argument --rule: must name 'Relu' once, got it 2 times",
    "adopt a b --place c=saved d=zero c=zero": "argument --place: must name 'c' once, got it 2 times",
    "adopt a b --place IdentityN": f"argument --place: {PLACE}",
    "add-gradients a b": "the following arguments are required: --of, --wrt",
    "demo --output a": "argument --output: this demo writes no files. The demo that trains on real data is examples/demo.py in the "
    "source tree; make demo runs it there",
} | {
    f"override a b {rule}": f"argument TYPE=RULE: {RULE.format(rule)}"
    for rule in ("Relu", "=guided", "Relu=gided", "Relu=guided:value=1", "Relu=clip", "Relu=clip:value=x")
}


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_use_is_one_line_and_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        tf_cg_ops_cli.parse(arguments.split())
    command = "" if arguments in ("", "srtip", "--nocheck strip a b") else f" {arguments.split()[0]}"
    captured = capsys.readouterr()
    # How Python quotes the choices depends on its version.
    said = re.sub("choose from .*\\)", lambda choices: choices.group().replace("'", ""), captured.err)
    assert said == f"tf-cg-ops: wrong arguments: {WRONG[arguments]}. See: tf-cg-ops{command} --help\n"
    assert (caught.value.code, captured.out) == (2, "")


# The values of an option follow it, or repeat it. The arguments of a command come first, last or between.
READ = {
    "audit --intended spike m": {"path": "m", "intended": ["spike"]},
    "audit --html f --intended a b m": {"path": "m", "intended": ["a", "b"]},
    "audit --html f m --intended a b": {"path": "m", "intended": ["a", "b"]},
    "add-gradients m t --of y --wrt a b": {"of": ["y"], "wrt": ["a", "b"]},
    "add-gradients --of y z --wrt a b m t": {"source": "m", "target": "t", "of": ["y", "z"], "wrt": ["a", "b"]},
    "add-gradients m t --of y --of z --wrt a --wrt b c": {"of": ["y", "z"], "wrt": ["a", "b", "c"]},
    "add-gradients m t --of y --wrt a --output b c --given d e": {"outputs": ["b", "c"], "given": ["d", "e"]},
    "add-gradients m t --of y --wrt a": {"outputs": [], "given": [], "rules": None},
    "add-gradients m t --of y --wrt a --rule A=zero B=zero": {"rules": [("A", "zero", {}), ("B", "zero", {})]},
    "adopt m t --place a=saved b=zero": {"place": [("a", "saved"), ("b", "zero")]},
}


@pytest.mark.parametrize("arguments", READ)
def test_options_with_several_values(arguments):
    found = vars(tf_cg_ops_cli.parse(arguments.split()))
    assert {name: str(found[name]) for name in READ[arguments]} == {name: str(x) for name, x in READ[arguments].items()}


COMMANDS = ["", "demo", "audit", "inspect", "adopt", "override", "strip", "add-gradients", "compare"]


def test_help_lists_the_commands_in_the_order_in_which_one_needs_them_with_an_example(capsys):
    with pytest.raises(SystemExit, match="0"):
        tf_cg_ops_cli.parse(["--help"])
    listed, _, examples = capsys.readouterr().out.partition("Examples:\n")
    assert re.findall(r"^    ([a-z-]+)\b", listed, re.M) == COMMANDS[1:]
    assert re.findall(r"^  tf-cg-ops ([a-z-]+)", examples, re.M) == COMMANDS[1:]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_exit_statuses(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit, match="0"):
        tf_cg_ops_cli.parse([*command.split(), "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"Example: tf-cg-ops {command} " in text or "COMMAND --help" in text
    assert "Exit status: 0 on success, 1 on failure, 2 for wrong arguments." in text


TRIPLED = tf.custom_gradient(lambda x: (tf.identity(x), lambda dy: 3.0 * dy))
SILU_GRADIENT = [0.5, -10.0 / (1.0 + np.exp(-2.0))]
# A function, a command for a model of it, its new gradient at (0, 2) for the upstream (1, -10), and what is printed.
COPYING = [
    (
        lambda x: tf.exp(tf.nn.relu(x)),
        "override Relu=pass_through Exp=clip:value=5",
        [1.0, -5.0],
        "overridden  1 Exp, 1 Relu",
    ),
    (tf.nn.silu, "override Sigmoid=zero Tan=zero --inside --ignore-unmatched", SILU_GRADIENT, "overridden  2 Sigmoid"),
    (lambda x: tf.where(x > 0, tf.math.log(x), 0.0), "override elementwise=masked", [0.0, -5.0], "overridden  1 Log"),
    (
        lambda x: tf.exp(tf.nn.relu(x)),
        "override elementwise=pass_through Relu=clip:value=5",
        [0.0, -5.0],
        "overridden  1 Exp, 1 Relu",
    ),
    (
        lambda x: TRIPLED(TRIPLED(x)),
        "adopt",
        [9.0, -90.0],
        "autodiff  gradients of .f: different by 0.89 of the largest",
    ),
    (
        lambda x: TRIPLED(TRIPLED(x)),
        "adopt --gradients autodiff --place IdentityN=pass_through --no-check",
        [1.0, -10.0],
        "/IdentityN: pass_through",
    ),
    (
        lambda x: TRIPLED(TRIPLED(x)),
        "adopt --place IdentityN_1=autodiff --no-check",
        [3.0, -30.0],
        "/IdentityN: saved",
    ),
    (lambda x: cg.scale_gradient(x, 2.0), "strip --no-check", [1.0, -10.0], "nothing: the check was turned off"),
]


@pytest.mark.parametrize(("function", "command", "expected", "line"), COPYING, ids=[row[1] for row in COPYING])
def test_a_command_that_writes_a_copy(function, command, expected, line, tmp_path, capsys):
    module, target = tf.Module(), tmp_path / "target"
    module.f = tf.function(function, input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(module, tmp_path / "source", signatures={})
    name, *options = command.split()
    status, out, err = main(capsys, name, tmp_path / "source", target, *options)
    assert status == 0, err
    assert line in out
    assert re.search(rf"^written +{target}$", out, re.M)
    found = gradient(tf.saved_model.load(target).f, [0.0, 2.0], [1.0, -10.0])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


GRADIENTS = ["--of", "y", "--wrt", "x", "--name", "train", "--no-check"]


@pytest.mark.parametrize(
    ("options", "inputs", "dx", "w"),
    [
        (["--lite", "--flex"], {"d_y": [1.0, -10.0]}, [3.0, -10.0], [3.0, 1.0]),
        (["--rule", "Mul=zero"], {"d_y": [1.0, -10.0]}, [0.0, 0.0], [3.0, 1.0]),
        (["--loss", "mse", "--update", "0.5", "--wrt", "variables"], {"target": [5.0, 0.0]}, [3.0, 4.0], [2.0, -7.0]),
    ],
    ids=["lite", "rule", "training"],
)
def test_add_gradients_prints_a_table(options, inputs, dx, w, tmp_path, capsys):
    module, x = tf.Module(), tf.constant([2.0, 4.0])
    module.w = tf.Variable([3.0, 1.0], name="w")
    module.f = tf.function(lambda x: {"y": module.w * x}, input_signature=[tf.TensorSpec([2], name="x")])
    tf.saved_model.save(module, tmp_path / "source", signatures=module.f)
    status, out, err = main(capsys, "add-gradients", tmp_path / "source", tmp_path / "target", *GRADIENTS, *options)
    assert status == 0, err
    assert re.search(r"^output +d_x +float32 \[2\] +train:0 +gradient of x$", out, re.M)
    loaded = tf.saved_model.load(tmp_path / "target")
    found = loaded.signatures["train"](x=x, **{name: tf.constant(array) for name, array in inputs.items()})
    np.testing.assert_allclose(found["d_x"], dx)
    np.testing.assert_allclose(loaded.w, w)


def test_compare_with_inputs_from_a_file(model, tmp_path, capsys):
    """The copy has no custom gradient."""
    main(capsys, "strip", model, tmp_path / "stripped")
    for name in ("x", "serving_default/x"):
        np.savez(tmp_path / "inputs.npz", **{name: np.array([[3.0, -4.0]])})
        status, out, err = main(capsys, "compare", model, tmp_path / "stripped", "--inputs", tmp_path / "inputs.npz")
        assert (status, err) == (1, "")
        assert out.splitlines() == [
            "values of serving_default: equal, bit for bit",
            "gradients of serving_default: different by 1 of the largest element (input x)",
            "values of .f: equal, bit for bit",
            "gradients of .f: different by 1 of the largest element (input 0)",
        ]
    status, out, err = main(capsys, "compare", model, model)
    assert (status, err, {line.partition(": ")[2] for line in out.splitlines()}) == (0, "", {"equal, bit for bit"})


def test_a_file_without_inputs_is_an_error(model, tmp_path, capsys):
    (tmp_path / "text.npz").write_text("1.0,2.0")
    with (tmp_path / "single.npz").open("wb") as opened:
        np.save(opened, np.ones(3))
    np.savez(tmp_path / "pickled.npz", x=np.array([{}]))
    np.savez(tmp_path / "unnamed.npz", np.ones([3, 2]))
    np.savez(tmp_path / "wrong.npz", **{"x": np.ones([3, 2]), "other/x": np.ones(2), "z": np.ones(2)})
    np.savez(tmp_path / "wide.npz", x=np.ones([3, 5]))
    np.savez(tmp_path / "words.npz", x=np.array([["a", "b"]]))
    named = "'{}' must be an .npz file with arrays named 'x', got {}. Write it with numpy.savez(path, NAME=array)."
    fitting = "'serving_default' must get inputs like 'x': float32 (None, 2), got: {}."
    for kind, got in {
        "missing": "a path that does not exist",
        "text": "a file of another kind",
        "single": "a file of another kind",
        "pickled": "Object arrays cannot be loaded when allow_pickle=False",
        "unnamed": "'arr_0'",
        "wrong": "'other/x', 'z'",
        "wide": "Shape of tensor input [3,5] is not compatible with expected shape [?,2]",
        "words": "could not convert string to float: np.str_('a')",
    }.items():
        file = tmp_path / f"{kind}.npz"
        for command, *models in (["compare", model, model], ["audit", model]):
            status, out, err = main(capsys, command, *models, "--inputs", file)
            said = fitting.format(got) if kind in ("wide", "words") else named.format(file, got)
            assert (status, out, err) == (1, "", f"tf-cg-ops {command}: {said}\n")


def twice(folder, **functions):
    """A model of these functions of a float32 `x` of two columns, which are its signatures."""
    module = tf.Module()
    module.functions = {
        name: tf.function(f, input_signature=[tf.TensorSpec([None, 2], name="x")]) for name, f in functions.items()
    }
    tf.saved_model.save(module, folder, signatures=module.functions)
    return folder


def test_audit_casts_inputs_and_says_which_are_missing(tmp_path, capsys):
    @cg.custom_gradient
    def square(x):
        return x**2, lambda dy: 2.0 * x * dy

    x, z = tf.TensorSpec([None], name="x"), tf.TensorSpec([None], name="z")
    module = tf.Module()
    module.f = tf.function(lambda x, z: {"y": square(x) * z}, input_signature=[x, z])
    tf.saved_model.save(module, tmp_path / "model", signatures=module.f)
    for dtype in (np.float64, np.float16, np.int64):
        np.savez(tmp_path / "inputs.npz", x=np.ones(3, dtype), **{"serving_default/z": np.ones(3, dtype)})
        status, out, err = main(capsys, "audit", tmp_path / "model", "--inputs", tmp_path / "inputs.npz")
        assert (status, err) == (0, "1 custom gradient\n")
        assert "1 right" in out
    np.savez(tmp_path / "inputs.npz", x=np.ones(3))
    status, out, err = main(capsys, "audit", tmp_path / "model", "--inputs", tmp_path / "inputs.npz")
    assert (status, out) == (1, "")
    assert err == f"tf-cg-ops audit: '{tmp_path / 'inputs.npz'}' must also have 'z' of 'serving_default'.\n"


def test_compare_fails_if_a_model_refuses_the_inputs(tmp_path, capsys):
    def of_batches_of_two(x):
        with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(x)[0], 2)]):
            return {"y": 2.0 * x}

    folder = twice(tmp_path / "model", f=of_batches_of_two)
    for size, status in {2: 0, 3: 1}.items():
        np.savez(tmp_path / "inputs.npz", x=np.ones([size, 2]))
        found, out, _ = main(capsys, "compare", folder, folder, "--inputs", tmp_path / "inputs.npz")
        assert found == status
        assert ("values of f: not compared (the first model raises InvalidArgumentError" in out) == bool(status)
    assert main(capsys, "compare", folder, folder)[0] == 0
    proto = proto_of(folder)
    proto.meta_graphs.add().CopyFrom(proto.meta_graphs[0])
    proto.meta_graphs[1].meta_info_def.tags.append("again")
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    found, out, _ = main(capsys, "compare", folder, folder, "--inputs", tmp_path / "inputs.npz")
    assert (found, "values of f of serve, again: not compared" in out) == (1, True)


def test_compare_says_which_names_each_model_has(tmp_path, capsys):
    models = {
        "y": twice(tmp_path / "y", f=lambda x: {"y": x}),
        "z": twice(tmp_path / "z", f=lambda x: {"z": x}),
        "y, z": twice(tmp_path / "yz", f=lambda x: {"y": x, "z": x}),
        "g": twice(tmp_path / "g", g=lambda x: {"y": x}),
        "sum": twice(tmp_path / "sum", f=lambda x: {"y": tf.reduce_sum(x, 0)}),
    }
    module = tf.Module()
    module.f = tf.function(lambda q: {"y": q}, input_signature=[tf.TensorSpec([None, 2], name="q")])
    tf.saved_model.save(module, tmp_path / "q", signatures={"f": module.f})
    np.savez(tmp_path / "inputs.npz", x=np.ones([3, 2]))
    for other, options, said in (
        (models["z"], [], "different (the first model has 'output y', the second model 'output z')"),
        (models["y, z"], [], "different (the first model has 'output y', the second model 'output y', 'output z')"),
        (models["g"], [], "different (the second model does not have it)"),
        (models["sum"], [], "different (output y is float32 [2, 2] in the first model, float32 [2] in the second)"),
        (tmp_path / "q", ["--inputs", tmp_path / "inputs.npz"], "different (the second model takes 'q', not 'x')"),
    ):
        status, out, err = main(capsys, "compare", models["y"], other, *options)
        assert (status, err, out.splitlines()[0]) == (1, "", f"values of f: {said}")


# A command for a model with a silu, and what it says, in the words of the command.
NOT_IN_PYTHON = {
    "override Sigmoid=zero": "'IdentityN' (1). Pass --inside to replace their gradients",
    "add-gradients --of y --wrt x --rule Sigmoid=zero": "First use override with --inside to replace their",
    "add-gradients --of y --wrt x --rule Sin=zero": "Name one of these types, write elementwise, or leave the rule out.",
    "add-gradients --of y --wrt x --flex": "flex must come with --lite, got it alone.",
    "add-gradients --of y --wrt x --output r": "--output must be values inside, such as 'inner:relu', got 'r'.",
    "add-gradients --of y --wrt x --given r": "--given must be values inside, such as 'inner:relu', got 'r'.",
    "adopt --place f=saved": "--place must be places of tf.custom_gradient in ",
}


@pytest.mark.parametrize("command", NOT_IN_PYTHON)
def test_messages_are_in_the_words_of_the_command(command, tmp_path, capsys):
    source = twice(tmp_path / "source", serving_default=lambda x: {"y": tf.nn.silu(tf.square(x))})
    name, *rest = command.split()
    status, out, err = main(capsys, name, source, tmp_path / "target", *rest)
    assert (status, out) == (1, "")
    assert err.startswith(f"tf-cg-ops {name}: ")
    assert NOT_IN_PYTHON[command] in err
    assert not [part for part in ("saved_model.", "=True", "key", "tf_cg_ops") if part in err]
    assert not text.for_program.get()


def test_audit_prints_its_advice_in_the_words_of_the_command(tmp_path, capsys):
    @cg.custom_gradient
    def spike(x):
        return tf.cast(x > 0.0, x.dtype), lambda dy: dy

    source = twice(tmp_path / "source", f=lambda x: {"y": spike(x)})
    assert "Declare an intended gradient with --intended." in main(capsys, "audit", source)[1]
    assert "--intended says so" in main(capsys, "audit", "--intended", "spike", source)[1]
    assert "audit: --intended must have names or places" in main(capsys, "audit", source, "--intended", "x")[2]


@pytest.mark.filterwarnings("always")
def test_warnings_are_lines_in_the_words_of_the_command(tmp_path, capsys):
    source = twice(tmp_path / "source", f=lambda x: {"y": tf.exp(x) @ tf.eye(2)})
    status, _, err = main(capsys, "override", source, tmp_path / "target", "elementwise=masked")
    assert status == 0
    assert err.startswith("tf-cg-ops override: the rule 'masked' does not reach MatMul (1) in ")
    assert err.count("\n") == 1


def test_host_functions_and_random_results_are_shown(tmp_path, capsys):
    module = tf.Module()
    module.f = tf.function(
        lambda x: cg.embed_gradient(tf.numpy_function(np.random.normal, [x], tf.double), x, x),
        input_signature=[tf.TensorSpec([2], tf.float64)],
    )
    tf.saved_model.save(module, tmp_path / "source", signatures={})
    status, out, _ = main(capsys, "strip", tmp_path / "source", tmp_path / "target")
    assert status == 0
    _, _, compared, attention, written = out.splitlines()
    assert compared == "compared   values of .f: not compared (the first model gives different results each time)"
    assert re.fullmatch(
        r"attention  PyFunc in __inference_<lambda>_\d+ calls Python, and fails outside of the process that made the model",
        attention,
    )
    assert written == f"written    {tmp_path / 'target'}"


def test_inspect_shows_a_table_or_json(model, capsys):
    status, out, err = main(capsys, "inspect", model)
    assert (status, err) == (0, "")
    head, custom, embedded = (line.split() for line in out.splitlines())
    assert head == ["function", "operation", "kind", "of", "value", "gradients", "orders", "rule"]
    assert embedded[1:] == ["CustomGradientEmbed", "embed_gradient", "float32[?,", "2]", "1", "any"]
    assert custom[1:7] == ["CustomGradientRule", "custom_gradient", "<lambda>", "float32[?,", "2]", "1"]
    assert custom[-3:] == ["any", "1", "operation"]
    status, out, _ = main(capsys, "inspect", "--json", model)
    found = json.loads(out)
    assert [(gradient["kind"], gradient["shapes"]) for gradient in found] == [
        ("custom_gradient", [[None, 2]]),
        ("embed_gradient", [[None, 2]]),
    ]
    names = "function node kind user_function dtypes shapes inputs_with_gradients rule_ops orders error"
    assert (status, list(found[0])) == (0, names.split())


def test_inspect_where_there_is_no_gradient(tmp_path, capsys):
    tf.saved_model.save(tf.Module(), tmp_path / "model")
    for options, said in (([], "The model has no custom gradients.\n"), (["--json"], "[]\n")):
        assert main(capsys, "inspect", *options, tmp_path / "model") == (0, said, "")


def test_an_unexpected_error_is_reported_in_one_line(capsys, monkeypatch):
    def fail(path):
        raise RuntimeError("disk\non fire")

    monkeypatch.setattr(saved_model, "inspect", fail)
    message = (
        "tf-cg-ops inspect: unexpected error: RuntimeError: disk. Call the function of that name in Python to see the "
        "traceback, and please report it.\n"
    )
    assert main(capsys, "inspect", "model") == (1, "", message)


REPORTS = "tf-cg-ops {}: the operating system reports: {}: '{}'. Check that path, its permissions and the space on the disk.\n"


def test_files_in_the_way_are_reported_in_one_line(model, tmp_path, capsys):
    """Like errors of the operating system: a list of them, from a copy, and a single one."""
    source = shutil.copytree(model, tmp_path / "source")
    for name in ("link", "other"):
        (source / name).symlink_to(tmp_path / "nowhere")
    status, out, err = main(capsys, "strip", source, tmp_path / "target")
    assert (status, out) == (1, "")
    assert err in [REPORTS.format("strip", "No such file or directory", source / name) for name in ("link", "other")]
    assert list(tmp_path.iterdir()) == [source]
    status, out, err = main(capsys, "audit", model, "--html", tmp_path)
    assert status == 1
    assert "2 custom gradients" in out, "the table is not lost"
    assert err.endswith("\n" + REPORTS.format("audit", "Is a directory", tmp_path))


FULL = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
CLOSED = "import os\nreading, writing = os.pipe()\nos.close(reading)\nos.dup2(writing, 1)"
NOT_PRINTED = "tf-cg-ops {}: the output cannot be printed: No space left on device. Redirect it to another place; {}.\n"


INTERRUPTED = "tf-cg-ops strip: interrupted by {}. Run it again; no half-written target is left."


def test_ctrl_c_while_tensorflow_is_imported_is_one_line(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (tmp_path / "a").mkdir()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-m", "tf_cg_ops_cli", "strip", "a", "b"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        # A program that a shell starts in the background ignores the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (result.returncode, result.stdout, result.stderr) == (1, "", INTERRUPTED.format("Ctrl-C") + "\n")


# Runs some code, then a program. (A program that a shell starts in the background ignores Ctrl-C.)
PROGRAM = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
first, program, *sys.argv[1:] = sys.argv[1:]
exec(first)
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""
KILL = "from tf_cg_ops.saved_model import _changed_copy as c; c.run_model = lambda *_, **__: os.kill(os.getpid(), signal.{})"
# The program, the code before, the status, what it says, and what is in the folder afterwards. It prints nothing else.
ENDS = {
    "strip, full": ("tf_cg_ops_cli", FULL, 1, NOT_PRINTED.format("strip", "'target' is written"), ["target"]),
    "inspect, full": ("tf_cg_ops_cli", FULL, 1, NOT_PRINTED.format("inspect", "the model was not changed"), []),
    "strip, closed": ("tf_cg_ops_cli", CLOSED, 0, "", ["target"]),
    "strip, SIGTERM": ("tf_cg_ops_cli", KILL.format("SIGTERM"), 1, INTERRUPTED.format("SIGTERM") + "\n", []),
    "strip, SIGINT": ("tf_cg_ops", KILL.format("SIGINT"), 1, INTERRUPTED.format("Ctrl-C") + "\n", []),
}


@pytest.mark.parametrize("case", ENDS)
def test_full_outputs_readers_that_stop_and_interruptions(case, model, tmp_path):
    """A full output is a failure, a reader that stops is none, and an interruption leaves nothing behind."""
    command, (program, first, status, said, left) = case.partition(",")[0], ENDS[case]
    target = ["target"] if command == "strip" else []
    result = run_python(PROGRAM, first, program, command, model, *target, cwd=tmp_path, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (status, "", said)
    assert [path.name for path in tmp_path.iterdir()] == left
