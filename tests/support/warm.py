"""A Python that has imported TensorFlow and forks: it makes fresh processes without seconds of importing.

A program of `processes.py`. Each line that it reads is a request, and for each it writes a status when the process has
ended. TensorFlow starts its threads with the first operation, so that a process before it can be forked.
"""

import gc
import json
import os
import signal
import sys
import tempfile
import types


def serve():
    """Answers requests until the last one. In a forked child, returns the child's request."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    sys.exit()


def become(request):
    """Makes this process look like `python -c`, and returns its main module."""
    for name, flags, number in (
        (os.devnull, os.O_RDONLY, 0),
        (request["stdout"], os.O_WRONLY | os.O_CREAT, 1),
        (request["stderr"], os.O_WRONLY | os.O_CREAT, 2),
    ):
        opened = os.open(name, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (it replaces the one with the rest of the requests)
    signal.alarm(request["seconds"])  # Ends a process that hangs.
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # TensorFlow has asked for it, with another environment.
    paths = request["environment"].get("PYTHONPATH", "")
    sys.path[:1] = ["", *filter(None, paths.split(os.pathsep))]
    sys.argv = ["-c", *request["arguments"]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    return main.__dict__


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(sys.argv[1:]))  # As if they were not installed.
    sys.path[0] = ""  # Instead of the folder of this file.
    import tensorflow  # noqa: F401

    gc.freeze()  # Otherwise each process would copy the memory of all modules when Python collects garbage and ends.
    request = serve()
    names = become(request)  # First, so that the compiler's messages are captured, too.
    exec(compile(request["code"], "<string>", "exec"), names)
