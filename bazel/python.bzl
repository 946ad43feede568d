"""Runs scripts in the Python that TensorFlow is installed in."""

# The environment variables that the result depends on.
PYTHON_ENVIRON = ["PATH", "PYTHON_BIN_PATH"]

def run_script(repository, script, imported):
    """Returns the JSON that a script of this folder prints.

    Args:
      repository: the context of the repository rule that asks.
      script: the script's label.
      imported: the labels of its imports; the repository is remade when one of them changes.

    Returns:
      The value.
    """
    for label in imported:
        repository.path(label)
    python = repository.os.environ.get("PYTHON_BIN_PATH") or repository.which("python3")
    if not python:
        fail("tf_cg_ops: found no Python. Put python3 on PATH, or set PYTHON_BIN_PATH to its path.")
    result = repository.execute([python, "-B", repository.path(script)])
    if result.return_code:
        fail("{} with {} failed:\n{}".format(script.name, python, result.stderr))
    return json.decode(result.stdout)
