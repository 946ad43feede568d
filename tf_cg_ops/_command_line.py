"""The command line `python -m tf_cg_ops`: its arguments, its errors, its exit statuses.

Nothing here imports TensorFlow before the arguments are known to be right.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from . import _errors

_PROGRAM = "python -m tf_cg_ops"
_EXIT_STATUSES = "Exit statuses: 0 if it succeeded, 1 if it failed, 2 if the arguments are wrong."


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, _errors.WRONG_USE.format(program=self.prog, message=message.rstrip(".")) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_PROGRAM,
        description="Custom gradients for TensorFlow that are data in the graph.",
        epilog=f"'{_PROGRAM} COMMAND --help' describes a command. {_EXIT_STATUSES}",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    strip = _add(
        commands,
        "strip",
        "make a SavedModel independent of this library, for serving and converting",
        "Writes a SavedModel that computes what SOURCE computes, with TensorFlow's own operations alone: it loads "
        "where tf_cg_ops is not installed, and converts to TensorFlow Lite. Custom gradients are not in it any more: "
        "do not train it further. Functions that compute gradients themselves, such as a saved training step, still "
        "do. Both models are run on the same inputs; if they compute different things, nothing is written.",
        f"{_PROGRAM} strip trained_model model_for_serving",
    )
    strip.add_argument("source", metavar="SOURCE", type=pathlib.Path, help="the folder of the SavedModel")
    strip.add_argument(
        "target", metavar="TARGET", type=pathlib.Path, help="the folder that is made; it must not exist yet"
    )
    strip.add_argument("--no-check", dest="check", action="store_false", help="do not run and compare the models")
    strip.add_argument(
        "--inputs",
        metavar="FILE",
        type=pathlib.Path,
        help="an .npz file of inputs for the comparison, with arrays named SIGNATURE/ARGUMENT, or ARGUMENT where there "
        "is only one signature (default: small random ones, made from the model's input specs)",
    )

    inspect = _add(
        commands,
        "inspect",
        "show the embedded gradients of a SavedModel",
        "Shows each value of a SavedModel that has a gradient of its own: where it stands, what kind it is, the "
        "decorated Python function, dtype and shape of the value, how many inputs have gradients, and how large the "
        "gradient rule is. The model is not run.",
        f"{_PROGRAM} inspect trained_model",
    )
    inspect.add_argument("path", metavar="PATH", type=pathlib.Path, help="the folder of the SavedModel")
    inspect.add_argument("--json", action="store_true", help="print a JSON list instead of a table")

    demo = _add(
        commands,
        "demo",
        "train on real data with embedded gradients",
        "Trains on real data with embedded gradients and shows what they do. It fails if any of what it shows does not "
        "hold.",
        f"{_PROGRAM} demo --output demo_output",
    )
    demo.add_argument(
        "--output",
        metavar="FOLDER",
        type=pathlib.Path,
        default=pathlib.Path("demo_output"),
        help="the folder for the picture, the figures and the trained model (default: %(default)s)",
    )
    return parser


def _add(commands: Any, name: str, summary: str, description: str, example: str) -> argparse.ArgumentParser:
    epilog = f"Example: {example} -- {_EXIT_STATUSES}"
    return commands.add_parser(name, help=summary, description=description, epilog=epilog)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments; ends the program if they are wrong, or ask for help."""
    return _parser().parse_args(arguments)


def catch_signals() -> None:
    """Makes exceptions of the signals that end the program, so that it removes what it has not finished."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    options = parse(arguments)
    command = {"strip": _strip, "inspect": _inspect, "demo": _demo}[options.command]
    try:
        return command(options)
    except KeyboardInterrupt as error:
        _tell(_errors.INTERRUPTED.format(command=options.command, got=str(error) or "Ctrl-C"))
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
        return _errors.SYSTEM_REFUSES.format(command=command, got=_reason(error))
    got = f"{type(error).__name__}: {text.strip()}".partition("\n")[0].rstrip(".: ")
    return _errors.UNEXPECTED.format(command=command, got=got)


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
        _tell(_errors.OUTPUT_LOST.format(command=command, got=_reason(error), rest=rest))
        return 1
    return 0


def _silence(stream: Any) -> None:
    """Lets a stream end nowhere, for Python writes what is left in it at the end, and would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _strip(options: argparse.Namespace) -> int:
    from . import saved_model
    from .saved_model import _inputs, _text

    inputs: Mapping[str, Mapping[str, Any]] | None = None
    if options.inputs is not None:
        inputs = _inputs.read(options.inputs, options.source)
    report = saved_model.strip(options.source, options.target, options.check, inputs, _tell)
    return _show("strip", _text.of_report(report), f"'{report.target}' is written")


def _inspect(options: argparse.Namespace) -> int:
    from . import saved_model
    from .saved_model import _text

    found = saved_model.inspect(options.path)
    as_json = json.dumps([asdict(gradient) for gradient in found], indent=2)
    return _show("inspect", as_json if options.json else _text.of_gradients(found), "the model is as it was")


def _demo(options: argparse.Namespace) -> int:
    from . import _demo

    return _demo.run(options.output)
