"""Tells the user how far the build is."""

import os
import sys


def tell(line: str) -> None:
    """Prints a line, also to the terminal: pip hides the output of a build, and would seem to hang for a minute."""
    line = f"tf_cg_ops: {line}"
    print(line, flush=True)
    if sys.stdout.isatty():
        return
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:  # There is no terminal, as in a service or a container.
        return
    try:
        if os.tcgetpgrp(terminal) == os.getpgrp():  # A build in the background must not write there.
            os.write(terminal, f"\r\033[K{line}\n".encode())  # pip draws a spinner in the current line.
    finally:
        os.close(terminal)
