"""The examples of the README and of the docstrings run and print what they show, and the README names what exists."""

import doctest
import inspect
import json
import re
import subprocess
import sys

import pytest

import tf_cg_ops as cg
from benchmarks.harness.names import DECORATOR, EMBED, TF
from benchmarks.report import publish

from ..support import pages
from ..support.pages import public_objects
from ..support.processes import run_python
from ..support.sources import ROOT, source_files

README = (ROOT / "README.md").read_text()


BLOCKS = pages.python_blocks(README)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_each_example_prints_the_output_below_it(block, tmp_path):
    code, output = BLOCKS[block]
    assert output
    assert run_python(code, cwd=tmp_path).stdout == output


def test_the_quickstart_has_ten_lines():
    code, _ = BLOCKS[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("target", ["demo", "test", "test-all"])
def test_the_commands_exist(target):
    assert re.search(rf"\bmake {target}[ `]", README)
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


PUBLIC = {
    "clip_gradient": cg.clip_gradient,
    "custom_gradient": cg.custom_gradient,
    "custom_jvp": cg.custom_jvp,
    "custom_vjp": cg.custom_vjp,
    "embed_gradient": cg.embed_gradient,
    "linear.cg": cg.linear.cg,
    "linear.gmres": cg.linear.gmres,
    "numpy_function": cg.numpy_function,
    "grad_pass_through": cg.grad_pass_through,
    "implicit_fixed_point": cg.implicit_fixed_point,
    "implicit_minimum": cg.implicit_minimum,
    "implicit_root": cg.implicit_root,
    "recompute_grad": cg.recompute_grad,
    "reverse_gradient": cg.reverse_gradient,
    "scale_gradient": cg.scale_gradient,
    "straight_through": cg.straight_through,
    "watch_gradient": cg.watch_gradient,
    "compat.bayesflow.custom_gradient": cg.compat.bayesflow.custom_gradient,
    "compat.tfp_math.custom_gradient": cg.compat.tfp_math.custom_gradient,
    "saved_model.inspect": cg.saved_model.inspect,
    "saved_model.strip": cg.saved_model.strip,
    "sysconfig.get_lib": cg.sysconfig.get_lib,
    "sysconfig.gpu_kernels": cg.sysconfig.gpu_kernels,
    "testing.check_gradient": cg.testing.check_gradient,
}
LAYERS = {f"layers.{name}": getattr(cg.layers, name) for name in cg.layers.__all__}


# All docstrings with examples, the public modules included: a class of results need not have one.
DOCUMENTED = public_objects() | {
    name: module for name, module in sys.modules.items() if re.fullmatch(r"tf_cg_ops(\.[a-z]\w*)*", name)
}
# Results of functions: no user makes one.
WITHOUT_EXAMPLE = {
    *(f"tf_cg_ops.saved_model.{name}" for name in ("AdoptReport", "AdoptedGradient", "Comparison", "EmbeddedGradient")),
    *(f"tf_cg_ops.saved_model.{name}" for name in ("OverrideReport", "StripReport")),
    *(f"tf_cg_ops.testing.{name}" for name in ("Comparison", "GradientReport")),
}
WITH_EXAMPLES = [name for name, value in DOCUMENTED.items() if ">>> " in (value.__doc__ or "")]


def test_every_public_function_and_layer_has_an_example():
    have_none = set(public_objects()) - set(WITH_EXAMPLES)
    assert sorted(have_none) == sorted(WITHOUT_EXAMPLE)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_the_docstring_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Some save a model.
    examples = doctest.DocTestFinder(recurse=False).find(DOCUMENTED[name], name, globs={})
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in examples:
        runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_has_every_section(name):
    function = PUBLIC[name]
    sections = ["Compared with ", "Returns:"]
    if not name.startswith("sysconfig."):
        sections += ["Args:", "Raises:"]
    for section in sections:
        assert section in function.__doc__


@pytest.mark.parametrize("name", LAYERS)
def test_the_docstring_of_a_layer_has_every_section(name):
    sections = ("Args:", "Call arguments:") if inspect.isclass(LAYERS[name]) else ("Raises:",)
    for section in ("Compared with ", *sections):
        assert section in LAYERS[name].__doc__


def test_every_public_name_is_a_link_to_its_reference():
    functions = [name for name, value in public_objects().items() if inspect.isfunction(value)]
    for name in [*functions, *(f"tf_cg_ops.{name}" for name in LAYERS)]:
        short = name.removeprefix("tf_cg_ops.")
        assert re.search(rf"\[`{re.escape(short)}`\]\(docs/reference/\w+\.md#{re.escape(name)}\)", README), short


def test_every_test_that_the_readme_links_is_in_the_file_of_the_link():
    linked = re.findall(r"\[`(test_\w+)`\]\((\S+)\)", README)
    assert len(linked) >= 8
    for name, path in linked:
        assert f"def {name}(" in (ROOT / path).read_text(), name


def test_the_sentence_below_the_chart_is_that_of_the_results():
    run = json.loads((publish.RESULTS / "results.json").read_text())
    reached = {target["name"]: target["reached"] for target in run["targets"]}
    readme = " ".join(README.split())
    assert "A step of four whole models takes at most 5 % longer than with `tf.custom_gradient`." in readme
    steps = [case for case in run["cases"] if case["subject"] == "models" and case["unit"] == "s"]
    assert len(steps) == 4 * 3
    for medians in ({n: i["median"] for n, i in case["implementations"].items()} for case in steps):
        assert max(medians[name] for name in (EMBED, DECORATOR) if name in medians) <= 1.05 * medians[TF]
    assert "takes the same time for one element as for 100 million" in readme
    assert reached["forward, the same time for one element and for 100 million"] is True
    (tracing,) = [target for target in run["targets"] if target["name"] == "the decorator's trace time, forward"]
    assert "tracing a decorated function takes longer than with `tf.custom_gradient`" in readme
    assert tracing["measured"]["p20"] > 1


def test_every_test_that_the_docs_name_exists():
    tests = "".join(path.read_text() for path in source_files("tests/**/*.py"))
    for path in source_files("*.md", "docs/**/*.md"):
        for name in re.findall(r"`(test_\w+)`", path.read_text()):
            assert f"def {name}(" in tests, f"{path} names {name}"
