"""Many threads at once that trace, compile, run, differentiate, save and load: right numbers, and no deadlock."""

import json
import pathlib

import numpy as np

from ..support.processes import run_python

W = 1.5


def test_first_calls_from_many_threads(tmp_path):
    program = pathlib.Path(__file__).with_name("threads.py").read_text()
    results = json.loads(run_python(program, 6, cwd=tmp_path).stdout.splitlines()[-1])
    assert len(results) == 11 * 2 * 6 * 2
    for name, x, dy, *found in results:
        x, dy = np.array(x), np.array(dy)
        expected = [W * np.sin(x), dy * W * np.cos(x), np.sum(dy * np.sin(x))]
        for actual, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-9, atol=1e-12, err_msg=name)
