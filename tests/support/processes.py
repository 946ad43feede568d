"""Runs Python code in a fresh process, from a folder that is not the source tree."""

import os
import subprocess
import sys


def run_python(code, *args, cwd, environment=None, check=True):
    """Runs `code` with `args` in sys.argv; the result's stdout and stderr are text."""
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if check:
        assert result.returncode == 0, result.stderr
    return result
