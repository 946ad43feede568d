"""The version of TensorFlow that the library is compiled against, and the sources that depend on versions."""

import re
import sys

import pytest

import tf_cg_ops as cg
from build_ops import environments, matrix
from build_ops.tensorflow import SUPPORTED
from tf_cg_ops._src.core import library

from ..support.processes import run_python
from ..support.sources import ROOT, source_files

SETUP_WITH = """
import importlib.metadata, runpy, sys
import setuptools  # Asks for its own version, which setup.py compares, too.
installed = dict(argument.split("==") for argument in sys.argv[1:])
def version(name):
    if name not in installed:
        raise importlib.metadata.PackageNotFoundError(name)
    return installed[name]
importlib.metadata.version = version
sys.argv = ["setup.py", "--version"]
runpy.run_path("setup.py")
"""


def message_of_setup_with(*distributions):
    """The output of setup.py in a Python that has only these distributions."""
    result = run_python(SETUP_WITH, *distributions, cwd=ROOT, check=False)
    assert result.returncode == 1
    return result.stderr.splitlines()[-1]


def test_without_tensorflow_the_build_says_what_to_do():
    message = message_of_setup_with()
    assert message.startswith("tf_cg_ops: the build found no TensorFlow; expected one of tensorflow, ")


@pytest.mark.parametrize(
    ("distribution", "version"), [("tensorflow", "2.17.1"), ("tensorflow-cpu", "2.22.0"), ("tensorflow", "2.2.1")]
)
def test_the_build_refuses_a_tensorflow_that_the_sources_do_not_know(distribution, version):
    assert message_of_setup_with(f"{distribution}=={version}") == (
        f"tf_cg_ops: the build does not know this TensorFlow; expected 2.18 to 2.21, got {distribution} {version}. "
        f"Install one of those (pip install '{distribution}==2.21.*')."
    )


@pytest.mark.parametrize("version", ["2.18.1", "2.20.0rc0"])
def test_the_build_takes_a_tensorflow_that_the_sources_know(version):
    result = run_python(SETUP_WITH, f"tensorflow=={version}", cwd=ROOT)
    assert result.stdout == cg.__version__ + "\n"


def test_the_message_of_the_import_names_the_versions_that_the_build_takes():
    assert f"{SUPPORTED[0]} to {SUPPORTED[-1]}" == library.SUPPORTED_TENSORFLOW


def test_one_folder_of_headers_and_one_module_know_what_differs_between_versions():
    asks = re.compile(r"TF_(MAJOR|MINOR|PATCH)_VERSION|TF_GRAPH_DEF_VERSION|__has_include")
    known = {path.parent.name for path in source_files("cc/**/*", "cuda/**/*") if asks.search(path.read_text())}
    assert known == {"versions"}
    asks = re.compile(r"tf\.(__version__|version)\b")
    # The check at import compares the version; the differences are in the module of private names.
    assert {path.name for path in source_files("tf_cg_ops/**/*.py") if asks.search(path.read_text())} <= {
        "library.py",
        "tf_internal.py",
    }


@pytest.mark.parametrize(
    ("minor", "pythons", "chosen"),
    [
        ("2.18", {"a": (3, 11), "b": (3, 12), "c": (3, 13)}, "b"),
        ("2.21", {"a": (3, 11), "b": (3, 13), "c": (3, 12)}, "b"),
        ("2.19", {"a": (3, 13)}, None),
        ("2.20", {}, None),
    ],
)
def test_the_matrix_takes_the_newest_python_that_fits(minor, pythons, chosen):
    assert matrix.newest_for(minor, pythons) == chosen


def test_a_python_that_is_not_at_hand_has_no_version(tmp_path):
    hint = tmp_path / "python3.99"
    hint.write_text("#!/bin/sh\necho install it >&2\nexit 127\n")
    hint.chmod(0o755)
    assert environments.version_of(str(hint)) is None
    assert environments.version_of("python3.99") is None
    assert environments.version_of(sys.executable) == sys.version_info[:2]


def test_the_matrix_knows_all_versions_and_its_tests_are_there():
    assert tuple(matrix.NEWEST_PYTHON) == SUPPORTED
    assert [name for name in matrix.MORE_TESTS if not (ROOT / "tests" / name).is_file()] == []
