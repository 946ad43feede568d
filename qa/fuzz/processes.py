"""Runs checks in a child process, because a check can crash, hang or take all memory. Each becomes an exception here."""

import contextlib
import faulthandler
import multiprocessing
import os
import pathlib
import resource
import signal
import tempfile
import time

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["qa.fuzz.preloaded", "tensorflow", "tf_cg_ops"]
)  # Imported once, so that each child starts quickly.


class FailedError(AssertionError):
    """A check raised an exception."""


class DiedError(AssertionError):
    """The process ended, hung or took too much memory."""


class Worker:
    """Calls functions in a child process, and replaces the process when it dies."""

    def __init__(self, environment=(), seconds=60, megabytes=1500):
        self._environment, self._seconds, self._bytes = dict(environment), seconds, megabytes << 20
        self._process = None
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115 (`__exit__` closes it)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process:
            self._end()
        self._log.close()

    def run(self, function, *args):
        """The result of `function(*args)`. Function, arguments and result are pickled."""
        if self._process is None:
            self._pipe, theirs = CONTEXT.Pipe()
            arguments = theirs, self._log.name, self._environment
            self._process = CONTEXT.Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
            self._pipe.recv()  # It is ready.
        self._pipe.send((function, args))
        try:
            self._wait()
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            code = self._end()
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            raise DiedError(f"the process ended ({how})\n{self._written()}") from None
        if error:
            raise FailedError(error)
        return result

    def _wait(self):
        end, first = time.monotonic() + self._seconds, self._memory()
        while not self._pipe.poll(0.02):
            how = None
            if time.monotonic() > end:
                how = f"no answer in {self._seconds:g} s"
            elif self._memory() > first + self._bytes:
                how = f"it took {self._bytes >> 20} MB"
            if how:
                self._process.kill()
                self._end()
                raise DiedError(f"{how}\n{self._written()}")

    def _memory(self):
        with contextlib.suppress(OSError, IndexError):
            return int(pathlib.Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        return 0

    def _end(self):
        self._pipe.close()
        self._process.join()
        code, self._process = self._process.exitcode, None
        return code

    def _written(self):
        return pathlib.Path(self._log.name).read_text(errors="replace")[:1500]


def _serve(pipe, log, environment):
    """The child: answers until the pipe is closed."""
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = os.open(log, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(2)
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            function, args = pipe.recv()
            os.truncate(log, 0)
            try:
                answer = function(*args), None
            except Exception as error:
                answer = None, f"{type(error).__name__}: {error}"[:3000]
            pipe.send(answer)
