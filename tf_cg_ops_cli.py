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
    """Reports wrong arguments in one line, which points to the help of the command."""

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentTypeError(f"wrong arguments: {message.rstrip('.')}. See: {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments. An option with several values leaves the last ones to the arguments of the command."""
        try:
            found, rest = super().parse_known_args(args, namespace)
            return self.error(f"unrecognized arguments: {' '.join(rest)}") if rest else (found, rest)
        except argparse.ArgumentTypeError:
            count = len(self._get_positional_actions())
            has_lists = any(isinstance(action, _List) and action.option_strings for action in self._actions)
            if has_lists and "--" not in args and not any(arg.startswith("-") for arg in args[-count:]):
                with contextlib.suppress(argparse.ArgumentTypeError):
                    return self.parse_known_args([*args[:-count], "--", *args[-count:]], namespace)
            raise


class _List(argparse.Action):
    """Takes several values, also when it is repeated. Pairs of a name and something else give each name once."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        together = [*(getattr(namespace, self.dest) or []), *values]
        names = [value[0] for value in together if isinstance(value, tuple)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise argparse.ArgumentError(self, f"must name '{twice[0]}' once, got it {len(twice)} times")
        setattr(namespace, self.dest, together)


def _rule(argument: str) -> tuple[str, str, dict[str, float]]:
    """The op type, the rule and its limit from an argument such as Relu=guided or Exp=clip:value=5."""
    op_type, _, rule = argument.partition("=")
    name, _, limit = rule.partition(":")
    kind, _, number = limit.partition("=")
    is_complete = name in ("guided", "deconvnet", "masked", "pass_through", "zero") and not limit
    if op_type and (is_complete or (name == "clip" and kind in ("value", "norm", "global_norm"))):
        with contextlib.suppress(ValueError):
            if is_complete or float(number) >= 0.0:
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


def _rate(argument: str) -> float | str:
    """A number, or the name of an input."""
    with contextlib.suppress(ValueError):
        return float(argument)
    if argument.isidentifier():
        return argument
    raise argparse.ArgumentTypeError(f"must be a learning rate or the name of a new input, got '{argument}'")


def _large_demo(_: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"this demo writes no files. {_LARGE_DEMO}")


def _option(names: str, text: str, **settings: Any) -> tuple[str, dict[str, Any]]:
    """An option or argument by its name and, if it has values, its METAVAR, which implies the type."""
    name, _, metavar = names.removesuffix("...").partition(" ")
    if names.endswith("..."):
        settings |= {"nargs": "+", "action": _List}
    if metavar:
        settings |= {"metavar": metavar, "type": _TYPES.get(metavar, str)}
    elif "choices" not in settings:
        settings = {"action": "store_true", **settings}
    return name, {"help": text, **settings}


_TYPES: dict[str, Any] = dict.fromkeys(("SOURCE", "TARGET", "A", "B", "MODEL", "PATH", "FILE"), pathlib.Path) | {
    "TYPE=RULE": _rule,
    "NAME=GRADIENT": _place,
    "RATE": _rate,
    "FOLDER": _large_demo,
}
# Of each command that writes a changed copy. An option has the name of the parameter that it sets.
_COPYING = (
    _option("source SOURCE", "the folder of the SavedModel"),
    _option("target TARGET", "the folder to write, which must not exist yet"),
    _option("--no-check", "skip running and comparing the models", dest="check", action="store_false"),
)
# For each command, in the order in which one needs them, a summary, a description, an example, and its options.
_COMMANDS: dict[str, tuple[str, str, str, tuple[tuple[str, dict[str, Any]], ...]]] = {
    "demo": (
        "see in seconds that the library works",
        "Computes gradients with and without custom gradients, and prints what changes. Takes seconds, and writes no "
        f"files. Fails if a result is not as expected. {_LARGE_DEMO}",
        "",
        # For people who still type them: --quick asked for this demo, and --output for the one in examples/.
        (_option("--quick", argparse.SUPPRESS), _option("--output FOLDER", argparse.SUPPRESS)),
    ),
    "audit": (
        "check every custom gradient of a SavedModel against the gradient of its ops",
        "Runs one signature with its gradient, and shows for each place with a gradient of its own what arrived there, "
        "what left, and whether the gradient is right. The model does not change. The exit status is 1 if a gradient "
        "is wrong, or turns a finite upstream gradient into nan or infinity.",
        "trained_model --inputs batch.npz --html audit.html",
        (
            _option("path MODEL", "the folder of the SavedModel"),
            _option(
                "--inputs FILE", "an .npz file with an array for each argument of the signature (default: random ones)"
            ),
            _option("--signature NAME", "the signature to run (default: serving_default)"),
            _option("--intended NAME...", "functions, or places in the table, that differ on purpose", default=[]),
            _option("--html FILE", "also write the table as a page"),
        ),
    ),
    "inspect": (
        "list the custom gradients in a SavedModel",
        "Lists each value with a custom gradient: where it is, its kind, the decorated Python function, dtype and "
        "shape, the number of inputs that have gradients, and the size of the gradient rule. Does not run the model.",
        "trained_model",
        (
            _option("path PATH", "the folder of the SavedModel"),
            _option("--json", "print a JSON list instead of a table"),
        ),
    ),
    "adopt": (
        "make the tf.custom_gradient calls in a SavedModel work after loading",
        "Writes a copy of SOURCE in which each call of a tf.custom_gradient function has a gradient that works: the "
        "saved gradient function (saved), or automatic differentiation (autodiff), which does not need tf_cg_ops. "
        "Shows for each call how far the two are apart. Values stay the same. Both models run on the same inputs. If "
        "their results differ, nothing is written.",
        "downloaded_model model_that_trains",
        (
            *_COPYING,
            _option(
                "--gradients",
                "the gradient for all calls that --place does not name (default: %(default)s)",
                choices=("saved", "autodiff"),
                default="saved",
            ),
            _option(
                "--place NAME=GRADIENT...",
                "the gradient for single calls: saved, autodiff, pass_through or zero; NAME is a node or FUNCTION/NODE "
                "as listed by inspect",
            ),
        ),
    ),
    "override": (
        "change the gradients of ops in a SavedModel",
        "Writes a copy of SOURCE in which every op of a TYPE uses the gradient RULE: guided, deconvnet, pass_through, "
        "zero, masked, or clip with a limit. With elementwise=masked, a zero times an infinite number is 0, not nan. "
        "Values stay the same. Loading the copy needs tf_cg_ops. Both models run on the same inputs. If their results "
        "differ, nothing is written.",
        "trained_model model_for_saliency_maps Relu=guided Exp=clip:value=5",
        (
            *_COPYING,
            _option(
                "rules TYPE=RULE...",
                "an op type, or elementwise for all ops that work element by element, and a rule: guided, deconvnet, "
                "pass_through, zero, masked, clip:value=LIMIT, clip:norm=LIMIT or clip:global_norm=LIMIT; to list the "
                "op types in the model, give a wrong one",
            ),
            _option("--inside", "also apply rules inside functions that have their own gradient, which then lose it"),
            _option(
                "--ignore-unmatched",
                "accept rules that match no op",
                dest="unmatched",
                action="store_const",
                const="ignore",
                default="error",
            ),
        ),
    ),
    "strip": (
        "remove this library's ops from a SavedModel, for serving and converting",
        "Writes a copy of SOURCE with built-in ops only. The copy computes the same values, loads without tf_cg_ops, "
        "and converts to TensorFlow Lite. Its custom gradients are gone, so do not train it further; a saved function "
        "that computes gradients itself, such as a training step, still works. Both models run on the same inputs. If "
        "their results differ, nothing is written.",
        "trained_model model_for_serving",
        _COPYING,
    ),
    "add-gradients": (
        "add a signature that computes gradients to a SavedModel",
        "Writes a copy of SOURCE with one more signature: it takes the inputs and upstream gradients of a signature of "
        "the model, and returns its outputs and gradients. With a loss, it takes a target instead; with an update, "
        "each call is a training step. Prints the names, types and shapes of its inputs and outputs. The rest stays. "
        "Both models run on the same inputs. If their results differ, nothing is written.",
        "model model_with_gradients --of scores --wrt image variables",
        (
            *_COPYING,
            _option(
                "--signature NAME", "the signature to differentiate (default: %(default)s)", default="serving_default"
            ),
            _option("--of OUTPUT...", "outputs of the signature", required=True),
            _option(
                "--wrt INPUT...",
                "inputs of the signature, variables for its trainable variables, a pattern such as 'head/*' for those "
                "with such names, or inner:NAME for the value of an op or a scope inside",
                required=True,
            ),
            _option("--output inner:NAME...", "also return these ops or scopes", dest="outputs", default=[]),
            _option("--given inner:NAME...", "take the values of these ops or scopes as inputs", default=[]),
            _option("--name NAME", "the name of the new signature (default: %(default)s)", default="gradients"),
            _option(
                "--loss",
                "take a target, and differentiate this loss of the output: the mean squared error, or the crossentropy "
                "of logits and probabilities, such as one-hot vectors",
                choices=("mse", "crossentropy"),
            ),
            _option(
                "--update RATE",
                "train the variables with this learning rate, or with a new input that has it, such as learning_rate",
            ),
            _option(
                "--optimizer",
                "how an update trains, with the default options of Keras (default: %(default)s)",
                choices=("sgd", "momentum", "adam"),
                default="sgd",
            ),
            _option(
                "--state",
                "whether the weights are variables of the model, or inputs and outputs of the signature (default: "
                "%(default)s)",
                choices=("variables", "arguments"),
                default="variables",
            ),
            _option(
                "--lite",
                "use ops that LiteRT (TensorFlow Lite) has built in; with an update of variables, also add the "
                "signatures weights and set_weights",
            ),
            _option("--flex", "with --lite, allow other ops of TensorFlow, for a LiteRT that includes them"),
            _option(
                "--rule TYPE=RULE...",
                "use these rules for the gradients of op types, as in the command override",
                dest="rules",
            ),
        ),
    ),
    "compare": (
        "compare the values and gradients of two SavedModels, or a SavedModel with a LiteRT file",
        "Runs every signature and function of both models on the same inputs, and shows whether values and gradients "
        "are equal, by how much they differ, or why they cannot be compared. The exit status is 1 if any differ, or if "
        "values for your inputs cannot be compared.",
        "trained_model model_for_serving",
        (
            _option("path A", "the folder of a SavedModel"),
            _option("other B", "the folder of another one, or a LiteRT (TensorFlow Lite) file"),
            _option(
                "--inputs FILE",
                "an .npz file with arrays named SIGNATURE/ARGUMENT, or ARGUMENT if the model has a single signature "
                "(default: small random inputs, made from the model's input specs)",
            ),
        ),
    ),
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments, by default `sys.argv`; exits if they are wrong or ask for help."""
    examples = [f"  {' '.join(filter(None, (_PROGRAM, command, row[2])))}" for command, row in _COMMANDS.items()]
    parser = _Parser(
        prog=_PROGRAM,
        description="Tools for SavedModels with custom gradients, in the order in which you need them.",
        epilog="\n".join(["Examples:", *examples, f"\nFor help: {_PROGRAM} COMMAND --help.", _EXIT_STATUSES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = runpy.run_path(str(pathlib.Path(__file__).parent / "tf_cg_ops" / "_version.py"))["__version__"]
    parser.add_argument("--version", action="version", version=f"tf_cg_ops {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for (command, (summary, description, _, options)), example in zip(_COMMANDS.items(), examples, strict=True):
        epilog = f"Example: {example.strip()} -- {_EXIT_STATUSES}"
        added = commands.add_parser(command, help=summary, description=description, epilog=epilog)
        for name, settings in options:
            added.add_argument(name, **settings)
    try:
        return parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    except argparse.ArgumentTypeError as error:
        parser.exit(2, f"{_PROGRAM}: {error}\n")


def main() -> int:
    """Runs the command of this process and returns the exit status."""
    options = parse()
    model = getattr(options, "path", None) or getattr(options, "source", None)
    html, line = getattr(options, "html", None), ""
    if model and not model.is_dir():  # The import of TensorFlow, which checks the rest, takes seconds.
        got = "a file" if model.exists() else "a path that does not exist"
        line = f"'{model}' must be a folder that tf.saved_model.save wrote, got {got}."
        if model.suffix in (".keras", ".h5"):
            line += " For a file of Keras, load the model, write model.export('folder'), and pass that folder."
        elif model.suffix == ".pb":
            line += f" Pass '{model.parent}'."
    elif html and (html.is_dir() or not html.parent.is_dir()):
        line = f"--html must be a file in a folder that exists, got '{html}'."
    if line:
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
