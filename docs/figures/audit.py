"""Takes the picture of the report of an audit in docs/audit.md, from the first program of that page.

python docs/figures/audit.py
"""

import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

FIGURES = pathlib.Path(__file__).parent
sys.path.insert(0, str(FIGURES.parents[1]))

from tests.docs.browser import FLAGS, find_chromium  # noqa: E402
from tests.docs.pages import python_blocks  # noqa: E402


def main() -> None:
    """Runs the program, and looks at the page that its report writes."""
    names: dict[str, Any] = {}
    exec(compile(python_blocks((FIGURES.parent / "audit.md").read_text())[0][0], "train.py", "exec"), names)
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder, "audit.html")
        tell_height = "<script>document.title = document.documentElement.scrollHeight</script>"
        page.write_text(names["report"].to_html() + tell_height)

        def show(height: int, *options: str) -> str:
            command = [find_chromium(), *FLAGS, f"--window-size=1100,{height}", *options, page.as_uri()]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        titles = re.findall(r"<title>(\d+)</title>", show(100, "--dump-dom"))
        show(int(titles[0]), f"--screenshot={FIGURES / 'audit.png'}")


if __name__ == "__main__":
    main()
