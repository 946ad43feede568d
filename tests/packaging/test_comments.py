"""Comments and docstrings keep to the rules of CONTRIBUTING.md about language that a pattern can check."""

import pytest

from ..support import language
from ..support.comments import comments, docstrings
from ..support.sources import ROOT, source_files

pytestmark = pytest.mark.core

FOLDERS = ("bazel", "benchmarks", "build_ops", "examples", "qa", "tests")


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_sentence_begins_with_a_relative_clause_and_every_term_is_the_standard_one(folder):
    for path in source_files(f"{folder}/**/*.py"):
        text = path.read_text()
        for line, comment in comments(text) + docstrings(text):
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
