"""The program `tf-cg-ops` with its commands strip, inspect and demo: output, messages of one line, exit statuses."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
import tf_cg_ops_cli
from tf_cg_ops import saved_model
from tf_cg_ops._src import command_line

from ..support.saved_models import break_values, contents, ops_of


class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def f(self, x):
        return {"y": cg.custom_gradient(lambda x: (cg.embed_gradient(tf.sign(x), x, x), lambda dy: dy))(x)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    module = Model()
    tf.saved_model.save(module, folder, signatures=module.f)
    return folder


PROGRAMS = {
    "script": [pathlib.Path(sys.executable).with_name("tf-cg-ops")],
    "package": [sys.executable, "-m", "tf_cg_ops"],
}


def run(*arguments, cwd, program="script"):
    """The program as users start it, with TensorFlow's own defaults for what it writes."""
    silent = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")
    environment = {name: value for name, value in os.environ.items() if name not in silent}
    command = [*map(str, PROGRAMS[program]), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def main(capsys, *arguments):
    """The same in this process."""
    status = command_line.run(tf_cg_ops_cli.parse([str(argument) for argument in arguments]))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_strip_as_a_program(model, tmp_path):
    result = run("strip", model, "target", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "replaced   1 CustomGradientEmbed, 1 CustomGradientRule",
        "dropped    1 operation and 1 function that served gradients",
        "compared   serving_default: equal, bit for bit",
        "compared   .f: equal, bit for bit",
        "written    target",
    ]
    steps = result.stderr.splitlines()
    assert steps[0] == f"reading {model}"
    assert steps[2] == "writing target"
    assert steps[3] == "checking: source, serving_default (1 of 2)"
    assert len(steps) == 9  # Nothing of TensorFlow's own.
    assert "\033" not in result.stdout + result.stderr
    assert not [op for op in ops_of(tmp_path / "target") if op.startswith("CustomGradient")]


def test_the_package_as_a_program_prints_the_same_table(model, tmp_path):
    script, package = (run("inspect", model, cwd=tmp_path, program=program) for program in PROGRAMS)
    assert (package.returncode, package.stdout) == (0, script.stdout)
    assert script.stderr == ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_failure_as_a_program(tmp_path, program):
    result = run("strip", "missing", "target", cwd=tmp_path, program=program)
    assert result.returncode == 1
    assert result.stdout == ""
    said = result.stderr[result.stderr.index("reading") :]  # The package imports TensorFlow before it can silence it.
    assert said == (result.stderr if program == "script" else said)
    assert said == (
        "reading missing\n"
        "saved_model.strip: there is no SavedModel at 'missing'; expected a folder with saved_model.pb, got nothing there. "
        "Pass the folder that tf.saved_model.save wrote.\n"
    )


# An import of TensorFlow ends these with another status, and a traceback.
WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
import tf_cg_ops_cli
sys.exit(tf_cg_ops_cli.main())
"""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["srtip"], "argument COMMAND: invalid choice: 'srtip' (choose from strip, override, adopt, inspect, demo)"),
        (["strip", "a"], "the following arguments are required: TARGET"),
        (["strip", "a", "b", "--nocheck"], "unrecognized arguments: --nocheck"),
        (["inspect"], "the following arguments are required: PATH"),
        *[
            (
                ["override", "a", "b", rule],
                f"argument TYPE=RULE: '{rule}'; expected a type and a rule such as Relu=guided, Relu=deconvnet, "
                "Round=pass_through, Exp=zero or Exp=clip:value=5",
            )
            for rule in ("Relu", "=guided", "Relu=gided", "Relu=guided:value=1", "Relu=clip", "Relu=clip:value=x")
        ],
        (["override", "a", "b"], "the following arguments are required: TYPE=RULE"),
        (
            ["adopt", "a", "b", "--place", "IdentityN"],
            "argument --place: 'IdentityN'; expected a place and one of saved, autodiff, pass_through and zero, such as "
            "IdentityN=autodiff",
        ),
    ],
    ids=" ".join,
)
def test_wrong_use_is_one_line_and_2_before_tensorflow_is_imported(arguments, complaint, tmp_path):
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    program = "tf-cg-ops" + (
        f" {arguments[0]}" if arguments and arguments[0] in ("strip", "override", "adopt", "inspect") else ""
    )
    if complaint.startswith("unrecognized"):
        program = "tf-cg-ops"  # Python asks the outer parser about what no parser knows.
    # How Python quotes the choices depends on its version.
    said = re.sub("choose from .*\\)", lambda choices: choices.group().replace("'", ""), result.stderr)
    assert said == (f"tf_cg_ops: wrong arguments: {complaint}. See: {program} --help\n")
    assert (result.returncode, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("strip", ["SOURCE", "TARGET", "--no-check", "--inputs FILE", "Example: tf-cg-ops strip"]),
        ("inspect", ["PATH", "--json", "Example: tf-cg-ops inspect"]),
        ("demo", ["--output FOLDER", "Example: tf-cg-ops demo"]),
        ("override", ["SOURCE", "TARGET", "TYPE=RULE", "clip:norm=LIMIT", "Example: tf-cg-ops override"]),
        ("adopt", ["SOURCE", "TARGET", "--gradients", "--place NAME=GRADIENT", "Example: tf-cg-ops adopt"]),
        ("", ["strip", "override", "adopt", "inspect", "demo", "COMMAND --help"]),
    ],
)
def test_help_says_everything(command, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as caught:
        tf_cg_ops_cli.parse([*command.split(), "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for word in [*words, "Exit statuses: 0 if it succeeded, 1 if it failed, 2 if the arguments are wrong."]:
        assert word in text


@pytest.mark.parametrize("arguments", [["srtip"], ["strip", "--help"]], ids=" ".join)
def test_the_package_as_a_program_parses_the_same_arguments(arguments, tmp_path):
    script, package = (run(*arguments, cwd=tmp_path, program=program) for program in PROGRAMS)
    assert (package.returncode, package.stdout) == (script.returncode, script.stdout)
    assert package.stderr.endswith(script.stderr)


def test_importing_the_package_reads_no_arguments(tmp_path):
    """In another program that is started with -m."""
    package = tmp_path / "other"
    package.mkdir()
    (package / "__init__.py").write_text("import tf_cg_ops\n")
    (package / "__main__.py").write_text("import sys; print(sys.argv[1:])\n")
    command = [sys.executable, "-m", "other", "--no-such-argument"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "['--no-such-argument']\n")


def test_a_failed_check_is_1_and_leaves_no_target(model, tmp_path, capsys, monkeypatch):
    break_values(monkeypatch)
    status, out, err = main(capsys, "strip", model, tmp_path / "target")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == (
        "saved_model.strip: serving_default of the new model gives another output y than that of the source. Nothing "
        "was written; please report it, with the model."
    )
    assert list(tmp_path.iterdir()) == []


def test_without_a_check_it_says_so(model, tmp_path, capsys):
    status, out, _ = main(capsys, "strip", "--no-check", model, tmp_path / "target")
    assert status == 0
    assert "compared   nothing: the check was turned off" in out.splitlines()


def test_a_model_that_holds_nothing_of_ours_is_copied_and_that_is_said(model, tmp_path, capsys):
    cg.saved_model.strip(model, tmp_path / "once")
    status, out, _ = main(capsys, "strip", tmp_path / "once", tmp_path / "twice")
    assert status == 0
    assert out.splitlines()[:2] == [
        "replaced   0 operations: the model holds none of this library, and was copied as it is",
        "compared   all: not compared: nothing was changed",
    ]
    assert contents(tmp_path / "twice") == contents(tmp_path / "once")


def test_host_functions_and_what_is_not_compared_are_shown(tmp_path, capsys):
    module = tf.Module()
    module.f = tf.function(
        lambda x: cg.embed_gradient(tf.numpy_function(np.random.normal, [x], tf.double), x, x),
        input_signature=[tf.TensorSpec([2], tf.float64)],
    )
    tf.saved_model.save(module, tmp_path / "source")
    status, out, _ = main(capsys, "strip", tmp_path / "source", tmp_path / "target")
    assert status == 0
    lines = out.splitlines()
    assert "compared   .f: not compared: the source gives other outputs each time, as random operations do" in lines
    (attention,) = [line for line in lines if line.startswith("attention")]
    assert attention.endswith(" calls Python, and fails outside of the process that made the model")


def test_override(tmp_path, capsys):
    module = tf.Module()
    module.f = tf.function(lambda x: tf.exp(tf.nn.relu(x)), input_signature=[tf.TensorSpec([3])])
    tf.saved_model.save(module, tmp_path / "source")
    arguments = ["Relu=guided", "Exp=clip:value=5"]
    status, out, err = main(capsys, "override", tmp_path / "source", tmp_path / "target", *arguments)
    assert status == 0, err
    assert out.splitlines() == [
        "overridden  1 Exp, 1 Relu",
        "compared    serving_default: equal, bit for bit",
        "compared    .f: equal, bit for bit",
        f"written     {tmp_path / 'target'}",
    ]
    x = tf.constant([-1.0, 0.5, 3.0])
    loaded = tf.saved_model.load(tmp_path / "target")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.f(x)
    dx = tape.gradient(y, x, output_gradients=tf.constant([1.0, -10.0, 1.0]))
    np.testing.assert_allclose(dx, [0.0, 0.0, 5.0])

    status, out, err = main(capsys, "override", tmp_path / "source", tmp_path / "again", "ReLU=guided")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith("saved_model.override: rules matched no op of ")
    assert err.endswith("Did you mean 'Relu'?\n")
    assert not (tmp_path / "again").exists()


def test_adopt(tmp_path, capsys):
    @tf.custom_gradient
    def tripled(x):
        return tf.identity(x), lambda dy: 3.0 * dy

    module = tf.Module()
    module.f = tf.function(lambda x: tripled(tripled(x)), input_signature=[tf.TensorSpec([2])])
    source = tmp_path / "source"
    tf.saved_model.save(module, source)
    for number, (arguments, expected) in enumerate(
        [
            ([], 9.0),
            (["--gradients", "autodiff"], 1.0),
            (["--place", "IdentityN_1=autodiff"], 3.0),
            (["--place", "IdentityN=zero"], 0.0),
            (["--gradients", "autodiff", "--place", "IdentityN=pass_through"], 1.0),
        ]
    ):
        target = tmp_path / str(number)
        status, out, err = main(capsys, "adopt", *arguments, source, target)
        assert status == 0, err
        loaded = tf.saved_model.load(target)
        x = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = loaded.f(x)
        dx = tape.gradient(y, x, output_gradients=tf.constant([1.0, -10.0]))
        np.testing.assert_allclose(dx, expected * np.array([1.0, -10.0]))
        if not arguments:
            first, second, *_, last = out.splitlines()
            assert first.startswith("adopted    __inference_")
            assert first.endswith("/IdentityN: saved; the file and autodiff differ by 0.67 of the largest element")
            assert second.endswith("/IdentityN_1: saved; the file and autodiff differ by 0.67 of the largest element")
            assert last == f"written    {target}"
    status, out, _ = main(capsys, "adopt", tmp_path / "1", tmp_path / "again")
    nothing = "adopted    nothing: the model holds no gradient of tf.custom_gradient, and was copied as it is"
    assert out.splitlines()[0] == nothing


@pytest.mark.parametrize("name", ["x", "serving_default/x"])
def test_inputs_from_a_file(model, tmp_path, capsys, monkeypatch, name):
    np.savez(tmp_path / "inputs.npz", **{name: np.array([[3.0, -4.0]])})
    given = []
    strip = saved_model.strip
    monkeypatch.setattr(saved_model, "strip", lambda *args: (given.append(args[3]), strip(*args))[1])
    status, _, err = main(capsys, "strip", "--inputs", tmp_path / "inputs.npz", model, tmp_path / "target")
    assert status == 0, err
    assert given[0].keys() == {"serving_default"}
    np.testing.assert_array_equal(given[0]["serving_default"]["x"], [[3.0, -4.0]])


@pytest.mark.parametrize("kind", ["missing", "text", "single", "pickled"])
def test_a_file_without_inputs_is_an_error(model, tmp_path, capsys, kind):
    file = tmp_path / f"{kind}.npz"
    if kind == "text":
        file.write_text("text")
    elif kind == "single":
        with file.open("wb") as opened:
            np.save(opened, np.ones(3))
    elif kind == "pickled":
        np.savez(file, x=np.array([{}]))
    status, out, err = main(capsys, "strip", "--inputs", file, model, tmp_path / "target")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith(
        f"saved_model.strip: '{file}' holds no inputs; expected an .npz file with arrays named SIGNATURE/ARGUMENT or "
        "ARGUMENT, got "
    )
    assert err.endswith(". Write it with numpy.savez.\n")
    assert not (tmp_path / "target").exists()


def test_inspect_shows_a_table(model, capsys):
    status, out, err = main(capsys, "inspect", model)
    assert (status, err) == (0, "")
    head, embedded, custom = out.splitlines()
    assert head.split() == ["function", "operation", "kind", "of", "value", "gradients", "rule"]
    assert embedded.split()[1:] == ["CustomGradientEmbed", "embed_gradient", "float32[?,", "2]", "1"]
    assert custom.split()[1:7] == ["CustomGradientRule", "custom_gradient", "<lambda>", "float32[?,", "2]", "1"]
    assert custom.split()[-2:] == ["1", "operation"]


def test_inspect_as_json(model, capsys):
    status, out, _ = main(capsys, "inspect", "--json", model)
    assert status == 0
    found = json.loads(out)
    assert [gradient["kind"] for gradient in found] == ["embed_gradient", "custom_gradient"]
    assert found[0]["shapes"] == [[None, 2]]
    assert found[0].keys() == {
        "function",
        "node",
        "kind",
        "user_function",
        "dtypes",
        "shapes",
        "inputs_with_gradients",
        "rule_ops",
        "error",
    }


def test_inspect_of_nothing(tmp_path, capsys):
    tf.saved_model.save(tf.Module(), tmp_path / "model")
    assert main(capsys, "inspect", tmp_path / "model") == (0, "The model holds no embedded gradients.\n", "")
    assert main(capsys, "inspect", "--json", tmp_path / "model") == (0, "[]\n", "")


def test_inspect_shows_why_there_is_no_gradient(tmp_path, capsys):
    module = tf.Module()
    function = cg.custom_gradient(lambda x: (x * 1.0, lambda dy: dy.numpy()))
    module.f = tf.function(function, input_signature=[tf.TensorSpec([])])
    tf.saved_model.save(module, tmp_path / "model")
    status, out, _ = main(capsys, "inspect", tmp_path / "model")
    assert status == 0
    lines = out.splitlines()
    assert lines[1].endswith("error, see below")
    assert lines[3].startswith("CustomGradientRule: custom_gradient: the gradient of '<lambda>' is not there; ")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(28, "No space left on device", "some/file"),
            "tf_cg_ops inspect: the operating system reports: No space left on device: 'some/file'. Check that path, its "
            "permissions and the space on the disk.\n",
        ),
        (
            shutil.Error([("a", "b", str(FileNotFoundError(2, "No such file or directory", "a"))), ("c", "d", "no")]),
            "tf_cg_ops inspect: the operating system reports: No such file or directory: 'a'. Check that path, its "
            "permissions and the space on the disk.\n",
        ),
        (
            KeyboardInterrupt(),
            "tf_cg_ops inspect: interrupted by Ctrl-C. Run it again; no command leaves a half-written target.\n",
        ),
        (
            RuntimeError("disk\non fire"),
            "tf_cg_ops inspect: unexpected error: RuntimeError: disk. Call the function of that name in Python to see the "
            "traceback, and please report it.\n",
        ),
    ],
)
def test_every_error_is_reported_in_one_line(capsys, monkeypatch, error, message):
    def fail(path):
        raise error

    monkeypatch.setattr(saved_model, "inspect", fail)
    assert main(capsys, "inspect", "model") == (1, "", message)
