"""A process for each mutant, with limits of time and memory, and a record of its actions and its end.

Processes are forked from one in which TensorFlow is imported and nothing has run yet, so that each starts at once.
"""

import ctypes
import faulthandler
import json
import os
import pathlib
import resource
import signal
import sys
import time
from dataclasses import dataclass, field

PAGE = resource.getpagesize()
PR_SET_PDEATHSIG = 1  # Of prctl, which Python does not have.


@dataclass
class Ending:
    """How a process ended: "done", "dead", "hang" or "memory"; in which action, and what all of them gave."""

    how: str
    action: str = ""
    detail: str = ""
    info: dict = field(default_factory=dict)
    answers: dict = field(default_factory=dict)


def run(work, folder, seconds, megabytes):
    """Runs `work(tell)` in a process; `tell` takes ("info", ...), ("start", action), ("answer", action, ...)."""
    log, notes = folder / "log", folder / "notes"
    log.touch()
    notes.touch()
    process = os.fork()
    if process == 0:
        _child(work, log, notes)
    how = _watch(process, seconds, megabytes << 20)
    ending = Ending(how)
    for line in notes.read_text().splitlines():
        what, *rest = json.loads(line)
        if what == "info":
            ending.info = rest[0]
        elif what == "start":
            ending.action = rest[0]
        else:
            ending.answers[rest[0]] = rest[1]
    if how != "done":
        ending.detail = log.read_text(errors="replace")[-3000:]
    return ending


def _child(work, log, notes):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.setsid()  # Its children end with it.
        ctypes.CDLL(None).prctl(
            PR_SET_PDEATHSIG, signal.SIGKILL
        )  # The process ends with the fuzzer, even if that is killed.
        with open(log, "w") as output, open(notes, "w") as lines:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            faulthandler.enable(sys.__stderr__)

            def tell(*what):
                print(json.dumps(what), file=lines, flush=True)

            work(tell)
        os._exit(0)
    except BaseException as error:
        sys.__stderr__.write(f"{type(error).__name__}: {error}\n")
        sys.__stderr__.flush()
        os._exit(99)


def _watch(process, seconds, limit):
    """Waits for its end; kills it if that takes too long, or too much memory beyond what it started with."""
    end, first = time.monotonic() + seconds, None
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return "done" if status == 0 else _dead(status)
        try:
            used = int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            used = 0
        first = used if first is None else first
        how = "memory" if used > first + limit else "hang" if time.monotonic() > end else None
        if how:
            os.killpg(process, signal.SIGKILL) if os.getpgid(process) == process else os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return how
        time.sleep(0.004)


def _dead(status):
    return f"dead ({signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)})"
