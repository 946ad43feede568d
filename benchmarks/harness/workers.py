"""Samplers that live in a process of their own: other numbers of threads, peaks of memory.

A worker does nothing while it waits, so its samples can take turns with the samples of other processes.
"""

import atexit
import gc
import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .record import ROOT


class Worker:
    """A process that builds samplers and takes samples on request. It ends with this process."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.communicate)
        self._answers: Iterator[str] = iter(self._process.stdout or ())

    def build(self, function: str, **arguments: Any) -> dict[str, "Remote"]:
        """Calls `module:function`, which returns samplers, in the worker. They replace earlier ones."""
        names = self.ask({"build": function, "arguments": arguments})
        return {name: Remote(self, name) for name in names}

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The answer to one request."""
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = next(self._answers, None)
        if answer is None:
            raise RuntimeError(f"benchmarks: the worker ended with {self._process.wait()} at {request}")
        return json.loads(answer)

    def end(self) -> None:
        """Ends the process."""
        atexit.unregister(self._process.communicate)
        self._process.communicate()


class Remote:
    """A sampler that a worker holds."""

    def __init__(self, worker: Worker, name: str) -> None:
        self._worker = worker
        self._name = name

    def prepare(self, seconds: float) -> None:
        """Asks the sampler in the worker."""
        self._worker.ask({"prepare": self._name, "seconds": seconds})

    def sample(self) -> float:
        """Asks the sampler in the worker."""
        return self._worker.ask({"sample": self._name})


def _serve() -> None:
    """Answers requests until the input ends."""
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What libraries print must not look like an answer.
    samplers: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any = None
        if "build" in request:
            module, function = request["build"].split(":")
            samplers.clear()
            samplers.update(getattr(importlib.import_module(module), function)(**request["arguments"]))
            gc.collect()
            gc.freeze()
            answer = list(samplers)
        elif "prepare" in request:
            samplers[request["prepare"]].prepare(request["seconds"])
        else:
            answer = samplers[request["sample"]].sample()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
