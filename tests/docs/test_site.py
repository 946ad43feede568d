"""The site builds without warnings, shows every public name, and works in a browser.

Without Chromium (`make install-chromium`) the tests in a browser are skipped.
"""

import http.server
import json
import mimetypes
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.parse

import pytest

from ..support.processes import HANGS
from ..support.sources import ROOT, source_files
from .browser import FLAGS, PROGRAMS, find_chromium
from .pages import public_objects

# What readers search for, and the page that must come first.
SEARCHES = {
    "nan loss": "nan.html",
    "save model": "ship.html",
    "clip gradient": "recipes.html",
    "strip": "ship.html",
    "TFLite": "ship.html",
    "quantization": "quantization.html",
}
LOOK = pathlib.Path(__file__).with_name("look.html")


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


class Server(http.server.BaseHTTPRequestHandler):
    """Serves the site with look.html beside it, notes what is missing, and takes what look.html finds."""

    site, missing, asked, found = None, [], set(), queue.Queue()

    def do_GET(self):
        path = self.site / (urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/") or "index.html")
        path = LOOK if path.name == LOOK.name else path
        if not path.is_file():
            self.missing.append(self.path)
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", mimetypes.guess_type(path)[0] or "text/plain")
        self.send_header("Cache-Control", "max-age=600" if path.suffix == ".js" else "no-store")
        # The browser tells look.html about requests to other places.
        self.send_header("Content-Security-Policy", "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'")
        self.end_headers()
        content = path.read_bytes()
        if path.suffix == ".html" and path != LOOK:
            content = content.replace(b"<head>", b"<head><script>parent.watch(window)</script>", 1)
        elif path.name == "search_index.json" and path in self.asked:
            # To index all pages takes each page as long as all else. The first one has done it.
            content = json.dumps(json.loads(content) | {"docs": []}).encode()
        self.asked.add(path)
        self.wfile.write(content)

    def do_POST(self):
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def looks(site, tmp_path_factory):
    """The address of the site, what a browser finds in each page, and where searches lead."""
    if not find_chromium():
        pytest.skip(
            f"none of {', '.join(PROGRAMS)} is on PATH: how the pages look and their links are NOT tested. "
            "On Debian: sudo apt-get install chromium-headless-shell"
        )
    Server.site = site
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}/"
    # The pages of examples show nothing but a file.
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.parent.name != "examples")
    asked = [[page for page in pages if page != "404.html"], list(SEARCHES)]
    address = f"{origin}{LOOK.name}#{urllib.parse.quote(json.dumps(asked))}"
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    command = [find_chromium(), *FLAGS, "--remote-debugging-port=0", "--window-size=1300,1000", profile, address]
    # The program can be a script that starts the browser.
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        found = Server.found.get(timeout=HANGS)
    finally:
        os.killpg(browser.pid, signal.SIGTERM)
        browser.wait()
    server.shutdown()
    server.server_close()
    assert "error" not in found, found
    return origin, found["pages"], found["searches"]


def test_no_page_overflows_or_fails(looks):
    assert [f"{page} {problem}" for page, of in looks[1].items() for problem in of["problems"]] == []
    assert Server.missing == []


def test_links_lead_somewhere(site, looks):
    """Links to other places are not followed, but must work from anywhere."""
    origin, seen, _ = looks
    assert sum(len(of["links"]) for of in seen.values()) > 500
    for page, of in seen.items():
        for address, text in of["links"]:
            path, _, anchor = address.partition("#")
            target = path.removeprefix(origin) or "index.html"
            if not path.startswith(origin):
                assert urllib.parse.urlsplit(address).scheme == "https", (page, text, address)
            else:
                assert (site / target).is_file(), (page, text, address)
                if anchor and target in seen:
                    assert urllib.parse.unquote(anchor) in seen[target]["anchors"], (page, text, address)


def test_the_head_and_the_first_column_of_the_support_matrix_stay_in_view(looks):
    heads = looks[1]["modes.html"]["heads"]
    assert len(heads) == 2
    for width, below_the_bar, left in heads:
        assert 0 <= below_the_bar < 100
        assert 0 <= left < width / 3


def test_a_search_leads_to_the_page_that_has_the_answer(looks):
    assert looks[2] == SEARCHES
