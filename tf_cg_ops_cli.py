"""The program `tf-cg-ops`.

It parses its arguments before it imports TensorFlow, which takes seconds. So this module lies outside of the package.
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
_EXIT_STATUSES = "Exit status: 0 on success, 1 on failure, 2 for wrong arguments."
_LARGE_DEMO = "The demo that trains on real data is examples/demo.py in the source tree; make demo runs it there."


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{_PROGRAM}: wrong arguments: {message.rstrip('.')}. See: {self.prog} --help\n")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments, by default `sys.argv`; exits if they are wrong or ask for help."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_PROGRAM,
        description="Tools for SavedModels with custom gradients.",
        epilog=f"For help on a command: {_PROGRAM} COMMAND --help. {_EXIT_STATUSES}",
    )
    version = runpy.run_path(str(pathlib.Path(__file__).parent / "tf_cg_ops" / "_version.py"))["__version__"]
    parser.add_argument("--version", action="version", version=f"tf_cg_ops {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    strip = _add_command(
        commands,
        "strip",
        "remove this library's ops from a SavedModel, for serving and converting",
        "Writes a copy of SOURCE with built-in ops only. The copy computes the same values, loads without tf_cg_ops, "
        "and converts to TensorFlow Lite. Its custom gradients are gone, so do not train it further; a saved function "
        "that computes gradients itself, such as a training step, still works. Both models run on the same inputs. If "
        "their results differ, nothing is written.",
        f"{_PROGRAM} strip trained_model model_for_serving",
    )
    _add_copying(strip)

    override = _add_command(
        commands,
        "override",
        "change the gradients of ops in a SavedModel",
        "Writes a copy of SOURCE in which every op of a TYPE uses the gradient RULE: guided, deconvnet, pass_through, "
        "zero, masked, or clip with a limit. With elementwise=masked, a zero times an infinite number is 0, not nan. "
        "Values stay the same. Loading the copy needs tf_cg_ops. Both models run on the same inputs. If their results "
        "differ, nothing is written.",
        f"{_PROGRAM} override trained_model model_for_saliency_maps Relu=guided Exp=clip:value=5",
    )
    _add_copying(override)
    override.add_argument(
        "rules",
        metavar="TYPE=RULE",
        nargs="+",
        type=_rule,
        help="an op type, or elementwise for all ops that work element by element, and a rule: guided, deconvnet, "
        "pass_through, zero, masked, clip:value=LIMIT, clip:norm=LIMIT or clip:global_norm=LIMIT; to list the op types "
        "in the model, give a wrong one",
    )
    override.add_argument(
        "--inside",
        action="store_true",
        help="also apply rules inside functions that have their own gradient, which then lose it",
    )
    override.add_argument("--ignore-unmatched", action="store_true", help="accept rules that match no op")

    adopt = _add_command(
        commands,
        "adopt",
        "make the tf.custom_gradient calls in a SavedModel work after loading",
        "Writes a copy of SOURCE in which each call of a tf.custom_gradient function has a gradient that works: the "
        "saved gradient function (saved), or automatic differentiation (autodiff), which does not need tf_cg_ops. "
        "Shows for each call how far the two are apart. Values stay the same. Both models run on the same inputs. If "
        "their results differ, nothing is written.",
        f"{_PROGRAM} adopt downloaded_model model_that_trains",
    )
    _add_copying(adopt)
    adopt.add_argument(
        "--gradients",
        choices=("saved", "autodiff"),
        default="saved",
        help="the gradient for all calls that --place does not name (default: %(default)s)",
    )
    adopt.add_argument(
        "--place",
        metavar="NAME=GRADIENT",
        action="append",
        default=[],
        type=_place,
        help="the gradient for one call: saved, autodiff, pass_through or zero; NAME is a node or FUNCTION/NODE as "
        "listed by inspect; can be repeated",
    )

    gradients = _add_command(
        commands,
        "add-gradients",
        "add a signature that computes gradients to a SavedModel",
        "Writes a copy of SOURCE with one more signature: it takes the inputs and upstream gradients of a signature of "
        "the model, and returns its outputs and gradients. With a loss, it takes a target instead; with an update, "
        "each call is a training step. Prints the names, types and shapes of its inputs and outputs. The rest stays. "
        "Both models run on the same inputs. If their results differ, nothing is written.",
        f"{_PROGRAM} add-gradients model model_with_gradients --of scores --wrt image --wrt variables",
    )
    _add_copying(gradients)
    gradients.add_argument(
        "--signature",
        metavar="NAME",
        default="serving_default",
        help="the signature to differentiate (default: %(default)s)",
    )
    gradients.add_argument(
        "--of", metavar="OUTPUT", action="append", required=True, help="an output of the signature; can be repeated"
    )
    gradients.add_argument(
        "--wrt",
        metavar="INPUT",
        action="append",
        required=True,
        help="an input of the signature, or variables for its trainable variables; can be repeated",
    )
    gradients.add_argument(
        "--name", metavar="NAME", default="gradients", help="the name of the new signature (default: %(default)s)"
    )
    gradients.add_argument(
        "--loss",
        choices=("mse", "crossentropy"),
        help="take a target, and differentiate this loss of the output: the mean squared error, or the crossentropy of "
        "logits and probabilities, such as one-hot vectors",
    )
    gradients.add_argument(
        "--update", metavar="RATE", type=float, help="change the variables by gradient descent with this learning rate"
    )
    gradients.add_argument(
        "--lite",
        action="store_true",
        help="use ops that LiteRT (TensorFlow Lite) has built in; with an update, also add the signatures weights and "
        "set_weights",
    )
    gradients.add_argument(
        "--flex",
        action="store_true",
        help="with --lite, allow other ops of TensorFlow, for a LiteRT that includes them",
    )
    gradients.add_argument(
        "--rule",
        metavar="TYPE=RULE",
        action="append",
        default=[],
        type=_rule,
        help="use this rule for the gradient of an op type, as in the command override; can be repeated",
    )

    compare = _add_command(
        commands,
        "compare",
        "compare the values and gradients of two SavedModels",
        "Runs every signature and function of both models on the same inputs, and shows whether values and gradients "
        "are equal, by how much they differ, or why they cannot be compared. The exit status is 1 if any differ.",
        f"{_PROGRAM} compare trained_model model_for_serving",
    )
    compare.add_argument("path", metavar="A", type=pathlib.Path, help="the folder of a SavedModel")
    compare.add_argument("other", metavar="B", type=pathlib.Path, help="the folder of another one")
    compare.add_argument(
        "--inputs",
        metavar="FILE",
        type=pathlib.Path,
        help="an .npz file with arrays named SIGNATURE/ARGUMENT, or ARGUMENT if the model has a single signature "
        "(default: small random inputs, made from the model's input specs)",
    )

    audit = _add_command(
        commands,
        "audit",
        "check every custom gradient of a SavedModel against the gradient of its ops",
        "Runs one signature with its gradient, and shows for each place with a gradient of its own what arrived there, "
        "what left, and whether the gradient is right. The model does not change. The exit status is 1 if a gradient "
        "is wrong, or turns a finite upstream gradient into nan or infinity.",
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
    audit.add_argument(
        "--intended",
        metavar="NAME",
        nargs="+",
        default=[],
        help="functions, or their places in the table, whose gradient differs on purpose",
    )
    audit.add_argument("--html", metavar="FILE", type=pathlib.Path, help="also write the table as a page")

    inspect = _add_command(
        commands,
        "inspect",
        "list the custom gradients in a SavedModel",
        "Lists each value with a custom gradient: where it is, its kind, the decorated Python function, dtype and "
        "shape, the number of inputs that have gradients, and the size of the gradient rule. Does not run the model.",
        f"{_PROGRAM} inspect trained_model",
    )
    inspect.add_argument("path", metavar="PATH", type=pathlib.Path, help="the folder of the SavedModel")
    inspect.add_argument("--json", action="store_true", help="print a JSON list instead of a table")

    demo = _add_command(
        commands,
        "demo",
        "see in seconds that the library works",
        "Computes gradients with and without custom gradients, and prints what changes. Takes seconds, and writes no "
        f"files. Fails if a result is not as expected. {_LARGE_DEMO}",
        f"{_PROGRAM} demo",
    )
    # For people who still type them: --quick asked for this demo, and --output for the one in examples/.
    demo.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    demo.add_argument("--output", type=_large_demo, help=argparse.SUPPRESS)
    return parser


def _add_copying(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of all commands that write a changed copy."""
    command.add_argument("source", metavar="SOURCE", type=pathlib.Path, help="the folder of the SavedModel")
    command.add_argument(
        "target", metavar="TARGET", type=pathlib.Path, help="the folder to write, which must not exist yet"
    )
    command.add_argument("--no-check", dest="check", action="store_false", help="skip running and comparing the models")


