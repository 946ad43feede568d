"""`examples/multi_worker.py` under TensorFlow's strategies: each reaches the weights that NumPy computes."""

import importlib.util
import os
import shutil
import sys

import numpy as np
import pytest

from ..support.processes import run_script
from ..support.sources import ROOT

EXAMPLES = ROOT / "examples"
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
def start():
    """The example's first weights, its data and its numbers."""
    spec = importlib.util.spec_from_file_location("multi_worker", EXAMPLES / "multi_worker.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    network = example.SpikingNetwork()
    batches = list(example.make_dataset().take(example.EXAMPLES // example.GLOBAL_BATCH).as_numpy_iterator())
    return example, {v.name.partition(":")[0]: v.numpy() for v in network.trainable_variables}, batches


def train_with_numpy(start):
    """The weights and the losses of the epochs."""
    example, weights, batches = start
    losses = []
    for _ in range(example.EPOCHS):
        epoch = []
        for x, y in batches:
            loss, gradients = loss_and_gradients(weights, x, y, example)
            epoch.append(loss)
            weights = {name: weights[name] - example.LEARNING_RATE * gradients[name] for name in weights}
        losses.append(np.mean(epoch))
    return weights, losses


def loss_and_gradients(w, x, y, example):
    hidden = x @ w["weights"] + w["bias"]
    features = np.sign(hidden)
    quantised = np.round(4 * w["synapses"]) / 4
    current = features @ quantised
    potential, count, above = np.zeros_like(current), 0.0, []
    for _ in range(example.TIME_STEPS):
        potential = 0.5 * potential + current
        above.append(potential - w["threshold"])
        spikes = (above[-1] > 0).astype(np.float64)
        potential, count = potential - spikes, count + spikes
    error = count @ w["readout"] - y

    upstream = 2 * error / example.GLOBAL_BATCH
    d_count = upstream @ w["readout"].T
    d_potential, d_current, d_threshold = np.zeros_like(current), np.zeros_like(current), 0.0
    for a in reversed(above):
        d_spikes = (d_count - d_potential) / (1 + np.abs(a)) ** 2
        d_threshold = d_threshold - d_spikes.sum(0)
        d_potential = d_potential + d_spikes
        d_current = d_current + d_potential
        d_potential = 0.5 * d_potential
    d_hidden = d_current @ quantised.T * (np.abs(hidden) <= 1)
    return np.sum(error**2) / example.GLOBAL_BATCH, {
        "weights": x.T @ d_hidden,
        "bias": d_hidden.sum(0),
        "synapses": features.T @ d_current,
        "threshold": d_threshold,
        "readout": count.T @ upstream,
    }


def cells(strategy):
    """The cells in the table of modes that a strategy fills."""
    mode = "traced" if strategy == "single" else strategy
    return [pytest.mark.mode_table(feature=f, mode=mode) for f in ("embed_gradient", "custom_gradient")]


@pytest.mark.parametrize("strategy", [pytest.param(strategy, marks=cells(strategy)) for strategy in STRATEGIES])
def test_every_strategy_reaches_the_weights_of_numpy(strategy, start, tmp_path):
    weights, losses = train_with_numpy(start)
    output = tmp_path / "results.npz"
    arguments = [f"--strategy={strategy}", "--output", output, "--time-limit=60"]
    script = shutil.copy(EXAMPLES / "multi_worker.py", tmp_path)  # With no other file next to it.
    result = run_script(script, *arguments, cwd=tmp_path)
    with np.load(output) as found:
        assert set(found) == {"losses", *weights}
        for name, expected in {**weights, "losses": losses}.items():
            np.testing.assert_allclose(found[name], expected, **TOLERANCE, err_msg=name)
    # Without TensorFlow's notes about the machine, which the tasks print, too.
    lines = [line for line in result.stdout.splitlines() if not line.startswith(("WARNING: All log", "I0000"))]
    first, *epochs, last = lines
    assert first == STRATEGIES[strategy]
    assert epochs == [f"epoch {i + 1}/{len(losses)}: loss {loss:.6f}" for i, loss in enumerate(losses)]
    assert last == f"wrote {output}"


# The code of each task, the seconds that they have, and the last line. One fails when both are there.
FAILURES = {
    "a task that fails": (
        """
there = open(sys.argv[1], "wr"[task])  # Waits until both have opened it.
if task:
    raise ValueError("no such luck")
signal.pause()
""",
        20.0,
        "worker 1 ended with status 1.",
    ),
    "a run that takes too long": ("signal.pause()", 0.5, "worker 0, worker 1 did not end within 0.5 seconds."),
}
TASK = 'import json, os, signal, sys\ntask = json.loads(os.environ["TF_CONFIG"])["task"]["index"]\n'


@pytest.mark.parametrize("name", FAILURES)
def test_all_tasks_end_and_the_output_is_shown_and_the_status_is_not_zero_after(name, start, capsys, tmp_path):
    code, seconds, last = FAILURES[name]
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", f"{TASK}print('pid', os.getpid(), flush=True)\n{code}", str(tmp_path / "pipe")]
    assert start[0].run_cluster(command, {"worker": 2}, (), time_limit=seconds) == 1
    shown = capsys.readouterr()
    pids = {int(line.split()[1]) for line in (shown.out + shown.err).splitlines() if line.startswith("pid ")}
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert ("ValueError: no such luck" in shown.err) == (name == "a task that fails")
    assert shown.err.splitlines()[-1] == f"The run failed: {last}"
