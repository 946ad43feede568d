"""Runs Python code in a fresh process, from a folder that is not the source tree."""

import atexit
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

# Keras imports these if they are installed, which takes a third of the time of `import tensorflow`.
FOR_KERAS_ALONE = ("sklearn", "matplotlib")

# In seconds. A process that takes this long hangs, even on a busy machine.
HANGS = 300

# Processes of the warm Python can only be given these variables. Others could matter while TensorFlow is imported.
READ_LATE = {"PYTHONPATH", "TMPDIR", "TF_CG_OPS_DISABLE_PASSES"}

# Hides TensorFlow's notes about the machine.
_NO_NOTES = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def run_python(code, *args, cwd, environment=None, check=True, with_extras=False):
    """Runs `code` with `args` in sys.argv; the result's stdout and stderr are text.

    A process that hangs is killed, and the test fails. TensorFlow is imported already. Unless `with_extras`, scikit-learn
    and Matplotlib are as if they were not installed.
    """
    environment = environment or {}
    missing = () if with_extras else FOR_KERAS_ALONE
    if not environment.keys() <= READ_LATE:
        code = f"import sys; sys.modules.update(dict.fromkeys({missing}))\n{code}"
        return run_interpreter([sys.executable, "-c", code, *args], cwd, environment, check)
    environment = {**os.environ, **_NO_NOTES, **environment}
    result = _run_forked(_warm_python(missing), code, [*map(str, args)], str(cwd), environment)
    if check:
        assert result.returncode == 0, result.stderr
    return result


@functools.cache
def _warm_python(missing):
    """A process of `warm.py`, in which these packages are as if they were not installed."""
    process = subprocess.Popen(
        [sys.executable, pathlib.Path(__file__).with_name("warm.py"), *missing],
        cwd="/",
        env={**os.environ, **_NO_NOTES},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def close():
        process.stdin.close()
        process.stdout.close()
        process.wait()

    atexit.register(close)
    return process


def _run_forked(process, code, arguments, cwd, environment):
    """The result of `code` in a process that `warm.py` forks; one at a time."""
    with tempfile.TemporaryDirectory() as folder:
        written = {name: pathlib.Path(folder, name) for name in ("stdout", "stderr")}
        request = {"code": code, "arguments": arguments, "cwd": cwd, "environment": environment, "seconds": HANGS}
        request |= {name: str(path) for name, path in written.items()}
        print(json.dumps(request), file=process.stdin, flush=True)
        status = int(process.stdout.readline())
        texts = {name: path.read_text() for name, path in written.items()}
    assert status != -signal.SIGALRM, f"no end within {HANGS} s: {texts['stderr']}"
    return subprocess.CompletedProcess(code, status, **texts)


def run_script(path, *args, **options):
    """The same for a file."""
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    return run_python(code, path, *args, **options)


def run_interpreter(command, cwd, environment=None, check=True, time_limit=HANGS):
    """The same for a whole command, in a process of its own, which can be given more time."""
    result = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**os.environ, **_NO_NOTES, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=time_limit,
    )
    if check:
        assert result.returncode == 0, result.stderr
    return result
