"""What the command `tf-cg-ops` does once its arguments are parsed: its output, its errors, its exit statuses."""

import argparse
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NoReturn

import tf_cg_ops_cli
from tf_cg_ops import saved_model
from tf_cg_ops._src import demo
from tf_cg_ops.saved_model import _inputs, _report_text


def catch_signals() -> None:
    """Makes exceptions of the signals that end the program, so that it removes what it has not finished."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)


def run(options: argparse.Namespace) -> int:
    """Runs one command and returns the exit status."""
    command = {"strip": _strip, "inspect": _inspect, "demo": _run_demo}[options.command]
    try:
        return command(options)
    except KeyboardInterrupt as error:
        _tell(tf_cg_ops_cli.interrupted(options.command, str(error) or "Ctrl-C"))
    except BrokenPipeError:
        _silence(sys.stdout)
    except Exception as error:
        _tell(_line_of(options.command, error))
    return 1


def _line_of(command: str, error: Exception) -> str:
    """What is said of an error: its message, if it is one of ours."""
    text = str(error)
    if text.startswith(("saved_model.", "tf_cg_ops")):
        return text
    if isinstance(error, OSError):
        return (
            f"tf_cg_ops {command}: the operating system refuses; expected files that can be read and room to write, "
            f"got {_reason(error)}. Check that path, its permissions and the space on the disk."
        )
    got = f"{type(error).__name__}: {text.strip()}".partition("\n")[0].rstrip(".: ")
    return (
        f"tf_cg_ops {command}: it failed; expected no error here, got {got}. Call the function of that name in Python "
        "to see where it comes from, and please report it."
    )


def _reason(error: Exception) -> str:
    """What the operating system says, of the first file where there are several."""
    text = str(error.args[0][0][2] if isinstance(error, shutil.Error) else error)
    return re.sub(r"^\[Errno \d+\] ", "", text.partition("\n")[0]).rstrip(".")


def _tell(line: str) -> None:
    """Prints a line beside the output. That nobody can read it is no reason to stop."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)


def _show(command: str, text: str, rest: str) -> int:
    """Prints the output and returns the exit status; it is no failure that the reader of a pipe has enough of it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _silence(sys.stdout)
    except (OSError, UnicodeEncodeError) as error:
        _silence(sys.stdout)
        _tell(
            f"tf_cg_ops {command}: what it found cannot be printed; expected a standard output that takes it, got "
            f"{_reason(error)}. Let it print to another place; {rest}."
        )
        return 1
    return 0


def _silence(stream: Any) -> None:
    """Lets a stream end nowhere, for Python writes what is left in it at the end, and would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _strip(options: argparse.Namespace) -> int:
    inputs: Mapping[str, Mapping[str, Any]] | None = None
    if options.inputs is not None:
        inputs = _inputs.read_npz(options.inputs, options.source)
    report = saved_model.strip(options.source, options.target, options.check, inputs, _tell)
    return _show("strip", _report_text.report_lines(report), f"'{report.target}' is written")


def _inspect(options: argparse.Namespace) -> int:
    found = saved_model.inspect(options.path)
    as_json = json.dumps([asdict(gradient) for gradient in found], indent=2)
    return _show("inspect", as_json if options.json else _report_text.gradient_table(found), "the model is as it was")


def _run_demo(options: argparse.Namespace) -> int:
    return demo.run(options.output)
