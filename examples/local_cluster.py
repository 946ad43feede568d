"""Starts the processes of a TensorFlow cluster on this machine, shows what they print, and ends them in time."""

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

# A process of the cluster by its job and its index in it, as TF_CONFIG has them: ("worker", 0).
Task = tuple[str, int]
Events = queue.Queue[tuple[Task, str | None]]


class _Process:
    """One task of the cluster; each line that it prints becomes an event, and the end of its output is None."""

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
        self.process.kill()
        self.process.wait()
        self._reader.join()


def run(command: Sequence[str], jobs: dict[str, int], servers: Sequence[str], time_limit: float) -> int:
    """Runs the command once for each task of the cluster and returns an exit status.

    Args:
      command: What each process runs; the variable TF_CONFIG in its environment tells it which task it is.
      jobs: How many tasks each job has: `{"worker": 2}`. The lines of the very first task are shown as they come.
      servers: Jobs that only serve the others: they need not end by themselves, and are ended when the others have.
      time_limit: The seconds after which whatever still runs is killed.

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
    while not events.empty():  # What came in the meantime may say more.
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
    """Collects what the tasks print until all that are working have ended; None if they did so with status 0."""
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
    """Sockets with free ports. Until they are closed, no other program is given these ports, but a task may listen."""
    held = []
    for _ in range(count):
        held.append(socket.socket())
        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held[-1].bind(("127.0.0.1", 0))
    return held


def _name(task: Task) -> str:
    return f"{task[0]} {task[1]}"
