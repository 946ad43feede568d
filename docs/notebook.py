"""Runs the quickstart notebook.

python docs/notebook.py    # runs it and stores its outputs
"""

import pathlib
import tempfile

import nbclient
import nbformat

QUICKSTART = pathlib.Path(__file__).with_name("quickstart.ipynb")


def execute(path: pathlib.Path) -> nbformat.NotebookNode:
    """Returns the notebook with new outputs, from a fresh kernel in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # The time of day.
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


if __name__ == "__main__":
    nbformat.write(execute(QUICKSTART), QUICKSTART)
