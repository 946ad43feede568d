"""Runs Python code in a fresh process, from a folder that is not the source tree."""

import os
import subprocess
import sys

# Keras imports them wherever they are installed: a third of the time that `import tensorflow` takes.
FOR_KERAS_ALONE = ("sklearn", "matplotlib")

# In seconds. What takes so long has hung, on a busy machine too.
HANGS = 300

_MISSING = f"import sys; sys.modules.update(dict.fromkeys({FOR_KERAS_ALONE}))\n"


def run_python(code, *args, cwd, environment=None, check=True, with_extras=False):
    """Runs `code` with `args` in sys.argv; the result's stdout and stderr are text.

    A process that hangs is killed, and the test fails. Unless `with_extras`, scikit-learn and Matplotlib are as if they
    were not installed.
    """
    code = code if with_extras else _MISSING + code
    return run_interpreter([sys.executable, "-c", code, *args], cwd, environment, check)


def run_script(path, *args, cwd, environment=None, check=True):
    """The same for a file."""
    return run_interpreter([sys.executable, path, *args], cwd, environment, check)


def run_interpreter(command, cwd, environment=None, check=True, time_limit=HANGS):
    """The same for a whole command, which may need more time."""
    result = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        # Nothing of TensorFlow's notes about the machine, which come from two places.
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=time_limit,
    )
    if check:
        assert result.returncode == 0, result.stderr
    return result
