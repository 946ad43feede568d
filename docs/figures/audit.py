"""Takes the picture of the report of an audit in docs/audit.md, from the first program of that page.

python docs/figures/audit.py
"""

import base64
import pathlib
import sys
import tempfile
from typing import Any

FIGURES = pathlib.Path(__file__).parent
sys.path.insert(0, str(FIGURES.parents[1]))

from tests.docs.browser import Browser, Tab, find_chromium  # noqa: E402
from tests.docs.pages import python_blocks  # noqa: E402


def main() -> None:
    """Runs the program, and looks at the page that its report writes."""
    names: dict[str, Any] = {}
    exec(compile(python_blocks((FIGURES.parent / "audit.md").read_text())[0][0], "train.py", "exec"), names)
    browser = Browser(find_chromium())
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder, "audit.html")
        page.write_text(names["report"].to_html())
        tab = Tab(browser)
        tab.open(page.as_uri())
        tab.resize(1100, 100)
        tab.resize(1100, tab.run("document.documentElement.scrollHeight"))
        picture = base64.b64decode(tab.call("Page.captureScreenshot", format="png")["data"])
    browser.close()
    (FIGURES / "audit.png").write_bytes(picture)


if __name__ == "__main__":
    main()
