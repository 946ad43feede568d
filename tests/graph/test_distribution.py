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


def train_with_numpy(start, custom=("sign", "round", "spike")):
    """The weights, the losses of the epochs, and the smallest distance to a jump. `custom` names what learns."""
    example, weights, batches = start
    weights = dict(weights)
    losses, distances = [], []
    for _ in range(example.EPOCHS):
        epoch = []
        for x, y in batches:
            loss, gradients = loss_and_gradients(weights, x, y, example, custom, distances)
            epoch.append(loss)
            weights = {name: weights[name] - example.LEARNING_RATE * gradients[name] for name in weights}
        losses.append(np.mean(epoch))
    return weights, losses, min(distances)


def loss_and_gradients(w, x, y, example, custom, distances):
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
    jumps = [hidden, np.abs(hidden) - 1, (4 * w["synapses"]) % 1 - 0.5, *above]
    distances.extend(np.abs(jump).min() for jump in jumps)

    upstream = 2 * error / example.GLOBAL_BATCH
    d_count = upstream @ w["readout"].T
    d_potential, d_current, d_threshold = np.zeros_like(current), np.zeros_like(current), 0.0
    for a in reversed(above):
        d_spikes = (d_count - d_potential) / (1 + np.abs(a)) ** 2 * ("spike" in custom)
        d_threshold = d_threshold - d_spikes.sum(0)
        d_potential = d_potential + d_spikes
        d_current = d_current + d_potential
        d_potential = 0.5 * d_potential
    d_hidden = d_current @ quantised.T * (np.abs(hidden) <= 1) * ("sign" in custom)
    return np.sum(error**2) / example.GLOBAL_BATCH, {
        "weights": x.T @ d_hidden,
        "bias": d_hidden.sum(0),
        "synapses": features.T @ d_current * ("round" in custom),
        "threshold": d_threshold,
        "readout": count.T @ upstream,
    }


def assert_results(path, weights, losses):
    with np.load(path) as found:
        assert set(found) == {"losses", *weights}
        np.testing.assert_allclose(found["losses"], losses, **TOLERANCE)
        for name, expected in weights.items():
            np.testing.assert_allclose(found[name], expected, **TOLERANCE, err_msg=name)


def cells(strategy):
    """The cells in the table of modes that a strategy fills."""
    mode = "traced" if strategy == "single" else strategy
    return [pytest.mark.mode_table(feature=f, mode=mode) for f in ("embed_gradient", "custom_gradient")]


@pytest.mark.parametrize("strategy", [pytest.param(strategy, marks=cells(strategy)) for strategy in STRATEGIES])
def test_every_strategy_reaches_the_weights_of_numpy(strategy, start, tmp_path):
    weights, losses, distance = train_with_numpy(start)
    assert distance > 1e-7  # Otherwise, rounding could decide where a sign, a rounded weight or a spike is.
    output = tmp_path / "results.npz"
    arguments = [f"--strategy={strategy}", "--output", output, "--time-limit=60"]
    script = shutil.copy(EXAMPLES / "multi_worker.py", tmp_path)  # With no other file next to it.
    result = run_script(script, *arguments, cwd=tmp_path)
    assert_results(output, weights, losses)
    first, *epochs, last = result.stdout.splitlines()
    assert first == STRATEGIES[strategy]
    assert epochs == [f"epoch {i + 1}/{len(losses)}: loss {loss:.6f}" for i, loss in enumerate(losses)]
    assert last == f"wrote {output}"


def test_each_custom_gradient_matters(start):
    weights, losses, _ = train_with_numpy(start)
    assert losses[-1] < 0.2 * losses[0]
    for custom in (["round", "spike"], ["sign", "spike"], ["sign", "round"]):
        without, _, _ = train_with_numpy(start, custom)
        assert max(np.abs(weights[name] - without[name]).max() for name in weights) > 0.05


# Runs a cluster like the example, with quick programs.

TELL_PID = (
    "import json, os, signal, sys; task = json.loads(os.environ['TF_CONFIG'])['task']; print('pid', os.getpid())\n"
)


def run_cluster(code, jobs, capsys, servers=(), time_limit=20.0):
    """The exit status, the output, and the process ids of all tasks, which have ended."""
    example = load_example("multi_worker")
    status = example.run_cluster([sys.executable, "-c", TELL_PID + code], jobs, servers, time_limit)
    shown = capsys.readouterr()
    pids = [int(line.split()[1]) for line in (shown.out + shown.err).splitlines() if line.startswith("pid ")]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    return status, shown, pids


def test_the_lines_of_the_first_task_are_shown(capsys):
    status, shown, pids = run_cluster("print(task)", {"worker": 2}, capsys)
    assert status == 0
    assert shown.out.splitlines() == [f"pid {pids[0]}", "{'type': 'worker', 'index': 0}"]
    assert shown.err == ""


def test_a_failing_task_ends_the_run_and_its_output_is_shown(capsys, tmp_path):
    """It fails when both are there."""
    os.mkfifo(pipe := tmp_path / "pipe")
    code = f"there = open({str(pipe)!r}, 'wr'[task['index']])\n"  # Waits until both have opened it.
    code += "if task['index']: raise ValueError('no such luck')\nsignal.pause()\n"
    status, shown, pids = run_cluster(code, {"worker": 2}, capsys)
    assert status == 1
    assert len(set(pids)) == 2
    assert "ValueError: no such luck" in shown.err
    assert shown.err.splitlines()[-1] == "The run failed: worker 1 ended with status 1."


def test_a_server_that_ends_by_itself_ends_the_run(capsys):
    code = "if task['type'] == 'worker': signal.pause()\n"
    status, shown, _ = run_cluster(code, {"worker": 1, "ps": 1}, capsys, servers=["ps"])
    assert status == 1
    assert shown.err.splitlines()[-1] == "The run failed: ps 0 ended with status 0."


def test_the_exit_status_of_a_run_that_takes_too_long_is_not_zero(tmp_path):
    arguments = ["--strategy=multi_worker", "--time-limit=0.1"]
    result = run_script(EXAMPLES / "multi_worker.py", *arguments, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "The run failed: worker 0, worker 1 did not end within 0.1 seconds."