def _rule(argument: str) -> tuple[str, str, dict[str, float]]:
    """The op type, the rule and its limit from an argument such as Relu=guided or Exp=clip:value=5."""
    op_type, _, rule = argument.partition("=")
    name, _, limit = rule.partition(":")
    kind, _, number = limit.partition("=")
    is_complete = name in ("guided", "deconvnet", "masked", "pass_through", "zero") and not limit
    if op_type and (is_complete or (name == "clip" and kind in ("value", "norm", "global_norm"))):
        with contextlib.suppress(ValueError):
            return op_type, name, {} if is_complete else {kind: float(number)}
    raise argparse.ArgumentTypeError(
        "must be an op type and a rule, such as Relu=guided, Relu=deconvnet, Round=pass_through, Exp=zero, "
        f"elementwise=masked or Exp=clip:value=5, got '{argument}'"
    )


def _place(argument: str) -> tuple[str, str]:
    """The place and its gradient from an argument such as IdentityN=autodiff."""
    name, _, gradient = argument.rpartition("=")
    if name and gradient in ("saved", "autodiff", "pass_through", "zero"):
        return name, gradient
    raise argparse.ArgumentTypeError(
        f"must be a place and saved, autodiff, pass_through or zero, such as IdentityN=autodiff, got '{argument}'"
    )


