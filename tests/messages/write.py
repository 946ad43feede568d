"""Writes messages.txt anew, for review, and lists the statements of the package that raise an error of no row.

python -m tests.messages.write [GROUP ...]
"""

import ast
import pathlib
import sys
import time
import traceback

from . import table
from .test_messages import GROUPS

PACKAGE = table.FILE.parents[2] / "tf_cg_ops"


def raised_in_the_package(error):
    """The files and lines from which the error, and the errors that caused it, were raised."""
    places = set()
    while error is not None:
        frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
        ours = [(name, line) for name, line in frames if pathlib.Path(name).is_relative_to(PACKAGE)]
        places |= set(ours)
        error = error.__cause__ or error.__context__
    return places


def raise_statements():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                yield str(path), range(node.lineno, node.end_lineno + 1)


def main(names):
    written, places = table.sections(), set()
    for name in names or GROUPS:
        start = time.time()
        written[name], errors = table.lines_of(GROUPS[name])
        places = places.union(*map(raised_in_the_package, errors))
        print(f"{time.time() - start:5.1f} s  {len(GROUPS[name]):3} rows  {name}")
    table.write({name: written[name] for name in GROUPS if name in written})
    if not names:
        for path, lines in raise_statements():
            if not any((path, line) in places for line in lines):
                print(f"no row: {pathlib.Path(path).relative_to(PACKAGE.parent)}:{lines[0]}")
    table.clean_up()


if __name__ == "__main__":
    main(sys.argv[1:])
