"""The code of pages and docstrings prints what is shown, tables are right, and links work."""

import doctest
import json
import re
import sys
import urllib.parse

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
import tf_cg_ops.layers.tf_keras

from ..support import mode_table
from ..support.processes import run_python
from ..support.sources import ROOT, source_files
from .pages import anchors, links, public_objects, python_blocks

WITH_CODE = [path for path in source_files("README.md", "docs/*.md") if "```python" in path.read_text()]
SEPARATOR = "----- the next block -----\n"


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_code_of_a_page_prints_what_is_below_it(page, tmp_path):
    """The blocks of a page share names and files, unless a block begins with a comment that asks for a fresh process."""
    processes = []
    for block in python_blocks(page.read_text()):
        if not processes or block[0].startswith("# In a fresh process.\n"):
            processes.append([])
        processes[-1].append(block)
    for shared in processes:
        code = f"print({SEPARATOR!r}, end='')\n".join(code for code, _ in shared)
        printed = run_python(code, cwd=tmp_path).stdout.split(SEPARATOR)
        for (code, expected), actual in zip(shared, printed, strict=True):
            assert actual == expected, code


def test_the_quickstart_prints_what_is_stored_in_it(tmp_path):
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    expected = "".join("".join(output["text"]) for cell in cells for output in cell["outputs"])
    texts = run_python("\n".join("".join(cell["source"]) for cell in cells), cwd=tmp_path, with_extras=True).stdout
    # Accuracies depend on the order of additions.
    accuracies, expected_accuracies = ([int(n) for n in re.findall(r"(\d+)%", text)] for text in (texts, expected))
    assert accuracies == pytest.approx(expected_accuracies, abs=3)
    plain, straight_through = accuracies
    assert plain < 65
    assert straight_through > 85
    readme = (ROOT / "README.md").read_text()
    assert "from {} % to {} % when its `tf.sign`".format(*expected_accuracies) in readme
    assert re.sub(r"\d+%", "%", texts) == re.sub(r"\d+%", "%", expected)


# All docstrings with examples, including the public modules'.
DOCUMENTED = public_objects() | {
    name: module for name, module in sys.modules.items() if re.fullmatch(r"tf_cg_ops(\.[a-z]\w*)*", name)
}
WITH_EXAMPLES = [name for name, value in DOCUMENTED.items() if ">>> " in (value.__doc__ or "")]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_the_docstring_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Some save a model.
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in doctest.DocTestFinder(recurse=False).find(DOCUMENTED[name], name, globs={}):
        runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0


SHAPES = re.findall(
    r"^\| `(\[.*?)` \| `(.*?)` \| `(.*?)` \| `(.*?)` \| `(.*?)` \|$", (ROOT / "docs" / "shapes.md").read_text(), re.M
)
assert len(SHAPES) == 13


@pytest.mark.parametrize("row", SHAPES, ids=" ".join)
def test_the_table_of_shapes_gives_the_gradient(row, rng):
    *shapes, axis, formula = row
    sizes = {"n": 5, "m": 4, "p": 2, "q": 3, "B": 3, "D": 4, "H": 3, "T": 2, "W": 4}
    x, fx, gx = (rng.normal(size=eval(shape, sizes)) for shape in shapes)
    dy = rng.normal(size=fx.shape)
    expected = eval(formula, sizes | {"dy": dy, "gx": gx, "sum": np.sum, "ones": np.ones, "tensordot": np.tensordot})
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = cg.embed_gradient(fx, gx, x, axis=eval(axis))
    np.testing.assert_allclose(tape.gradient(h, x, output_gradients=tf.constant(dy)), expected, rtol=1e-12)


# mkdocs checks the links in docs/ and the README, its first page, but not in these or what is only shown on GitHub.
OTHER_PAGES = source_files(
    "*.md", "docs/reference/*.md", "tests/*.md", "qa/*.md", "examples/**/*.md", ".github/**/*.md"
)


@pytest.mark.parametrize("page", OTHER_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_an_anchor(page):
    for link in links(page.read_text()):
        address = urllib.parse.urlsplit(link)
        if not address.scheme:
            target = (page.parent / address.path).resolve() if address.path else page
            assert target.exists(), link
            if address.fragment and target.parent != ROOT / "docs" / "reference":  # mkdocs makes its anchors.
                assert address.fragment in anchors(target.read_text()), link


def test_the_readme_is_short_and_its_links_lead_to_pages_that_github_shows():
    """On GitHub the pages of the reference are only the names whose docstrings mkdocs fills in."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 125
    assert len(links(text)) <= 40
    assert [link for link in links(text) if link.startswith("docs/reference/")] == []


def test_every_path_in_code_exists():
    folders = "benchmarks|bazel|build_ops|cc|cuda|docs|examples|qa|tests|tf_cg_ops"
    pages = [page.read_text() for page in source_files("*.md", "docs/*.md") if page.name != "CHANGELOG.md"]
    paths = re.findall(rf"`((?:{folders})/[\w./]*)`", "".join(pages))
    assert [path for path in paths if not (ROOT / path).exists() and not path.endswith(".so")] == []


def test_the_gallery_and_the_table_of_examples_have_every_example():
    programs = source_files("examples/*.py")
    gallery, table = ((ROOT / path).read_text() for path in ("docs/gallery.md", "examples/README.md"))
    linked = set(re.findall(r"\(\.\./examples/[\w/]*?(\w+)\.(?:py|c)\)", gallery))
    assert linked == {path.stem for path in source_files("examples/**/*.py", "examples/**/*.c")}
    assert {path.name for path in programs} <= set(re.findall(r"^\| \[`([\w.]+)`\]", table, re.MULTILINE))
    drawn = {path.stem for path in programs if f"{path.stem}.png" in path.read_text()}
    assert drawn | {"learning_curves"} <= set(re.findall(r"\(figures/(\w+)\.png\)", gallery))


def test_the_support_matrix_is_made_from_its_cells():
    cells = json.loads((ROOT / "docs" / "modes.json").read_text())
    assert (ROOT / "docs" / "modes.md").read_text() == mode_table.page(cells["tensorflow"], cells["cells"])
