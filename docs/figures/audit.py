"""Draws docs/figures/audit.png: the page of the audit in docs/audit.md, as Chromium shows it.

python docs/figures/audit.py
"""

import base64
import contextlib
import io
import pathlib
import sys
import tempfile

FIGURES = pathlib.Path(__file__).parent
ROOT = FIGURES.parents[1]
sys.path.insert(0, str(ROOT))

from tests.docs.browser import Browser, Tab, find_chromium  # noqa: E402
from tests.docs.pages import python_blocks  # noqa: E402

WIDTH = 1250


def main() -> None:
    """Runs the first example of the page, and takes a picture of its report."""
    code, _ = next(iter(python_blocks((ROOT / "docs" / "audit.md").read_text())))
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "model.py", "exec"), names)
    browser = Browser(find_chromium())
    with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
        page.write(names["report"].to_html())
        page.flush()
        tab = Tab(browser)
        tab.open(f"file://{page.name}")
        tab.resize(WIDTH)
        height = tab.run("Math.ceil(document.body.getBoundingClientRect().bottom) + 16")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1.5}
        picture = tab.call("Page.captureScreenshot", format="png", clip=clip)["data"]
    browser.close()
    (FIGURES / "audit.png").write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main()
