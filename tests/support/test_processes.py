"""A process forked from the warm Python is as fresh as a new one, although TensorFlow is already imported."""

import json
import os
import signal
import sys

import pytest

from . import processes
from .processes import FOR_KERAS_ALONE, run_interpreter, run_python

WHAT_IT_IS = """
import json, os, sys
import tensorflow as tf
from tensorflow.python.eager import context

print(json.dumps({
    "argv": sys.argv,
    "cwd": os.getcwd(),
    "path": sys.path[:2],
    "input": sys.stdin.read(),
    "name": __name__,
    "variable": os.environ.get("TF_CG_OPS_DISABLE_PASSES"),
    "has run operations": context.context()._context_handle is not None,
    "threads": len(os.listdir("/proc/self/task")),
    "library": "tf_cg_ops" in sys.modules,
}))
print("to stderr", file=sys.stderr)
"""


def test_a_forked_python_has_tensorflow_and_no_traces_of_other_code(tmp_path):
    environment = {"TF_CG_OPS_DISABLE_PASSES": "1", "PYTHONPATH": str(tmp_path)}
    result = run_python(WHAT_IT_IS, 1, "two", cwd=tmp_path, environment=environment)
    assert json.loads(result.stdout) == {
        "argv": ["-c", "1", "two"],
        "cwd": str(tmp_path),
        "path": ["", str(tmp_path)],
        "input": "",
        "name": "__main__",
        "variable": "1",
        "has run operations": False,
        "threads": 1,
        "library": False,
    }
    assert result.stderr.endswith("to stderr\n")


def test_nothing_of_one_is_there_in_the_next(tmp_path):
    code = "import sys, os; print(os.environ.get('LEFT'), 'tf_cg_ops' in sys.modules)\nos.environ['LEFT'] = 'something'"
    for _ in range(2):
        result = run_python(f"{code}\nimport tf_cg_ops; sys.modules['json'] = None", cwd=tmp_path)
        assert result.stdout == "None False\n"


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("1 +", 1, "SyntaxError"),
    ],
)
def test_endings_and_their_messages(code, status, says, tmp_path):
    result = run_python(code, cwd=tmp_path, check=False)
    assert result.returncode == status
    assert says in result.stderr
    with pytest.raises(AssertionError) as raised:
        run_python(code, cwd=tmp_path)
    assert says in str(raised.value)


def test_one_that_hangs_is_killed_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "HANGS", 1)
    with pytest.raises(AssertionError, match="no end within 1 s: begun"):
        run_python("import sys, signal; print('begun', file=sys.stderr, flush=True); signal.pause()", cwd=tmp_path)
    monkeypatch.undo()
    assert run_python("print(1)", cwd=tmp_path).stdout == "1\n"


@pytest.mark.parametrize("environment", [None, {"TF_ENABLE_ONEDNN_OPTS": "1"}], ids=["forked", "started"])
def test_packages_that_only_keras_imports_are_missing(environment, tmp_path):
    code = f"import sys; print([sys.modules[name] for name in {FOR_KERAS_ALONE}])"
    assert run_python(code, cwd=tmp_path, environment=environment).stdout == "[None, None]\n"


def test_a_variable_that_tensorflow_reads_early_is_there_before_it(tmp_path):
    """Such a variable has no effect in a forked process, so a new one is started."""
    code = "import os, sys; print(os.environ['TF_USE_LEGACY_KERAS'], 'tensorflow' in sys.modules)"
    assert run_python(code, cwd=tmp_path, environment={"TF_USE_LEGACY_KERAS": "1"}).stdout == "1 False\n"


def test_the_forking_python_ends_with_its_parent(tmp_path):
    """The Python that forks ends with the process that started it."""
    code = (
        f"import sys; sys.path.insert(0, {os.getcwd()!r})\n"
        "from tests.support import processes\n"
        "processes.run_python('', cwd='/')\n"
        "print(processes._warm_python().pid)"
    )
    process = int(run_interpreter([sys.executable, "-c", code], tmp_path).stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
