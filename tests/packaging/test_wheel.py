"""The source distribution and the wheel built from it: contents, tag, requirements, and that it works elsewhere.

The wheel has the library of the source tree: `make wheel`, Bazel and a slow test compile the sources once more.
"""

import email
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
import tensorflow as tf

import tf_cg_ops as cg
from build_ops.release import make_sdist
from tf_cg_ops import _build_info

from ..support.processes import run_interpreter, run_python
from ..support.sources import ROOT, copy_sources, source_files


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Made in a folder with only the sources."""
    folder = tmp_path_factory.mktemp("sources")
    copy_sources(folder, "**/*")
    return make_sdist(folder, tmp_path_factory.mktemp("sdist"))


def make_wheel(sdist, target, **environment):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(target), str(sdist)]
    environment = {**os.environ, "TF_CG_OPS_WERROR": "1", **environment}
    subprocess.run(command, cwd=target, env=environment, check=True, stdout=subprocess.DEVNULL)
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    folder = os.path.dirname(cg.sysconfig.get_library())
    with make_wheel(sdist, tmp_path_factory.mktemp("wheel"), TF_CG_OPS_PREBUILT=folder) as archive:
        yield archive


def test_the_source_distribution_holds_all_that_is_in_the_repository(sdist):
    with tarfile.open(sdist) as archive:
        files = {re.sub(r"^tf_cg_ops-[^/]*/", "", member.name) for member in archive.getmembers() if member.isfile()}
    assert files - {"PKG-INFO", "setup.cfg"} == {str(path.relative_to(ROOT)) for path in source_files("**/*")}


def test_the_wheel_is_for_one_tensorflow_every_python_and_one_platform(wheel):
    minor = re.escape(".".join(tf.__version__.split(".")[:2]))
    assert re.search(rf"-{minor}-py3-none-\w*linux\w*\.whl$", wheel.filename)


def test_the_wheel_requires_the_tensorflow_it_was_compiled_against(wheel):
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    requirements = email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist")
    major, minor = (int(part) for part in tf.__version__.split(".")[:2])
    always = [requirement for requirement in requirements if "extra ==" not in requirement]
    version = _build_info.TENSORFLOW_VERSION
    fitting = f"=={version}" if "rc" in version else f"<{major}.{minor + 1},>={major}.{minor}"
    assert sorted(always) == ["numpy>=1.26", _build_info.TENSORFLOW_DISTRIBUTION + fitting]


def test_the_wheel_holds_the_package_the_libraries_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    # py.typed tells type checkers that the package has type hints, and the program imports the package late.
    expected = {str(path.relative_to(ROOT)) for path in source_files("tf_cg_ops/**/*")} | {"tf_cg_ops_cli.py"}
    assert names == expected | {f"tf_cg_ops/{name}" for name in ("_ops.so", "_ops_with_cc.so", "_build_info.py")}
    assert wheel.read("tf_cg_ops/_build_info.py") == pathlib.Path(_build_info.__file__).read_bytes()


USE = """
import importlib, pathlib, sys
import tensorflow as tf, tf_cg_ops as cg

folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("tf_cg_ops/**/*.py")):
    name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):  # It runs the program.
        assert pathlib.Path(importlib.import_module(name).__file__) == path, name
assert cg.sysconfig.get_library() == str(folder / "tf_cg_ops" / "_ops.so")
x = tf.constant([1.0, 2.0, 3.0])
with tf.GradientTape() as tape:
    tape.watch(x)
    h = cg.embed_gradient(x**2, 2 * x, x)
print(tape.gradient(h, x, tf.constant([1.0, 10.0, 100.0])).numpy().tolist())
"""


def test_the_installed_wheel_works_and_each_of_its_modules_imports(wheel, tmp_path):
    installed = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", installed, wheel.filename]
    run_interpreter(command, tmp_path)
    environment = {"PYTHONPATH": str(installed)}
    result = run_python(USE, installed, cwd=tmp_path, environment=environment)
    assert result.stdout == "[2.0, 40.0, 600.0]\n"


@pytest.mark.slow
def test_the_libraries_of_the_source_tree_are_up_to_date_and_the_same_from_another_folder(sdist, tmp_path):
    """Byte for byte, compiled from the source distribution with the Makefile's flags."""
    with make_wheel(sdist, tmp_path) as archive:
        for path in (cg.sysconfig.get_library(), cg.sysconfig.get_library_with_cc()):
            assert archive.read(f"tf_cg_ops/{pathlib.Path(path).name}") == pathlib.Path(path).read_bytes()


def test_an_old_setuptools_is_named_with_what_to_install(tmp_path):
    """Runs a copy of setup.py with a setuptools that has only a version."""
    (tmp_path / "setup.py").write_bytes((ROOT / "setup.py").read_bytes())
    (tmp_path / "setuptools.py").write_text("__version__ = '59.6.0.post1'\n")
    result = run_interpreter([sys.executable, "setup.py", "--version"], tmp_path, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (
        1,
        "",
        f"tf_cg_ops: the build needs setuptools 77 or newer, got 59.6.0.post1. Install it into this Python "
        f"with: {sys.executable} -m pip install 'setuptools>=77' wheel\n",
    )
