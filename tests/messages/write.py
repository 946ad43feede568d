"""Writes messages.txt anew, for review, and lists the statements of the package that raise an error of no call.

python -m tests.messages.write [GROUP ...]
"""

import ast
import sys
import time
import traceback

from . import table
from .test_messages import NAMES

PACKAGE = table.FILE.parents[2] / "tf_cg_ops"


def raised_in_the_package(error):
    """The files and lines from which the error, and the errors that caused it, were raised."""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            yield frame.filename, frame.lineno
        error = error.__cause__ or error.__context__


def main(names):
    written, places = {}, set()
    for name in names or table.sections():
        start = time.time()
        written[name], errors = table.lines_of(*table.sections()[name], NAMES)
        places = places.union(*map(raised_in_the_package, errors))
        print(f"{time.time() - start:5.1f} s  {len(written[name]):3} lines  {name}")
    table.write(written)
    for path in [] if names else sorted(PACKAGE.rglob("*.py")):
        raised = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Raise) and n.exc is not None]
        for node in raised:
            if not any((str(path), line) in places for line in range(node.lineno, node.end_lineno + 1)):
                print(f"no call: {path.relative_to(PACKAGE.parent)}:{node.lineno}")
    table.clean_up()


if __name__ == "__main__":
    main(sys.argv[1:])
