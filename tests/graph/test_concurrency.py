"""Many threads at once that trace, compile, run, differentiate, save and load: right numbers, and no deadlock."""

import pathlib

from ..support.processes import run_python


def test_first_calls_from_many_threads(tmp_path):
    program = pathlib.Path(__file__).with_name("threads.py").read_text()
    assert run_python(program, 6, cwd=tmp_path).stdout == "6 threads are right\n"
