"""Which TensorFlow the library is compiled against, and where the sources know of versions at all."""

import re

import pytest

import tf_cg_ops as cg

from .support.processes import run_python
from .support.sources import ROOT, source_files

SETUP_WITH = """
import importlib.metadata, runpy, sys
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
    """What setup.py says in a Python that sees these distributions and no others."""
    result = run_python(SETUP_WITH, *distributions, cwd=ROOT, check=False)
    assert result.returncode == 1
    return result.stderr.splitlines()[-1]


def test_without_tensorflow_the_build_says_what_to_do():
    message = message_of_setup_with()
    assert message.startswith("tf_cg_ops: the build found no TensorFlow; expected one of tensorflow, ")


@pytest.mark.parametrize("distribution", ["tensorflow", "tensorflow-cpu"])
@pytest.mark.parametrize("version", ["2.17.1", "2.22.0", "2.2.1", "1.18.0"])
def test_the_build_refuses_a_tensorflow_that_the_sources_do_not_know(distribution, version):
    assert message_of_setup_with(f"{distribution}=={version}") == (
        f"tf_cg_ops: the build does not know this TensorFlow; expected 2.18 to 2.21, got {distribution} {version}. "
        f"Install one of those (pip install '{distribution}==2.21.*')."
    )


@pytest.mark.parametrize("version", ["2.18.1", "2.20.0rc0", "2.21.0"])
def test_the_build_takes_a_tensorflow_that_the_sources_know(version):
    result = run_python(SETUP_WITH, f"tensorflow=={version}", cwd=ROOT)
    assert result.stdout == cg.__version__ + "\n"


def test_one_header_and_one_module_know_what_differs_between_versions():
    asks = re.compile(r"TF_(MAJOR|MINOR|PATCH)_VERSION|TF_GRAPH_DEF_VERSION|__has_include")
    assert [path.name for path in source_files("cc/**/*", "cuda/**/*") if asks.search(path.read_text())] == [
        "xla_headers.h"
    ]
    asks = re.compile(r"tf\.(__version__|version)\b")
    # The check at import compares the version; what differs is in the module of private names.
    assert {path.name for path in source_files("tf_cg_ops/**/*.py") if asks.search(path.read_text())} <= {
        "_library.py",
        "_tf_internal.py",
    }
