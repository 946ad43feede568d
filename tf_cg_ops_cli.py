"""The program `tf-cg-ops`: it parses its arguments before it imports TensorFlow.

This module stands beside the package: importing anything from the package imports TensorFlow, which takes seconds.
"""

import argparse
import contextlib
import os
import pathlib
import runpy
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

_PROGRAM = "tf-cg-ops"
_EXIT_STATUSES = "Exit statuses: 0 if it succeeded, 1 if it failed, 2 if the arguments are wrong."


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tf_cg_ops: wrong arguments: {message.rstrip('.')}. See: {self.prog} --help\n")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments, by default those of the process; exits if they are wrong or ask for help."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_PROGRAM,
        description="Custom gradients for TensorFlow that are data in the graph.",
        epilog=f"'{_PROGRAM} COMMAND --help' describes a command. {_EXIT_STATUSES}",
    )
    version = runpy.run_path(str(pathlib.Path(__file__).parent / "tf_cg_ops" / "_version.py"))["__version__"]
    parser.add_argument("--version", action="version", version=f"tf_cg_ops {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    strip = _add_command(
        commands,
        "strip",
        "make a SavedModel independent of this library, for serving and converting",
        "Writes a SavedModel that computes the same as SOURCE with built-in ops alone: it loads where tf_cg_ops is not "
        "installed, and converts to TensorFlow Lite. It has no custom gradients any more: do not train it further. "
        "Functions that compute gradients themselves, such as a saved training step, still do. Both models are run on "
        "the same inputs; if their results differ, nothing is written.",
        f"{_PROGRAM} strip trained_model model_for_serving",
    )
    _add_copying(strip)

    override = _add_command(
        commands,
        "override",
        "give ops of a SavedModel other gradients",
        "Writes a SavedModel with the same values, in which the gradient of each op of a type is that of a rule: "
        "guided, deconvnet, pass_through, zero, or clip with a limit. Loading it needs tf_cg_ops. Both models are run "
        "on the same inputs; if their results differ, nothing is written.",
        f"{_PROGRAM} override trained_model model_for_saliency_maps Relu=guided Exp=clip:value=5",
    )
    _add_copying(override)
    override.add_argument(
        "rules",
        metavar="TYPE=RULE",
        nargs="+",
        type=_rule,
        help="an op type and a rule: guided, deconvnet, pass_through, zero, clip:value=LIMIT, clip:norm=LIMIT or "
        "clip:global_norm=LIMIT; a wrong type lists those of the model",
    )

    adopt = _add_command(
        commands,
        "adopt",
        "give a SavedModel of tf.custom_gradient gradients that work after loading",
        "Writes a SavedModel with the same values, in which each gradient of tf.custom_gradient is the gradient "
        "function that the file holds (saved), or that of automatic differentiation (autodiff), which needs no "
        "tf_cg_ops. Shows for each place how far the two are apart. Both models are run on the same inputs; if their "
        "results differ, nothing is written.",
        f"{_PROGRAM} adopt downloaded_model model_that_trains",
    )
    _add_copying(adopt)
    adopt.add_argument(
        "--gradients",
        choices=("saved", "autodiff"),
        default="saved",
        help="for all places that --place does not name (default: %(default)s)",
    )
    adopt.add_argument(
        "--place",
        metavar="NAME=GRADIENT",
        action="append",
        default=[],
        type=_place,
        help="for one place: saved, autodiff, pass_through or zero; NAME is a node, or FUNCTION/NODE, as inspect lists "
        "them; may be repeated",
    )

    audit = _add_command(
        commands,
        "audit",
        "check every custom gradient of a SavedModel against numeric differentiation",
        "Runs one signature with its gradient, and shows for each place with a gradient of its own what arrived there, "
        "what left, and whether the gradient is right. The model does not change. The exit status is 1 if a gradient "
        "is wrong, or the first that is not finite.",
        f"{_PROGRAM} audit trained_model --inputs batch.npz --html audit.html",
    )
    audit.add_argument("path", metavar="MODEL", type=pathlib.Path, help="the folder of the SavedModel")
    audit.add_argument(
        "--inputs",
        metavar="FILE",
        type=pathlib.Path,
        help="an .npz file with an array for each argument of the signature (default: random ones)",
    )
    audit.add_argument("--signature", metavar="NAME", help="the signature to run (default: serving_default)")
    audit.add_argument("--html", metavar="FILE", type=pathlib.Path, help="also write the table as a page")

    inspect = _add_command(
        commands,
        "inspect",
        "show the embedded gradients of a SavedModel",
        "Shows each value of a SavedModel that has its own gradient: its place and kind, the decorated Python "
        "function, dtype and shape of the value, the number of inputs with gradients, and the size of the gradient "
        "rule. The model is not run.",
        f"{_PROGRAM} inspect trained_model",
    )
    inspect.add_argument("path", metavar="PATH", type=pathlib.Path, help="the folder of the SavedModel")
    inspect.add_argument("--json", action="store_true", help="print a JSON list instead of a table")

    demo = _add_command(
        commands,
        "demo",
        "train on real data with embedded gradients",
        "Trains on real data with embedded gradients and shows their effect. It fails if any of its findings does not "
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
    demo.add_argument(
        "--quick", action="store_true", help="take seconds, need only TensorFlow and NumPy, and write nothing"
    )
    return parser


def _add_copying(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of a command that writes a changed copy."""
    command.add_argument("source", metavar="SOURCE", type=pathlib.Path, help="the folder of the SavedModel")
    command.add_argument(
        "target", metavar="TARGET", type=pathlib.Path, help="the folder to write; it must not exist yet"
    )
    command.add_argument("--no-check", dest="check", action="store_false", help="do not run and compare the models")
    command.add_argument(
        "--inputs",
        metavar="FILE",
        type=pathlib.Path,
        help="an .npz file of inputs for the comparison, with arrays named SIGNATURE/ARGUMENT, or ARGUMENT where there "
        "is only one signature (default: small random ones, made from the model's input specs)",
    )


def _rule(argument: str) -> tuple[str, str, dict[str, float]]:
    """The op type, the name of the rule and its limit in an argument such as Relu=guided or Exp=clip:value=5."""
    op_type, _, rule = argument.partition("=")
    name, _, limit = rule.partition(":")
    kind, _, number = limit.partition("=")
    is_complete = name in ("guided", "deconvnet", "pass_through", "zero") and not limit
    if op_type and (is_complete or (name == "clip" and kind in ("value", "norm", "global_norm"))):
        with contextlib.suppress(ValueError):
            return op_type, name, {} if is_complete else {kind: float(number)}
    raise argparse.ArgumentTypeError(
        f"'{argument}'; expected a type and a rule such as Relu=guided, Relu=deconvnet, Round=pass_through, "
        "Exp=zero or Exp=clip:value=5"
    )


def _place(argument: str) -> tuple[str, str]:
    """The name of a place and its gradient in an argument such as IdentityN=autodiff."""
    name, _, gradient = argument.rpartition("=")
    if name and gradient in ("saved", "autodiff", "pass_through", "zero"):
        return name, gradient
    raise argparse.ArgumentTypeError(
        f"'{argument}'; expected a place and one of saved, autodiff, pass_through and zero, such as IdentityN=autodiff"
    )


def _add_command(commands: Any, name: str, summary: str, description: str, example: str) -> argparse.ArgumentParser:
    epilog = f"Example: {example} -- {_EXIT_STATUSES}"
    return commands.add_parser(name, help=summary, description=description, epilog=epilog)


def main() -> int:
    """Runs the command of this process and returns the exit status."""
    options = parse()
    model = getattr(options, "path", None) or getattr(options, "source", None)
    if model and not model.is_dir():  # The import of TensorFlow, which checks the rest, takes seconds.
        got = "a file" if model.exists() else "nothing there"
        line = f"there is no SavedModel at '{model}'; it must be a folder that tf.saved_model.save wrote, got {got}."
        print(f"tf_cg_ops {options.command}: {line}", file=sys.stderr)
        return 1
    # TensorFlow's notes about the machine would drown the output. At level 3 only one is left.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.command != "demo" or options.quick:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

    def report_interruption(by: str) -> None:
        line = f"tf_cg_ops {options.command}: interrupted by {by}. Run it again; no command leaves a half-written "
        with contextlib.suppress(OSError):  # Nobody may be able to read it.
            os.write(2, f"{line}target.\n".encode())

    # Nothing has to be removed yet, and the import of TensorFlow could misread an exception.
    def end(*_: object) -> None:
        report_interruption("Ctrl-C")
        os._exit(1)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
    from tf_cg_ops._src import command_line

    # From here on a signal is an exception, so that the program removes unfinished files.
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        return command_line.run(options)
    except KeyboardInterrupt as error:
        report_interruption(str(error) or "Ctrl-C")
        return 1


def _interrupt(number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)


if __name__ == "__main__":
    sys.exit(main())
