"""The pages in a browser: nothing sticks out or fails, links lead somewhere, and they work without a network.

Screenshots come into build/screenshots. Without Chromium (`make install-chromium`) all of this is skipped.
"""

import contextlib
import functools
import http.server
import pathlib
import subprocess
import sys
import threading
import urllib.parse

import pytest

from ..support.browser import PROGRAMS, Browser, Tab, find_chromium
from ..support.sources import ROOT, source_files

LAYOUT, LINKS = (pathlib.Path(__file__).with_name(name).read_text() for name in ("layout.js", "links.js"))
SCREENSHOTS = ROOT / "build" / "screenshots"
WIDE, NARROW = 1280, 400

pytestmark = pytest.mark.skipif(
    not find_chromium(),
    reason=f"none of {', '.join(PROGRAMS)} is on PATH: how the pages look, their links and search are NOT tested. "
    "On Debian: sudo apt-get install chromium-headless-shell",
)


def pages():
    """The pages that there should be, by their addresses."""
    written = [path.relative_to(ROOT / "docs") for path in source_files("docs/**/*.md")]
    made = [pathlib.Path("examples", path.name) for path in source_files("examples/**/*.py", "examples/**/*.c")]
    return sorted(str(path.with_suffix(".html")) for path in [*written, *made, pathlib.Path("quickstart.html")])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


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
def origin(site):
    with serve(site) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    browser = Browser(find_chromium())
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def tab(browser):
    return Tab(browser)


def look_at(tab, origin, page, screenshots=None):
    """The faults of one page as text, its links and its anchors."""
    tab.open(origin + page)
    found = []
    # It begins with the width of the page before: each layout takes a moment.
    for width in sorted((WIDE, NARROW), key=lambda width: width != tab.width):
        tab.resize(width)
        for at in tab.run(LAYOUT):
            if width == WIDE or at["problem"] != "scrolls":
                found.append(f"{page} at {width} pixels: {at['element']} {at['problem']}, by {at['by']} pixels")
        if screenshots:
            tab.save_screenshot(screenshots / f"{page.removesuffix('.html').replace('/', '-')}-{width}.png")
    return found + [f"{page}: {problem}" for problem in tab.problems(origin)], tab.run(LINKS)


def dead_links(origin, seen, files):
    """The links within the site that lead nowhere; `seen` has the links and anchors of all pages."""
    found = []
    for page, of in seen.items():
        for address, text in of["links"]:
            path, _, anchor = address.partition("#")
            if not path.startswith(origin):
                # Others are not followed, but have to be what a browser can open from anywhere.
                if urllib.parse.urlsplit(address).scheme != "https":
                    found.append(f"{page}: '{text}' leads to {address}; expected a page of the site, or https")
                continue
            target = path.removeprefix(origin) or "index.html"
            if target not in files:
                found.append(f"{page}: '{text}' leads to {target}, which is not there")
            elif anchor and target in seen and urllib.parse.unquote(anchor) not in seen[target]["anchors"]:
                found.append(f"{page}: '{text}' leads to {target}#{anchor}, where nothing has that name")
    return found


@pytest.fixture(scope="module")
def looks(site, origin, tab):
    return {page: look_at(tab, origin, page, SCREENSHOTS) for page in pages()}


def test_the_site_has_the_pages_that_it_should(site):
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert built == {*pages(), "404.html"}


@pytest.mark.parametrize("page", pages())
def test_nothing_sticks_out_and_nothing_fails(looks, page):
    problems, _ = looks[page]
    assert problems == [], "\n".join(problems)


def test_links_within_the_site_lead_somewhere(site, origin, looks):
    seen = {page: of for page, (_, of) in looks.items()}
    assert sum(len(of["links"]) for of in seen.values()) > 500
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    found = dead_links(origin, seen, files)
    assert found == [], "\n".join(found)