def _large_demo(_: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"this demo writes no files. {_LARGE_DEMO}")


def _add_command(commands: Any, name: str, summary: str, description: str, example: str) -> argparse.ArgumentParser:
    epilog = f"Example: {example} -- {_EXIT_STATUSES}"
    return commands.add_parser(name, help=summary, description=description, epilog=epilog)


def main() -> int:
    """Runs the command of this process and returns the exit status."""
    options = parse()
    model = getattr(options, "path", None) or getattr(options, "source", None)
    if model and not model.is_dir():  # The import of TensorFlow, which checks the rest, takes seconds.
        got = "a file" if model.exists() else "a path that does not exist"
        line = f"'{model}' must be a folder that tf.saved_model.save wrote, got {got}."
        print(f"{_PROGRAM} {options.command}: {line}", file=sys.stderr)
        return 1
    # Hides TensorFlow's notes about the machine, except one that level 3 does not hide.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

    def report_interruption(by: str) -> None:
        line = f"{_PROGRAM} {options.command}: interrupted by {by}. Run it again; no half-written target is left.\n"
        with contextlib.suppress(OSError):  # The stream can be closed.
            os.write(2, line.encode())

    # While TensorFlow is imported there is nothing to remove, and it could swallow an exception.
    def end(*_: object) -> None:
        report_interruption("Ctrl-C")
        os._exit(1)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
    from tf_cg_ops import _command_line

    # From here on a signal raises an exception, so that unfinished files are removed.
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        return _command_line.run(options)
    except KeyboardInterrupt as error:
        report_interruption(str(error) or "Ctrl-C")
        return 1


def _interrupt(number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)


if __name__ == "__main__":
    sys.exit(main())
