"""What the build says to the person who waits for it."""

import os
import sys


def tell(line: str) -> None:
    """Prints a line, also to the terminal: pip keeps the output of a build to itself, and looks hung for a minute."""
    line = f"tf_cg_ops: {line}"
    print(line, flush=True)
    if sys.stdout.isatty():
        return
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:  # There is none: the build runs in a service or a container.
        return
    try:
        if os.tcgetpgrp(terminal) == os.getpgrp():  # A build in the background must not write there.
            os.write(terminal, f"\r\033[K{line}\n".encode())  # pip draws a spinner in the current line.
    finally:
        os.close(terminal)
