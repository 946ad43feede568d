"""The version of TensorFlow that the library is compiled against, and the sources that depend on versions."""

import re
import sys

import pytest

from build_ops import environments, matrix
from build_ops.tensorflow import SUPPORTED
from tf_cg_ops._src.core import library

from ..support.sources import ROOT, source_files


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
