"""A spiking network trained on one device, on two, by two workers, or by a parameter server: the weights are the same.

    python examples/multi_worker.py --strategy=single              # One device: what the others are compared with.
    python examples/multi_worker.py --strategy=mirrored            # Two logical CPUs of one process.
    python examples/multi_worker.py --strategy=multi_worker        # Two processes, which add up their gradients.
    python examples/multi_worker.py --strategy=parameter_server    # A coordinator, a worker, and a parameter server.

The last two start their processes on this machine. On machines of your own, start the same command on each, with
TF_CONFIG in its environment (https://www.tensorflow.org/guide/distributed_training#TF_CONFIG). A worker of a parameter
server runs none of the model's Python code, but it computes the ops, so it has to import tf_cg_ops, too.

Signs, roundings and spikes have the derivative 0: without custom gradients, only the last layer would learn.
"""

import argparse
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

EXAMPLES, GLOBAL_BATCH, EPOCHS, LEARNING_RATE = 64, 16, 10, 0.1
INPUTS, HIDDEN, NEURONS, TIME_STEPS = 5, 8, 4, 4
# The processes of each strategy; all other strategies have one. The first task shows and writes the results.
JOBS = {"multi_worker": {"worker": 2}, "parameter_server": {"chief": 1, "worker": 1, "ps": 1}}
# They wait for the coordinator and do not end by themselves.
SERVERS = {"multi_worker": (), "parameter_server": ("worker", "ps")}


