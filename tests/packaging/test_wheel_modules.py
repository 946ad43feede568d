"""Every module of the package is in the wheel, and imports from there."""

import os
import subprocess
import sys
import zipfile

import pytest

import tf_cg_ops as cg

from ..support.processes import run_interpreter
from ..support.sources import ROOT, copy_sources

IMPORT_ALL = """
import importlib, pathlib, sys
folder = pathlib.Path(sys.argv[1])
sys.path[:] = [str(folder), *(path for path in sys.path if not pathlib.Path(path, "tf_cg_ops", "__init__.py").exists())]
for path in sorted(folder.glob("tf_cg_ops/**/*.py")):
    name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):  # It runs the program.
        assert pathlib.Path(importlib.import_module(name).__file__) == path, name
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of the packages that pyproject.toml names, with the library that has been built."""
    sources, target = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    copy_sources(sources, "**/*")
    (sources / "MANIFEST.in").unlink()  # It would add what pyproject.toml leaves out.
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", target, sources]
    environment = {**os.environ, "TF_CG_OPS_PREBUILT": os.path.dirname(cg.sysconfig.get_lib())}
    subprocess.run([*map(str, command)], cwd=target, env=environment, check=True, stdout=subprocess.DEVNULL)
    (path,) = target.glob("*.whl")
    return path


def test_the_wheel_holds_every_module_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("tf_cg_ops/") and name.endswith(".py")}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "tf_cg_ops").rglob("*.py")}
    assert names == sources


def test_every_module_imports_from_the_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    run_interpreter([sys.executable, "-c", IMPORT_ALL, tmp_path], cwd=tmp_path)
