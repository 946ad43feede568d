"""The pages keep to the rules of CONTRIBUTING.md about language that a pattern can check."""

import re

import pytest

from ..support import language, markdown
from ..support.sources import ROOT, source_files

PAGES = source_files("*.md", "docs/**/*.md", "examples/**/*.md", ".github/**/*.md")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_begins_with_a_relative_clause_and_every_term_is_the_standard_one(page):
    text = page.read_text()
    if page.name == "CONTRIBUTING.md":
        text = re.sub(r"(?<=\n)\| instead of \| write \|\n(?:\|.*\n)+", "", text)  # The table of terms.
    assert language.violations(language.prose(text)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_code_fit_a_page(page):
    """The output of code is wrapped by the style of the pages."""
    for block in markdown.code_blocks(page.read_text()):
        if block.startswith("```\n"):
            continue
        assert [line for line in block.splitlines() if len(line) > 88] == []


def test_contributing_lists_the_terms():
    (table,) = re.findall(r"\| instead of \| write \|\n\|---\|---\|\n((?:\|.*\n)+)", CONTRIBUTING)
    listed = [cell.strip() for row in table.splitlines() for cell in row.split("|")[1].split(",")]
    for pattern in language.TERMS:
        assert any(re.fullmatch(pattern, term) for term in listed), pattern


@pytest.mark.parametrize(
    "text",
    [
        "What came of it.",
        "It works. Where it fails, it says so.",
        "# Which function",
        "- Who reads this",
        "| a | What it is |",
        "It hands the\nvalue on.",
        "With stock ops.",
        "(Whatever it is.)",
    ],
)
def test_a_violation_is_found(text):
    assert len(language.violations(language.prose(text))) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "Which function do you need?",
        "The table says what is fixed, and where.",
        "`What` is code. See [this](where-it-works.md).",
        "    What is code, too: stock ops\n",
        "```\nWhere a regime\n```\n",
        "On one hand, it works.",
    ],
)
def test_other_text_passes(text):
    assert language.violations(language.prose(text)) == []
