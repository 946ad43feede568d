"""`examples/multi_worker.py` under TensorFlow's strategies: each reaches the weights of a single process."""

import functools
import shutil

import numpy as np
import pytest

from ..support.processes import run_script
from ..support.sources import ROOT

# The strategies add in different orders: units of 1e-16 in each of 40 steps. All weights are near 1.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}

STRATEGIES = {
    "single": "replicas in all processes: 1; variables here on /job:localhost/replica:0/task:0/device:CPU:0",
    "mirrored": "replicas in all processes: 2; variables here on /job:localhost/replica:0/task:0/device:CPU:0 and "
    "/job:localhost/replica:0/task:0/device:CPU:1",
    "multi_worker": "replicas in all processes: 2; variables here on /job:worker/replica:0/task:0/device:CPU:0",
    "parameter_server": "replicas in all processes: 1; variables here on /job:ps/replica:0/task:0/device:CPU:0",
}


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """The weights and losses under a strategy, and the lines that the example prints."""

    def run(strategy):
        folder = tmp_path_factory.mktemp(strategy)
        script = shutil.copy(ROOT / "examples" / "multi_worker.py", folder)  # With no other file next to it.
        output = folder / "results.npz"
        result = run_script(script, f"--strategy={strategy}", "--output", output, "--time-limit=60", cwd=folder)
        # Without TensorFlow's notes about the machine, which the tasks print, too.
        lines = [line for line in result.stdout.splitlines() if not line.startswith(("WARNING: All log", "I0000"))]
        assert lines.pop() == f"wrote {output}"
        return dict(np.load(output)), lines

    return functools.cache(run)


def cells(strategy):
    """The cells in the table of modes that a strategy fills."""
    mode = "traced" if strategy == "single" else strategy
    return [pytest.mark.mode_table(feature=f, mode=mode) for f in ("embed_gradient", "custom_gradient")]


@pytest.mark.parametrize("strategy", [pytest.param(strategy, marks=cells(strategy)) for strategy in STRATEGIES])
def test_every_strategy_reaches_the_weights_of_a_single_process(strategy, train):
    (found, (first, *epochs)), (expected, _) = train(strategy), train("single")
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], **TOLERANCE, err_msg=name)
    losses = found["losses"]
    assert losses[-1] < losses[0]
    assert first == STRATEGIES[strategy]
    assert epochs == [f"epoch {i + 1}/{len(losses)}: loss {loss:.6f}" for i, loss in enumerate(losses)]