def test_each_block_of_code_has_a_button_that_copies_it(tab, origin):
    tab.open(origin + "migrating.html")
    tab.wait_until("document.querySelector('.md-clipboard, .md-code__button') !== null")
    blocks = tab.run("document.querySelectorAll('.md-content pre > code').length")
    assert blocks > 10
    tab.wait_until(f"document.querySelectorAll('.md-content pre .md-code__button').length === {blocks}")


def scheme(tab):
    return tab.run("document.body.getAttribute('data-md-color-scheme')")


@pytest.mark.parametrize(("system", "expected"), [("light", "default"), ("dark", "slate")])
def test_colours_follow_the_system_and_can_be_chosen(tab, origin, system, expected):
    tab.resize(WIDE)
    tab.prefer(system)
    tab.open(origin + "index.html")
    tab.run("localStorage.clear()")
    tab.open(origin + "index.html")
    assert scheme(tab) == expected
    chosen = []
    for _ in range(3):
        tab.run("[...document.querySelectorAll('[data-md-component=palette] label')].find(l => !l.hidden).click()")
        chosen.append(scheme(tab))
    assert chosen == ["default", "slate", expected]
    tab.run("localStorage.clear()")
    tab.prefer("light")


@pytest.mark.parametrize("as_files", [False, True], ids=["served", "opened as files"])
def test_search_finds_a_function(tab, site, origin, as_files):
    start = site.as_uri() + "/" if as_files else origin
    tab.resize(WIDE)
    tab.open(start + "index.html")
    query = "document.querySelector('[data-md-component=search-query]')"
    tab.run(f"{query}.focus(), {query}.value = 'straight_through', {query}.dispatchEvent(new Event('keyup')), 0")
    result = "document.querySelector('.md-search-result__item a')"
    tab.wait_until(f"{result} !== null")
    assert "reference/decorators.html" in tab.run(
        "[...document.querySelectorAll('.md-search-result__item a')].map(a => a.href).join(' ')"
    )
    assert tab.problems(start) == []


FAULTS = """<!doctype html>
<meta charset="utf-8"><title>Faults</title><link rel="icon" href="data:,">
<div id="wide" style="width: 2000px">too wide</div>
<pre style="overflow: auto"><code>{line}</code></pre>
<div style="overflow: auto"><table><tr><td style="white-space: nowrap">{line}</td></tr></table></div>
<p class="clipped" style="overflow: hidden; white-space: nowrap">{line}</p>
<a href="nowhere.html">a dead link</a>
<a href="index.html#nothing">a dead anchor</a>
<a href="http://example.com/">no https</a>
<img src="missing.png">
<script src="http://192.0.2.1/script.js"></script>
<script>console.error("planted"); throw new Error("thrown")</script>
"""


def test_faults_that_are_put_into_a_page_are_reported(tab, tmp_path):
    (tmp_path / "index.html").write_text(FAULTS.format(line="word " * 400))
    with serve(tmp_path) as origin:
        tab.call("Network.setBlockedURLs", urls=["http://192.0.2.1/*"])
        problems, of = look_at(tab, origin, "index.html")
        tab.call("Network.setBlockedURLs", urls=[])
        problems += dead_links(origin, {"index.html": of}, {"index.html"})
    for expected in (
        '1280 pixels: <div#wide> "too wide" is wider than the page',
        '400 pixels: <div#wide> "too wide" is wider than the page',
        "1280 pixels: <pre> ",
        "1280 pixels: <div> ",
        "1280 pixels: <p.clipped> ",
        "400 pixels: <p.clipped> ",
        "index.html: console error: planted",
        "index.html: exception: Error: thrown",
        "index.html: request to another place: http://192.0.2.1/script.js",
        f"index.html: status 404: {origin}missing.png",
        "'a dead link' leads to nowhere.html, which is not there",
        "'a dead anchor' leads to index.html#nothing, where nothing has that name",
        "'no https' leads to http://example.com/",
    ):
        assert any(expected in problem for problem in problems), (expected, problems)
    # In its own box a table or a line of code may scroll at this width.
    assert not any("400 pixels: <pre>" in problem or "400 pixels: <div> " in problem for problem in problems)
