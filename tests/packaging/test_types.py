"""What type checkers see: decorated functions keep their parameters, and wrong calls are errors."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from ..support.sources import ROOT, source_files

CONFIG = """
[mypy]
python_version = 3.10
check_untyped_defs = True
ignore_missing_imports = True

# It takes a while to read them, and they are not the subject.
[mypy-numpy.*,matplotlib.*,sklearn.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
CALLS = pathlib.Path(__file__).with_name("typed_calls.py")
# What each line must bring: after its comment sign, a type, or "error: " and its code.
EXPECTED = {
    number: line.rpartition("  # ")[2]
    for number, line in enumerate(CALLS.read_text().splitlines(), 1)
    if "  # " in line
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What mypy says about each line of the calls, and of the examples. The package needs a file py.typed for that."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "mypy.ini").write_text(CONFIG)
    paths = [CALLS, *source_files("examples/**/*.py")]
    command = [pathlib.Path(sys.executable).with_name("mypy"), "--no-error-summary", "--no-pretty", *paths]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache" / "types")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    answers = {}
    for line in result.stdout.splitlines():
        path, number, kind, text = re.fullmatch(r"(.*?):(\d+): (\w+): (.*)", line).groups()
        answers.setdefault((pathlib.Path(path).name, int(number)), []).append((kind, text.replace("builtins.", "")))
    return answers


@pytest.mark.parametrize("number", EXPECTED, ids=lambda number: CALLS.read_text().splitlines()[number - 1])
def test_decorated_functions_keep_their_parameters_and_wrong_calls_are_errors(number, found):
    expected, answers = EXPECTED[number], found[CALLS.name, number]
    if expected.startswith("error: "):
        # An overload is sometimes reported twice.
        codes = {re.search(r"\[([\w-]+)\]$", text)[1] for kind, text in answers if kind == "error"}
        assert codes == {expected.removeprefix("error: ")}
    else:
        assert answers == [("note", f'Revealed type is "{expected}"')]


def test_nothing_else_is_an_error_in_the_examples_either(found):
    assert set(found) == {(CALLS.name, number) for number in EXPECTED}
