"""Comments and docstrings keep to the rules of CONTRIBUTING.md about language that a pattern can check."""

import pytest

from ..support import language
from ..support.comments import comments, cpp_comments, docstrings
from ..support.sources import ROOT, source_files

pytestmark = pytest.mark.core

FOLDERS = ("bazel", "benchmarks", "build_ops", "examples", "qa", "tests", "tf_cg_ops")


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_sentence_begins_with_a_relative_clause_and_every_term_is_the_standard_one(folder):
    for path in source_files(f"{folder}/**/*.py"):
        text = path.read_text()
        for line, comment in comments(text) + docstrings(text):
            assert language.violations(language.prose(comment)) == [], f"{path.relative_to(ROOT)}:{line}"


@pytest.mark.parametrize("folder", ["cc", "cuda", "benchmarks", "examples", "qa", "tests"])
def test_comments_of_cpp_sources_do_so_too(folder):
    files = source_files(*(f"{folder}/**/*.{ending}" for ending in ("cc", "cu", "cuh", "h", "c")))
    assert files
    for path in files:
        for line, comment in cpp_comments(path.read_text()):
            assert language.violations(language.prose(comment)) == [], f"{path.relative_to(ROOT)}:{line}"


SOURCE = '''"""What is wrong."""

# A comment
# on two lines. What it says.
def function():
    """A docstring."""
    return 1  # What it is.
'''


def test_comments_and_docstrings_are_found():
    assert comments(SOURCE) == [(3, "A comment\non two lines. What it says."), (7, "What it is.")]
    assert docstrings(SOURCE) == [(1, "What is wrong."), (6, "A docstring.")]
    texts = [text for _, text in comments(SOURCE) + docstrings(SOURCE)]
    assert [len(language.violations(text)) for text in texts] == [1, 1, 1, 0]


CPP_SOURCE = """// What is wrong.
//
// And a mended thing.
int f();  // Where it is.
/* A comment
 * on two lines. */
.Doc(R"doc(
What the op does.
)doc");
"""


def test_comments_of_cpp_sources_are_found():
    assert cpp_comments(CPP_SOURCE) == [
        (1, "What is wrong.\n\nAnd a mended thing."),
        (4, "Where it is."),
        (5, "A comment\non two lines."),
        (7, "What the op does."),
    ]
    assert [len(language.violations(text)) for _, text in cpp_comments(CPP_SOURCE)] == [2, 1, 0, 1]
