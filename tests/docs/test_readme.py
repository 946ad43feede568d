"""What the README and the docstrings show is run, and gives what they show."""

import doctest
import re
import subprocess

import pytest

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.sources import ROOT, source_files

README = (ROOT / "README.md").read_text()


def test_the_example_gives_the_output_below_it(tmp_path):
    code, output = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    assert run_python(code, cwd=tmp_path).stdout == output


def test_the_example_has_ten_lines():
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_exist(target):
    assert f"make {target} " in README
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


PUBLIC = {
    "clip_gradient": cg.clip_gradient,
    "custom_gradient": cg.custom_gradient,
    "custom_vjp": cg.custom_vjp,
    "embed_gradient": cg.embed_gradient,
    "numpy_function": cg.numpy_function,
    "grad_pass_through": cg.grad_pass_through,
    "implicit_root": cg.implicit_root,
    "recompute_grad": cg.recompute_grad,
    "reverse_gradient": cg.reverse_gradient,
    "scale_gradient": cg.scale_gradient,
    "straight_through": cg.straight_through,
    "compat.bayesflow.custom_gradient": cg.compat.bayesflow.custom_gradient,
    "compat.tfp_math.custom_gradient": cg.compat.tfp_math.custom_gradient,
    "saved_model.inspect": cg.saved_model.inspect,
    "saved_model.strip": cg.saved_model.strip,
    "sysconfig.get_lib": cg.sysconfig.get_lib,
    "sysconfig.gpu_kernels": cg.sysconfig.gpu_kernels,
    "testing.check_gradient": cg.testing.check_gradient,
}
LAYERS = {f"layers.{name}": getattr(cg.layers, name) for name in cg.layers.__all__}


@pytest.mark.parametrize("name", [*PUBLIC, *LAYERS])
def test_the_examples_of_the_docstring_run(name):
    examples = doctest.DocTestFinder(recurse=False).find((PUBLIC | LAYERS)[name], name, globs={})
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in examples:
        runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_has_every_section(name):
    function = PUBLIC[name]
    sections = ["Relation to ", "Returns:"]
    if not name.startswith("sysconfig."):
        sections += ["Args:", "Raises:"]
    for section in sections:
        assert section in function.__doc__


@pytest.mark.parametrize("name", LAYERS)
def test_the_docstring_of_a_layer_has_every_section(name):
    for section in ("Relation to ", "Args:", "Call arguments:"):
        assert section in LAYERS[name].__doc__


def test_every_path_that_the_readme_names_exists():
    for path in re.findall(r"`((?:tf_cg_ops|cc|tests|docs)/[\w./]*)`", README):
        assert (ROOT / path).exists(), path


def test_every_test_that_the_docs_name_exists():
    tests = "".join(path.read_text() for path in source_files("tests/**/*.py"))
    for path in source_files("*.md", "docs/*.md"):
        for name in re.findall(r"`(test_\w+)`", path.read_text()):
            assert f"def {name}(" in tests, f"{path} names {name}"
