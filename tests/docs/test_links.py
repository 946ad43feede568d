"""Links and paths in the pages lead somewhere."""

import urllib.parse

import pytest

from ..support import pages
from ..support.pages import public_objects
from ..support.sources import ROOT, source_files

PAGES = source_files("*.md", "docs/**/*.md", "examples/**/*.md", ".github/**/*.md")
# The hook of mkdocs makes them: of the notebook, and of each example.
GENERATED = {ROOT / "docs" / "quickstart.md"} | {
    ROOT / "docs" / "examples" / f"{path.stem}.md" for path in source_files("examples/**/*.py", "examples/**/*.c")
}


def has_anchor(page, anchor):
    text = page.read_text()
    if anchor in pages.anchors(text):
        return True
    documented = pages.reference_names(text)
    return anchor in public_objects() and any(anchor == name or anchor.startswith(f"{name}.") for name in documented)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_an_anchor(page):
    for link in pages.links(page.read_text()):
        address = urllib.parse.urlsplit(link)
        if not address.scheme:
            target = (page.parent / address.path).resolve() if address.path else page
            assert target.exists() or target in GENERATED, link
            if address.fragment and target not in GENERATED:
                assert has_anchor(target, address.fragment), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_in_code_exists(page):
    for path in pages.paths_in_code(page.read_text()):
        assert (ROOT / path).exists() or path.endswith(".so"), path


def test_a_missing_anchor_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Two words, `code` and a [link](to.md)\n\nterm {#a-term}\n\n```\n# No heading\n```\n\n::: tf_cg_ops.saved_model\n"
    )
    present = ["two-words-code-and-a-link", "a-term", "tf_cg_ops.saved_model.strip"]
    assert [has_anchor(page, anchor) for anchor in present] == [True, True, True]
    absent = ["no-heading", "tf_cg_ops.embed_gradient", "tf_cg_ops.saved_model.absent"]
    assert [has_anchor(page, anchor) for anchor in absent] == [False, False, False]
