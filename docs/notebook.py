"""Runs the quickstart notebook, and stores what its cells print: python docs/notebook.py."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
from typing import Any

QUICKSTART = pathlib.Path(__file__).resolve().with_name("quickstart.ipynb")


def execute(notebook: dict[str, Any]) -> None:
    """Runs the code cells in this process, in an empty folder, where it stays, and replaces their outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    os.chdir(tempfile.mkdtemp())
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), names)
        text = printed.getvalue().splitlines(keepends=True)
        cell["execution_count"] = number
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []


if __name__ == "__main__":
    quickstart = json.loads(QUICKSTART.read_text())
    execute(quickstart)
    QUICKSTART.write_text(json.dumps(quickstart, indent=1, ensure_ascii=False) + "\n")