class SpikingNetwork(tf.Module):
    """Features of +1 and -1, synapses in quarters, and neurons that spike; float64."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.weights = _variable("weights", rng.normal(size=[INPUTS, HIDDEN]) / 2)
        self.bias = _variable("bias", rng.normal(size=[HIDDEN]) / 4)
        self.synapses = _variable("synapses", rng.normal(size=[HIDDEN, NEURONS]) / 2)
        self.threshold = _variable("threshold", np.linspace(0.4, 0.9, NEURONS))
        self.readout = _variable("readout", rng.normal(size=[NEURONS, 1]) / 4)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Predictions of shape [batch, 1] for inputs of shape [batch, INPUTS]."""
        hidden = tf.matmul(x, self.weights) + self.bias
        inside = tf.cast(tf.abs(hidden) <= 1.0, hidden.dtype)
        features = cg.embed_gradient(fx=tf.sign(hidden), gx=inside, x=hidden)  # A straight-through sign.
        current = self.quantised_synapses(features)

        def step(time: tf.Tensor, potential: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            potential = 0.5 * potential + current
            spikes = self.spike(potential)
            return time + 1, potential - spikes, count + spikes

        start = (0, tf.zeros_like(current), tf.zeros_like(current))
        _, _, count = tf.while_loop(lambda time, *_: time < TIME_STEPS, step, start)
        return tf.matmul(count, self.readout)

    @cg.custom_gradient
    def quantised_synapses(self, features: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        """Computes with rounded weights, and trains the weights before rounding."""
        quantised = tf.round(4.0 * self.synapses) / 4.0

        def grad_fn(dy: tf.Tensor, variables: list[tf.Variable]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            return tf.matmul(dy, quantised, transpose_b=True), [tf.matmul(features, dy, transpose_a=True)]

        return tf.matmul(features, quantised), grad_fn

    @cg.custom_gradient
    def spike(self, potential: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        """1 above the threshold, else 0. The variable is read inside the loop."""
        above = potential - self.threshold

        def grad_fn(dy: tf.Tensor, variables: list[tf.Variable]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            dx = dy / (1.0 + tf.abs(above)) ** 2
            return dx, [-tf.reduce_sum(dx, 0)]

        return tf.cast(above > 0.0, potential.dtype), grad_fn


def _variable(name: str, value: np.ndarray) -> tf.Variable:
    # With this aggregation, assign_sub subtracts the sum over the replicas.
    return tf.Variable(value, name=name, aggregation=tf.VariableAggregation.SUM)


def make_dataset() -> tf.data.Dataset:
    """The same global batches in the same order, forever."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=[EXAMPLES, INPUTS])
    y = np.sin(x.sum(1, keepdims=True)) + x[:, :1]
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH).repeat()


def make_step(strategy: tf.distribute.Strategy, network: SpikingNetwork) -> Callable[[Iterator], tf.Tensor]:
    """One step of gradient descent on one global batch; each replica gets a part of it."""

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # Divided by the size of the global batch, the sum over the replicas is the mean over that batch.
            loss = tf.reduce_sum((network(x) - y) ** 2) / GLOBAL_BATCH
        variables = network.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)
        return loss

    @tf.function
    def step(iterator: Iterator) -> tf.Tensor:
        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return step


def train(strategy: tf.distribute.Strategy) -> tuple[SpikingNetwork, list[float]]:
    """The trained network, and the mean loss of each epoch."""
    with strategy.scope():
        network = SpikingNetwork()
    replicas = strategy.num_replicas_in_sync
    places = " and ".join(part.device for part in strategy.experimental_local_results(network.weights))
    print(f"replicas in all processes: {replicas}; variables here on {places}", flush=True)
    step = make_step(strategy, network)
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        batches = iter(coordinator.create_per_worker_dataset(make_dataset))
    else:
        coordinator, batches = None, iter(strategy.experimental_distribute_dataset(make_dataset()))
    steps = EXAMPLES // GLOBAL_BATCH
    epochs = []
    for epoch in range(EPOCHS):
        if coordinator is None:
            losses = [float(step(batches)) for _ in range(steps)]
        else:
            # Steps wait for a free worker, so with one worker they run one after the other. With more workers
            # the weights would depend on who is faster.
            scheduled = [coordinator.schedule(step, args=(batches,)) for _ in range(steps)]
            coordinator.join()
            losses = [float(loss.fetch()) for loss in scheduled]
        epochs.append(sum(losses) / steps)
        print(f"epoch {epoch + 1}/{EPOCHS}: loss {epochs[-1]:.6f}", flush=True)
    return network, epochs


def make_strategy(name: str) -> tf.distribute.Strategy:
    """The strategy, for the task that TF_CONFIG names."""
    if name == "single":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    if name == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())


def run_task(name: str, output: pathlib.Path | None) -> None:
    """The work of one process: the only one, or the task that TF_CONFIG names."""
    # On one core TensorFlow uses one thread for operations, and tasks would wait for each other forever.
    threads = max(4, os.cpu_count() or 1)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    task = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if task.task_type in SERVERS.get(name, ()):
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
        server = tf.distribute.Server(task.cluster_spec(), task.task_type, task.task_id, protocol="grpc", config=config)
        server.join()  # Forever: whoever started this process ends it.
    network, losses = train(make_strategy(name))
    if output and not task.task_id:
        weights = {v.name.partition(":")[0]: np.asarray(v.read_value()) for v in network.trainable_variables}
        np.savez(output, losses=losses, **weights)
        print(f"wrote {output}")


# The rest starts the processes of a cluster on one machine, shows what they print, and ends them in time.

# A process of the cluster: its job and its index, as in TF_CONFIG, such as ("worker", 0).
Task = tuple[str, int]
Events = queue.Queue[tuple[Task, str | None]]


class _Process:
    """One task of the cluster. Each line that it prints is an event; None marks the end."""

    def __init__(self, command: Sequence[str], cluster: dict[str, list[str]], task: Task, events: Events) -> None:
        job, index = task
        config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
        self._task, self._events = task, events
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "TF_CONFIG": config, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._events.put((self._task, line))
        self._events.put((self._task, None))

    def end(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


def run_cluster(command: Sequence[str], jobs: dict[str, int], servers: Sequence[str], time_limit: float) -> int:
    """Runs the command once for each task of the cluster and returns an exit status.

    Args:
      command: The program of each process; the variable TF_CONFIG in its environment names its task.
      jobs: How many tasks each job has: `{"worker": 2}`. The lines of the very first task are shown as they come.
      servers: Jobs that only serve the others. They are ended when the others have ended.
      time_limit: The seconds after which processes that still run are killed.

    Returns:
      0 if all tasks did their work; else 1, and what the tasks had printed is on stderr.
    """
    held = _hold_ports(sum(jobs.values()))
    addresses = (f"127.0.0.1:{port.getsockname()[1]}" for port in held)
    cluster = {job: [next(addresses) for _ in range(count)] for job, count in jobs.items()}
    printed: dict[Task, list[str]] = {(job, index): [] for job, count in jobs.items() for index in range(count)}
    processes: dict[Task, _Process] = {}
    events: Events = queue.Queue()
    try:
        for task in printed:
            processes[task] = _Process(command, cluster, task, events)
        working = {task for task in printed if task[0] not in servers}
        reason = _why_it_failed(processes, working, printed, events, time_limit)
    finally:
        for process in processes.values():
            process.end()
        for port in held:
            port.close()
    if reason is None:
        return 0
    while not events.empty():  # What happened in the meantime may say more.
        task, line = events.get()
        printed[task].append(line or "")
    for task, lines in printed.items():
        print(f"--- {_name(task)} printed:\n", *lines, sep="", file=sys.stderr)
    print(f"The run failed: {reason}.", file=sys.stderr)
    return 1


def _why_it_failed(
    processes: dict[Task, _Process],
    working: set[Task],
    printed: dict[Task, list[str]],
    events: Events,
    time_limit: float,
) -> str | None:
    """Collects what the tasks print until all workers have ended; returns None if all had status 0."""
    first = next(iter(printed))
    deadline = time.monotonic() + time_limit
    try:
        while working:
            task, line = events.get(timeout=max(deadline - time.monotonic(), 0.0))
            if line is not None:
                printed[task].append(line)
                if task == first:
                    print(line, end="", flush=True)
                continue
            status = processes[task].process.wait(timeout=max(deadline - time.monotonic(), 0.0))
            if status != 0 or task not in working:  # A server has no reason to end while others work.
                return f"{_name(task)} ended with status {status}"
            working.remove(task)
    except (queue.Empty, subprocess.TimeoutExpired):
        return f"{', '.join(map(_name, sorted(working)))} did not end within {time_limit:g} seconds"
    return None


def _hold_ports(count: int) -> list[socket.socket]:
    """Sockets on free ports. While they are open, no other program gets these ports, but a task can listen there."""
    held = []
    for _ in range(count):
        held.append(socket.socket())
        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held[-1].bind(("127.0.0.1", 0))
    return held


def _name(task: Task) -> str:
    return f"{task[0]} {task[1]}"


def main() -> int:
    """Runs the command; the result is its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=["single", "mirrored", *JOBS], default="mirrored")
    parser.add_argument("--output", type=pathlib.Path, help="a file for losses and final weights (.npz)")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for all processes that are started")
    options = parser.parse_args()
    if options.strategy in JOBS and "TF_CONFIG" not in os.environ:
        jobs, servers = JOBS[options.strategy], SERVERS[options.strategy]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # An exit ends the processes; a signal alone would not.
        return run_cluster([sys.executable, *sys.argv], jobs, servers, options.time_limit)
    run_task(options.strategy, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
