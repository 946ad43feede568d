"""Asks the Python that TensorFlow is installed in."""

# The variables that the answer depends on.
PYTHON_ENVIRON = ["PATH", "PYTHON_BIN_PATH"]

def run_script(repository, script, imported):
    """Returns the JSON that a script of this folder prints.

    Args:
      repository: the context of the repository rule that asks.
      script: the script's label.
      imported: the labels of its imports; the repository is made anew when one of them changes.
Makefile|# What to build against. For||# The TensorFlow to build against. For
Makefile|# How many processes run the tests; `auto` is one for each core, as far as the memory goes.||# The number of processes that run the tests; `auto` is one for each core, limited by the memory.
Makefile|# The Pythons in which `make wheel` and `make matrix` test, as far as they are at hand.||# The Pythons in which `make wheel` and `make matrix` test, if they are installed.
Makefile|# On a machine with a GPU and nvcc, where neither TensorFlow nor the library need be installed: checks every kernel
# against the CPU and times it against a copy. What it prints belongs into docs/gpu.md.||# Needs a machine with a GPU and nvcc, without TensorFlow and the library: checks every kernel against the CPU and times it
# against a copy. Its output belongs in docs/gpu.md.
BUILD|# What includes no TensorFlow.||# The part without TensorFlow.

    Returns:
      The value.
    """
    for label in imported:
        repository.path(label)
    python = repository.os.environ.get("PYTHON_BIN_PATH") or repository.which("python3")
    if not python:
        fail("tf_cg_ops: found no Python; expected python3 on PATH, or its path in PYTHON_BIN_PATH, got neither.")
    result = repository.execute([python, "-B", repository.path(script)])
    if result.return_code:
        fail("{} with {} failed:\n{}".format(script.name, python, result.stderr))
    return json.decode(result.stdout)
