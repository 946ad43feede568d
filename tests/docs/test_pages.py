"""The code of pages and docstrings prints what is shown, tables are right, and links work."""

import doctest
import json
import pydoc
import re
import shutil
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
    if page.stem == "jax":
        shutil.copytree(ROOT / "tests" / "saved_model" / "jax_scan" / "model", tmp_path / "jax_model")
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


# An object, what its help shows in the first lines, and what it never shows.
FIRST_SCREENS = {
    "package": (cg, ("import tf_cg_ops as cg", "@cg.custom_gradient", "cg.testing.audit("), ("SUBMODULES", "_library")),
    "recompute_grad": (cg.recompute_grad, ('memory="auto"', ".plan(", "peak_bytes"), ()),
}


@pytest.mark.parametrize("name", FIRST_SCREENS)
def test_help_begins_with_an_example(name):
    value, first, never = FIRST_SCREENS[name]
    shown = pydoc.plain(pydoc.render_doc(value))
    lines = shown.splitlines()
    begin = next(i for i, line in enumerate(lines) if ">>> import" in line)
    assert begin < 12
    assert all(part in "\n".join(lines[begin : begin + 10]) for part in first)
    assert not [part for part in never if part in shown]


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


# Figures that two places state, each as (page, pattern, page, pattern).
FIGURES = [
    ("README.md", "takes (about a .*?) on two", "docs/building.md", "On two cores the build takes .(about a .*?)]"),
    ("README.md", r"(2\.\d+ to 2\.\d+)", "docs/building.md", r"compile against must be (2\.\d+ to 2\.\d+)"),
    ("CHANGELOG.md", r"(2\.\d+ to 2\.\d+) with pip", "docs/building.md", r"another version from (2\.\d+ to 2\.\d+)"),
    ("README.md", r"(3\.\d+ to 3\.\d+)", "CONTRIBUTING.md", r"(3\.\d+ to 3\.\d+)"),
    ("README.md", r"(3\.\d+ to 3\.\d+)", "docs/building.md", r"x86-64 .*?, and Python (3\.\d+ to 3\.\d+)"),
    ("README.md", r"at most (\d+ %) longer", "docs/performance.md", r"models take as long .*?within (\d+ %)"),
    (
        *("README.md", r"to ([\d.]+) times as long \(with `\"log\"`, up to ([\d.]+)"),
        *("docs/memory.md", r"\| elementwise step \| \S+ ms \| ([\d.]+) .*?\| ([\d.]+) "),
    ),
    ("README.md", r"took ([\d.]+) to", "docs/performance.md", r"segmented loop:\*\* .*?, and ([\d.]+) to"),
    ("README.md", r"(\d+) MiB with .*? ([\d,]+) MiB with", "docs/comparison.md", r"\| (\d+) MiB \| ([\d,]+) MiB"),
    (
        "docs/memory.md",
        r"with ([\d.]+); the run before had (\S+)\. ",
        "docs/performance.md",
        r"loop:\*\* (\S+) .*? had (\S+)\. ",
    ),
    ("docs/memory.md", r"of the (\d+) MiB of a plain", "docs/memory.md", r"\| ResNet50 \| `plain` \| \d+ \| (\d+)"),
    ("docs/memory.md", r"itself takes ([\d.]+) GiB", "docs/gallery.md", r"itself takes ([\d.]+) GiB"),
    (
        *("docs/memory.md", r"fits into (\d+) MiB, by .*?: (\w+) times as many"),
        *("docs/gallery.md", r"normalization within (\d+) MiB\. .*?It is (\w+) times as large"),
    ),
    ("docs/limits.md", r"(\d+) graphs that were used last", "docs/design.md", r"(\d+) entries that were used last"),
    ("docs/limits.md", r"more than (\w+) loops to align", "docs/ship.md", r"more than (\w+) loops to align"),
    ("docs/limits.md", r"takes (about \w+ \w+) to trace", "docs/solvers.md", r"takes (about \w+ \w+) to trace"),
    ("docs/limits.md", r"allow (\d+) roundings", "docs/checking.md", r"at least (\d+) roundings"),
    ("docs/limits.md", r"below (\S+ %).*? or (\S+ %)", "docs/checking.md", r"below (\S+ %).*? or (\S+ %)"),
    ("docs/limits.md", r"has only the (\w+) derivative\.", "docs/graph.md", r"So the file has the (\w+) derivative"),
    (
        "docs/gradient_functions.md",
        r"a loaded model has .the (\w+),",
        "docs/graph.md",
        r"So the file has the (\w+) derivative",
    ),
    ("docs/gpu.md", r"nvcc (\d+\.\d+) or newer", "docs/building.md", r"nvcc (\d+\.\d+) or newer"),
    ("docs/migrating.md", r"2\.\d+ and .*? (0\.\d+)", "docs/comparison.md", r"2\.\d+ and .*? (0\.\d+)"),
]


@pytest.mark.parametrize("row", FIGURES, ids=lambda row: f"{row[0]}, {row[2]}: {row[1]}")
def test_two_pages_state_the_same_figure(row):
    """All matches of a pattern on a page are equal, too."""
    pages = [" ".join((ROOT / page).read_text().split()) for page in row[::2]]
    first, second = (set(re.findall(pattern, page)) for pattern, page in zip(row[1::2], pages, strict=True))
    assert first == second
    assert len(first) == 1


@pytest.mark.parametrize("name", ["raw", "differential", "saved_models"])
def test_the_figures_of_a_hunt_are_of_the_command_above_them(name):
    """The last row of the table counts all cases."""
    (command,) = re.findall(rf"qa\.fuzz {name} --examples (\d+)", (ROOT / "docs" / "reliability.md").read_text())
    *_, total = json.loads((ROOT / "docs" / "reliability" / f"{name}.json").read_text())
    assert sum(count for count in total.values() if isinstance(count, int)) == int(command)


def test_the_support_matrix_is_made_from_its_cells():
    cells = json.loads((ROOT / "docs" / "modes.json").read_text())
    assert (ROOT / "docs" / "modes.md").read_text() == mode_table.page(cells["tensorflow"], cells["cells"])
