"""The site builds without warnings, shows every public name, and works in a browser.

Without Chromium (`make install-chromium`) the tests in a browser are skipped.
"""

import contextlib
import functools
import http.server
import pathlib
import re
import subprocess
import sys
import threading
import urllib.parse

import pytest

from ..support.sources import ROOT, source_files
from .browser import PROGRAMS, Browser, Tab, find_chromium
from .pages import public_objects

WIDE, NARROW = 1280, 400

in_a_browser = pytest.mark.skipif(
    not find_chromium(),
    reason=f"none of {', '.join(PROGRAMS)} is on PATH: how the pages look and their links are NOT tested. "
    "On Debian: sudo apt-get install chromium-headless-shell",
)

# What scrolls or is cut off in the content of a page. If the window itself scrolls: what is wider than it.
LAYOUT = """(() => {
  const name = e => `<${e.tagName.toLowerCase()}${e.id ? `#${e.id}` : [...e.classList].map(c => `.${c}`).join("")}> `
    + `"${e.textContent.trim().replace(/\\s+/g, " ").slice(0, 60)}"`
  const overflow = e => getComputedStyle(e).overflowX
  const visible = [...document.body.querySelectorAll("*")].filter(e => {
    const box = e.getBoundingClientRect()
    return box.width > 1 && box.height > 1 && getComputedStyle(e).visibility !== "hidden"
  })
  // The theme's own bars shorten their texts, on purpose.
  const found = visible.filter(e => !e.closest(".md-header, .md-tabs, .md-sidebar, .md-footer, .md-search")
      && e.scrollWidth - e.clientWidth > 1 && e.clientWidth > 1 && overflow(e) !== "visible")
    .map(e => [["auto", "scroll"].includes(overflow(e)) ? "scrolls" : "is cut off", name(e)])
  const width = document.documentElement.clientWidth
  if (document.documentElement.scrollWidth > width) {
    const boxed = e => e && e !== document.body && (overflow(e) !== "visible" || boxed(e.parentElement))
    const wide = visible.filter(e => e.getBoundingClientRect().right > width + 0.5 && !boxed(e.parentElement))
    const innermost = wide.filter(e => !wide.some(other => other !== e && e.contains(other)))
    for (const e of innermost.length ? innermost : [document.body]) found.push(["is wider than the page", name(e)])
  }
  return found
})()"""

# Where the links of a page lead, and what they may lead to in it.
LINKS = """({
  links: [...document.querySelectorAll("a[href]")].map(a => [a.href, a.textContent.trim().slice(0, 40)]),
  anchors: [...document.querySelectorAll("[id], a[name]")].map(e => e.id || e.name),
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site. Warnings, such as about a dead link, are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_has_the_pages_that_it_should(site):
    written = [path.relative_to(ROOT / "docs") for path in source_files("docs/**/*.md")]
    made = [pathlib.Path("examples", path.name) for path in source_files("examples/**/*.py", "examples/**/*.c")]
    made += [pathlib.Path("index.html"), pathlib.Path("quickstart.html"), pathlib.Path("404.html")]
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert built == {str(path.with_suffix(".html")) for path in [*written, *made]}


def test_the_reference_shows_every_public_name_and_no_private_one(site):
    text = "".join(path.read_text() for path in site.glob("reference/*.html"))
    shown = set(re.findall(r'id="(tf_cg_ops[^"]*)"', text))
    assert [name for name in public_objects() if name not in shown] == []
    assert [name for name in shown if "._" in name] == []
    for heading in ("Parameters:", "Returns:", "Raises:"):
        assert f'<span class="doc-section-title">{heading}</span>' in text
    assert "dx = sum_to_shape_of_x(dy * conj(gx))\n</code>" in text
    assert "<sup>nondiff" not in text
    # What docstrings name: a function, a guide and a paper.
    for address in (
        "tools.html#tf_cg_ops.testing.check_gradient",
        "../checking.html",
        "https://arxiv.org/abs/1211.5063",
    ):
        assert f'href="{address}"' in text, address
    # An unknown section; a table, a list of arguments and an example that were taken for paragraphs.
    for left_over in ("<details", "|--", "Call arguments:\n", "<p>&gt;&gt;&gt;", "<blockquote>"):
        assert left_over not in text, left_over


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(folder):
    """The address under which the files of a folder are."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def tab():
    browser = Browser(find_chromium())
    yield Tab(browser)
    browser.close()


def look_at(tab, origin, page):
    """The faults of a page as text, its links and its anchors."""
    tab.open(origin + page)
    found = []
    # Begins with the current width, because each layout takes a moment.
    for width in sorted((WIDE, NARROW), key=lambda width: width != tab.width):
        tab.resize(width)
        for problem, element in tab.run(LAYOUT):
            if width == WIDE or problem != "scrolls":
                found.append(f"{page} at {width} pixels: {element} {problem}")
    return found + [f"{page}: {problem}" for problem in tab.problems(origin)], tab.run(LINKS)


def dead_links(origin, seen, files):
    """Dead links within the site. `seen` has the links and anchors of all pages."""
    found = []
    for page, of in seen.items():
        for address, text in of["links"]:
            path, _, anchor = address.partition("#")
            target = path.removeprefix(origin) or "index.html"
            if not path.startswith(origin):
                # Other links are not followed, but must work from anywhere.
                if urllib.parse.urlsplit(address).scheme != "https":
                    found.append(f"{page}: '{text}' leads to {address}; expected a page of the site, or https")
            elif target not in files:
                found.append(f"{page}: '{text}' leads to {target}, which is not there")
            elif anchor and target in seen and urllib.parse.unquote(anchor) not in seen[target]["anchors"]:
                found.append(f"{page}: '{text}' leads to {target}#{anchor}, where nothing has that name")
    return found


@in_a_browser
def test_no_page_overflows_or_fails_and_links_lead_somewhere(site, tab):
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    with serve(site) as origin:
        # The pages of examples show nothing but a file.
        pages = [page for page in sorted(files) if page.endswith(".html") and not page.startswith(("404", "examples/"))]
        looks = {page: look_at(tab, origin, page) for page in pages}
    assert [problem for problems, _ in looks.values() for problem in problems] == []
    seen = {page: of for page, (_, of) in looks.items()}
    assert sum(len(of["links"]) for of in seen.values()) > 500
    assert dead_links(origin, seen, files) == []


# How far the head of the support matrix is below the bar of the page, at the end of the page and of the matrix.
HEAD = """(() => {
  window.scrollTo(0, document.body.scrollHeight)
  document.querySelector("div.matrix").scrollTo(9999, 9999)
  const [bar, head] = [".md-header", ".matrix th"].map(selector => document.querySelector(selector).getBoundingClientRect())
  return [head.top - bar.bottom, head.left]
})()"""


@in_a_browser
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_head_and_the_first_column_of_the_support_matrix_stay_in_view(width, site, tab):
    with serve(site) as origin:
        tab.open(origin + "modes.html")
        tab.resize(width)
        below_the_bar, left = tab.run(HEAD)
    assert 0 <= below_the_bar < 100
    assert 0 <= left < width / 3
