"""Strategies: `examples/multi_worker.py` reaches the weights of plain TensorFlow, and functions get their variables."""

import importlib.util
import os
import pathlib
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf

from ..support.modes import tape_vjp
from ..support.processes import run_python, run_script
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
def example():
    spec = importlib.util.spec_from_file_location("multi_worker", EXAMPLES / "multi_worker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def straight_through(value, surrogate):
    """The value, with the gradient of the surrogate."""
    return surrogate + tf.stop_gradient(value - surrogate)


@pytest.fixture(scope="module")
def trained(example):
    """The weights and the losses of the epochs, with gradients of TensorFlow's own operations alone."""
    network, losses = example.SpikingNetwork(), []

    def loss(x, y):
        hidden = x @ network.weights + network.bias
        features = straight_through(tf.sign(hidden), tf.clip_by_value(hidden, -1.0, 1.0))
        synapses = network.synapses
        current = features @ straight_through(tf.round(4.0 * synapses) / 4.0, synapses + 0.0)
        potential, count = tf.zeros_like(current), 0.0
        for _ in range(example.TIME_STEPS):
            potential = 0.5 * potential + current
            above = potential - network.threshold
            spikes = straight_through(tf.cast(above > 0.0, tf.float64), above / (1.0 + tf.abs(above)))
            potential, count = potential - spikes, count + spikes
        return tf.reduce_sum((count @ network.readout - y) ** 2) / example.GLOBAL_BATCH

    batches = list(example.make_dataset().take(example.EXAMPLES // example.GLOBAL_BATCH))
    for _ in range(example.EPOCHS):
        epoch = []
        for batch in batches:
            value, gradients = tape_vjp(lambda *_, batch=batch: loss(*batch), network.trainable_variables, None)
            epoch.append(value)
            for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
                variable.assign_sub(example.LEARNING_RATE * gradient)
        losses.append(np.mean(epoch))
    return {v.name.partition(":")[0]: v.numpy() for v in network.trainable_variables}, losses


def with_cells(strategy, *more):
    """A strategy, with the cells of the support matrix that a test fills."""
    mode, features = {"single": "traced"}.get(strategy, strategy), ("embed_gradient", "custom_gradient", *more)
    return pytest.param(strategy, marks=[pytest.mark.mode_table(feature=f, mode=mode) for f in features])


@pytest.mark.parametrize("strategy", [*map(with_cells, STRATEGIES)])
def test_every_strategy_reaches_the_weights_without_the_library(strategy, trained, tmp_path):
    weights, losses = trained
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


@pytest.mark.parametrize(
    "strategy", [with_cells(strategy, "recompute_grad", "cg.scan") for strategy in ("mirrored", "parameter_server")]
)
def test_variables_of_a_strategy(strategy, tmp_path):
    program = pathlib.Path(__file__).with_name("replicas.py").read_text()
    assert run_python(program, strategy, cwd=tmp_path).stdout.splitlines()[-1] == "right"


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
def test_all_tasks_end_and_the_output_is_shown_and_the_status_is_not_zero_after(name, example, capsys, tmp_path):
    code, seconds, last = FAILURES[name]
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", f"{TASK}print('pid', os.getpid(), flush=True)\n{code}", str(tmp_path / "pipe")]
    assert example.run_cluster(command, {"worker": 2}, (), time_limit=seconds) == 1
    shown = capsys.readouterr()
    pids = {int(line.split()[1]) for line in (shown.out + shown.err).splitlines() if line.startswith("pid ")}
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert ("ValueError: no such luck" in shown.err) == (name == "a task that fails")
    assert shown.err.splitlines()[-1] == f"The run failed: {last}"
