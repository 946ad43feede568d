"""Graphs with gradient rules that read variables can be frozen like other graphs."""

import pathlib

from ..support.processes import run_python


def test_frozen_graphs_have_the_values_and_the_gradients_in_a_fresh_process(tmp_path):
    """Frozen in a process of its own, too, because freezing removes functions that TensorFlow then misses."""
    program = pathlib.Path(__file__).with_name("freeze.py").read_text()
    assert run_python(program, "freeze", tmp_path, cwd=tmp_path).stdout == "20\n"
    assert run_python(program, "run", tmp_path, cwd=tmp_path).stdout == "right\n"
