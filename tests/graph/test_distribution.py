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
    example = load_example("multi_worker")
    network = example.SpikingNetwork()
    batches = list(example.make_dataset().take(example.EXAMPLES // example.GLOBAL_BATCH).as_numpy_iterator())
    return example, {v.name.partition(":")[0]: v.numpy() for v in network.trainable_variables}, batches


def load_example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    first, *epochs, last = result.stdout.splitlines()
    assert first == STRATEGIES[strategy]
    assert epochs == [f"epoch {i + 1}/{len(losses)}: loss {loss:.6f}" for i, loss in enumerate(losses)]
    assert last == f"wrote {output}"


def test_a_failing_task_ends_the_run_and_its_output_is_shown(capsys, tmp_path):
    """It fails when both are there."""
    os.mkfifo(pipe := tmp_path / "pipe")
    code = f"""
import json, os, signal
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("pid", os.getpid())
there = open({str(pipe)!r}, "wr"[task])  # Waits until both have opened it.
if task:
    raise ValueError("no such luck")
signal.pause()
"""
    status = load_example("multi_worker").run_cluster([sys.executable, "-c", code], {"worker": 2}, (), time_limit=20.0)
    shown = capsys.readouterr()
    pids = {int(line.split()[1]) for line in (shown.out + shown.err).splitlines() if line.startswith("pid ")}
    assert (status, len(pids)) == (1, 2)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert "ValueError: no such luck" in shown.err
    assert shown.err.splitlines()[-1] == "The run failed: worker 1 ended with status 1."


def test_the_exit_status_of_a_run_that_takes_too_long_is_not_zero(tmp_path):
    arguments = ["--strategy=multi_worker", "--time-limit=0.1"]
    result = run_script(EXAMPLES / "multi_worker.py", *arguments, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "The run failed: worker 0, worker 1 did not end within 0.1 seconds."
