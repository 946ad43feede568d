"""Random calls of the ops in child processes: each must give the right answer or an exception."""

import collections
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]

# A child ends after so many calls, because traces and kernels stay in its memory.
CALLS_OF_A_CHILD = 20_000

# In seconds: a longer call counts as endless. Compilers and imports are slow on a busy machine.
TIME_LIMIT = 60.0

# The faults that the fuzzer can inject into its own calls.
INJECTABLE = ("abort", "hang", "wrong")


@dataclasses.dataclass
class Summary:
    calls: int = 0
    accepted: int = 0
    refused: int = 0
    by_op: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    by_mode: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    by_exception: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    children: int = 0
    peak_memory_mb: int = 0
    failures: list = dataclasses.field(default_factory=list)

    def note(self, said):
        self.calls += 1
        self.accepted += said["outcome"] == "accepted"
        self.refused += said["outcome"] == "refused"
        self.by_op[f"{said['op']} {said['outcome']}"] += 1
        self.by_mode[f"{said['mode']} {said['outcome']}"] += 1
        if said["exception"]:
            self.by_exception[said["exception"]] += 1
        self.peak_memory_mb = max(self.peak_memory_mb, said["memory_mb"])
        if "failure" in said:
            self.failures.append({"seed": said["ended"], "call": said["call"], "failure": said["failure"]})


class _Child:
    """A process that makes the calls from `first` up to `stop`: those that keep the ops in graphs, or the others."""

    def __init__(self, first, stop, keeps_ops, inject):
        self.stop, self.keeps_ops, self.current, self.ended, self.text = stop, keeps_ops, first, True, b""
        self.pipe, writing = os.pipe()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 (close() closes it)
        options = [option for text in inject for option in ("--inject", text)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.raw_child", str(first), str(stop), str(writing), *options],
            cwd=ROOT,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_ENABLE_ONEDNN_OPTS": "0",
                "TF_CG_OPS_DISABLE_PASSES": str(int(keeps_ops)),
            },
            pass_fds=[writing],
            stdout=subprocess.DEVNULL,
            stderr=self.stderr,
        )
        os.close(writing)
        self.heard = time.monotonic()

    def read(self):
        """The output since the last call; None at its end."""
        data = os.read(self.pipe, 1 << 16)
        if not data:
            return None
        self.heard = time.monotonic()
        *lines, self.text = (self.text + data).split(b"\n")
        said = [json.loads(line) for line in lines]
        if said:
            self.ended = "ended" in said[-1]
            self.current = said[-1]["ended"] + 1 if self.ended else said[-1]["begins"]
        return [what for what in said if "ended" in what]

    def close(self):
        """How it ended, and the end of what it wrote."""
        os.close(self.pipe)
        code = self.process.wait()
        self.stderr.seek(0)
        written = self.stderr.read().decode(errors="replace")[-1500:]
        self.stderr.close()
        with contextlib.suppress(ValueError):
            return (signal.Signals(-code).name if code < 0 else f"exit status {code}"), written
        return f"exit status {code}", written


def run(first, count, processes=1, inject=(), time_limit=TIME_LIMIT, progress=None, seconds=None):
    """Makes the calls of the seeds from `first` on. `progress` is called with the summary now and then.

    After `seconds` the run ends, with the calls made until then.
    """
    end = time.monotonic() + (seconds or math.inf)
    summary = Summary()
    size = max(1, min(CALLS_OF_A_CHILD, -(-count // processes)))
    starts = range(first, first + count, size)
    waiting = [(start, min(start + size, first + count), keeps) for start in starts for keeps in (False, True)]
    running = {}
    with selectors.DefaultSelector() as selector:
        try:
            while (waiting or running) and time.monotonic() < end:
                while waiting and len(running) < processes:
                    child = _Child(*waiting.pop(0), inject)
                    running[child.pipe] = child
                    selector.register(child.pipe, selectors.EVENT_READ)
                    summary.children += 1
                for key, _ in selector.select(timeout=0.5):
                    said = running[key.fd].read()
                    for what in said or []:
                        summary.note(what)
                    if said is None:
                        selector.unregister(key.fd)
                        waiting += _rest(running.pop(key.fd), "ended the process", summary)
                for child in list(running.values()):
                    if time.monotonic() - child.heard > time_limit:
                        child.process.kill()
                        selector.unregister(child.pipe)
                        waiting += _rest(running.pop(child.pipe), f"no answer in {time_limit:g} s", summary)
                if progress:
                    progress(summary)
        finally:
            for child in running.values():
                child.process.kill()
                child.close()
    return summary


def _rest(child, what, summary):
    """Notes the call in which the child ended, if it did not make all of its calls; returns those after it."""
    how, written = child.close()
    if child.ended and how == "exit status 0":
        return []
    summary.calls += 1
    summary.failures.append({"seed": child.current, "failure": f"{what} ({how})", "stderr": written})
    return [(child.current + 1, child.stop, child.keeps_ops)] if child.current + 1 < child.stop else []
