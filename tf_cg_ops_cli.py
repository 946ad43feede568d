"""The program `tf-cg-ops`: its arguments, which are parsed before TensorFlow is imported.

A module of its own, beside the package: importing anything of the package imports TensorFlow, which takes seconds.
"""

import argparse
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

_PROGRAM = "tf-cg-ops"
_EXIT_STATUSES = "Exit statuses: 0 if it succeeded, 1 if it failed, 2 if the arguments are wrong."


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(
            2,
            "tf_cg_ops: wrong arguments; expected those that --help describes, got this complaint: "
            f"{message.rstrip('.')}. See: {self.prog} --help\n",
        )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments, by default those of the process; exits if they are wrong or ask for help."""
    return _parser().parse_args(arguments)


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


def interrupted(command: str, by: str) -> str:
    """The line for a command that a signal ended."""
    return (
        f"tf_cg_ops {command}: it was interrupted; expected to run to the end, got {by}. Run it again; strip leaves no "
        "target that is half written."
    )


def main() -> int:
    """Runs the command that the process was started with and returns the exit status."""
    options = parse()
    # TensorFlow's notes about the machine would drown the output. One note comes whatever the level is.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.command != "demo":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

    # Nothing is there to be removed yet, and the import of TensorFlow could take an exception for something else.
    def end(*_: object) -> None:
        os.write(2, (interrupted(options.command, "Ctrl-C") + "\n").encode())
        os._exit(1)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
    from tf_cg_ops._src import command_line

    command_line.catch_signals()
    return command_line.run(options)


if __name__ == "__main__":
    sys.exit(main())
