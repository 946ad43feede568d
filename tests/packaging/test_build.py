"""The source distribution and the wheel that is built from it: tag, requirement, contents, and that it works elsewhere."""

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
from build_ops.environments import CORE_TESTS
from build_ops.release import make_sdist, require_equal

from ..support.processes import run_python
from ..support.sources import ROOT, copy_sources, source_files


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A folder that holds the sources alone."""
    folder = tmp_path_factory.mktemp("sources")
    copy_sources(folder, "**/*")
    return folder


@pytest.fixture(scope="module")
def sdist(copy, tmp_path_factory):
    return make_sdist(copy, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """A wheel built from the source distribution, as the README says, with the flags of the Makefile."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(target), str(sdist)]
    environment = {**os.environ, "TF_CG_OPS_WERROR": "1"}
    subprocess.run(command, cwd=target, env=environment, check=True, stdout=subprocess.DEVNULL)
    (path,) = target.glob("*.whl")
    return path


def test_the_source_distribution_holds_all_that_is_in_the_repository(sdist):
    with tarfile.open(sdist) as archive:
        files = {re.sub(r"^tf_cg_ops-[^/]*/", "", member.name) for member in archive.getmembers() if member.isfile()}
    assert files - {"PKG-INFO", "setup.cfg"} == {str(path.relative_to(ROOT)) for path in source_files("**/*")}


def test_the_source_distribution_is_the_same_from_every_folder(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "315532800")
    one = make_sdist(copy, tmp_path / "one")
    copy_sources(tmp_path / "copy", "**/*")
    (tmp_path / "copy" / "setup.py").chmod(0o600)
    require_equal(one, make_sdist(tmp_path / "copy", tmp_path / "other"))
    with (tmp_path / "copy" / "README.md").open("a") as readme:
        readme.write("Another line.\n")
    with pytest.raises(SystemExit, match="two builds differ; expected the same bytes"):
        require_equal(one, make_sdist(tmp_path / "copy", tmp_path / "another"))


def test_the_tests_that_run_outside_of_the_source_tree_are_there():
    assert [name for name in CORE_TESTS if not (ROOT / "tests" / name).is_file()] == []


def test_make_wheel_exists():
    subprocess.run(["make", "--dry-run", "wheel"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_the_wheel_is_for_every_python_and_one_platform(wheel):
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert "linux" in wheel.name


def test_the_wheel_requires_the_tensorflow_it_was_compiled_against(wheel):
    from tf_cg_ops import _build_info

    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        requirements = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist")
    major, minor = (int(part) for part in tf.__version__.split(".")[:2])
    always = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert sorted(always) == [
        "numpy>=1.26",
        f"{_build_info.TENSORFLOW_DISTRIBUTION}<{major}.{minor + 1},>={major}.{minor}",
    ]


def test_the_wheel_holds_the_package_the_library_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    files = ("_ops.so", "_build_info.py", "compat/bayesflow.py", "layers/__init__.py", "_src/layers/mixins.py")
    assert {f"tf_cg_ops/{file}" for file in files} <= set(names)
    others = [name for name in names if not name.startswith("tf_cg_ops/") or not name.endswith((".py", ".so"))]
    # By which type checkers know that the package has type hints; and the program, which imports the package late.
    assert sorted(others) == ["tf_cg_ops/py.typed", "tf_cg_ops_cli.py"]


def test_the_library_in_it_is_that_of_the_source_tree_to_the_byte(wheel):
    """The library of the source tree was built in another folder, and must be up to date."""
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("tf_cg_ops/_ops.so") == pathlib.Path(cg.sysconfig.get_lib()).read_bytes()


def test_the_installed_wheel_works(wheel, tmp_path):
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "installed")]
    subprocess.run([*command, str(wheel)], cwd=tmp_path, check=True)
    code = """
import tensorflow as tf, tf_cg_ops as cg
x = tf.constant([1.0, 2.0, 3.0])
with tf.GradientTape() as tape:
    tape.watch(x)
    h = cg.embed_gradient(x**2, 2 * x, x)
print(tape.gradient(h, x, tf.constant([1.0, 10.0, 100.0])).numpy().tolist(), cg.sysconfig.get_lib())
"""
    result = run_python(code, cwd=tmp_path, environment={"PYTHONPATH": str(tmp_path / "installed")})
    assert result.stdout == f"[2.0, 40.0, 600.0] {tmp_path / 'installed' / 'tf_cg_ops' / '_ops.so'}\n"
