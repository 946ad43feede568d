"""Runs the commands of `tf-cg-ops`, once the arguments are parsed."""

import argparse
import inspect
import json
import os
import pathlib
import re
import shutil
import sys
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops import _demo, rules, saved_model, testing
from tf_cg_ops._src.core import text
from tf_cg_ops.saved_model import _inputs
from tf_cg_ops.saved_model._folder import read_saved_model


def run(options: argparse.Namespace) -> int:
    """Runs a command that `tf_cg_ops_cli` has parsed, and returns the exit status."""
    others = {"compare": _compare, "audit": _audit, "inspect": _inspect, "demo": lambda options: _demo.run()}
    for_program = text.for_program.set(True)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _print_to_stderr(_own_words(options.command, str(message)))
            return others.get(options.command, _write_copy)(options)
    except BrokenPipeError:
        _redirect_to_null(sys.stdout)
    except Exception as error:
        _print_to_stderr(_error_line(options.command, error))
    finally:
        text.for_program.reset(for_program)
    return 1


def _own_words(command: str, message: str) -> str:
    """A message of this library with the name of the command instead of the function in Python."""
    api, _, rest = message.partition(": ")
    is_own = api.startswith("saved_model.") or api in ("audit", "tf_cg_ops")
    return f"tf-cg-ops {command}: {rest}" if is_own else message


def _error_line(command: str, error: Exception) -> str:
    """The line to print about an error: its own message if this library wrote it."""
    message = str(error)
    if (own := _own_words(command, message)) != message:
        return own
    if isinstance(error, OSError):
        return (
            f"tf-cg-ops {command}: the operating system reports: {_os_reason(error)}. Check that path, its permissions "
            "and the space on the disk."
        )
    got = f"{type(error).__name__}: {message.strip()}".partition("\n")[0].rstrip(".: ")
    return (
        f"tf-cg-ops {command}: unexpected error: {got}. Call the function of that name in Python to see the traceback, "
        "and please report it."
    )


def _os_reason(error: Exception) -> str:
    """The message of the operating system; for several files, the message about the first one."""
    text = str(error.args[0][0][2] if isinstance(error, shutil.Error) else error)
    return re.sub(r"^\[Errno \d+\] ", "", text.partition("\n")[0]).rstrip(".")


def _print_to_stderr(line: str) -> None:
    """Prints an error or a step. The command goes on even if the stream is closed."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _redirect_to_null(sys.stderr)


def _print_output(command: str, text: str, state: str) -> int:
    """Prints the output and returns the exit status. The reader of a pipe may close it early."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _redirect_to_null(sys.stdout)
    except (OSError, UnicodeEncodeError) as error:
        _redirect_to_null(sys.stdout)
        _print_to_stderr(
            f"tf-cg-ops {command}: the output cannot be printed: {_os_reason(error)}. Redirect it to another place; "
            f"{state}."
        )
        return 1
    return 0


def _redirect_to_null(stream: Any) -> None:
    """Discards a stream, because at the end Python writes the rest of its buffer and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _write_copy(options: argparse.Namespace) -> int:
    """Calls the function of `saved_model` with the name of the command. Its parameters are the options."""
    given = vars(options)
    if given.get("rules"):
        given["rules"] = _rules(options.rules)
    if given.get("place"):
        given["gradients"] = _all_places(options) | {
            name: getattr(rules, gradient, gradient) for name, gradient in options.place
        }
    function = getattr(saved_model, options.command.replace("-", "_"))
    report = function(**{name: given[name] for name in inspect.signature(function).parameters})
    return _print_output(options.command, str(report), f"'{report.target}' is written")


def _rules(chosen: list[tuple[str, str, dict[str, float]]]) -> dict[Any, Any]:
    """The rules by op type or predicate, from what `tf_cg_ops_cli` has parsed."""
    return {
        rules.elementwise if op_type == "elementwise" else op_type: (
            getattr(rules, name)(**limit) if limit else getattr(rules, name)
        )
        for op_type, name, limit in chosen
    }


def _all_places(options: argparse.Namespace) -> dict[str, str]:
    """The gradient of each place, by function and node, that no option names."""
    if options.gradients == "saved":
        return {}  # The default.
    named = {name for name, _ in options.place}
    found = [found for found in saved_model.inspect(options.source) if found.kind == "tf.custom_gradient"]
    places = [(f"{each.function}/{each.node}" if each.function else each.node, each.node) for each in found]
    return {place: options.gradients for place, node in places if place not in named and node not in named}


def _compare(options: argparse.Namespace) -> int:
    api, inputs = "saved_model.compare", None
    if options.inputs:
        meta_graphs = read_saved_model(api, options.path).meta_graphs
        known = {name: s.inputs for each in meta_graphs for name, s in each.signature_def.items() if s.inputs}
        inputs = _read_inputs(api, options.inputs, known)
    found = saved_model.compare(options.path, options.other, inputs)
    lines = [str(each) for each in found] or ["nothing that could be called"]
    # A model that refuses the user's own inputs is a failure, too.
    # Behind the name of a signature, `compare` names the meta graph if there are several.
    own = [each for each in found if each.what != "gradients" and each.name.partition(" of ")[0] in (inputs or ())]
    status = any(each.verdict == "not compared" for each in own) or any(each.verdict == "different" for each in found)
    return _print_output("compare", "\n".join(lines), "nothing was changed") or int(status)


def _read_inputs(
    api: str, file: pathlib.Path, known: Mapping[str, Mapping[str, Any]], default: str | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Inputs from an .npz file, by signature and argument. Names can leave out the default, or the only signature."""
    default = next(iter(known)) if len(known) == 1 else default
    short = {key: (str(default), key) for key in known.get(default or "", ())}
    places = {f"{name}/{key}": (name, key) for name in known for key in known[name]} | short

    def wrong_file(got: str) -> ValueError:
        names = text.quoted(sorted(short or places))
        return ValueError(
            f"{api}: '{file}' must be an .npz file with arrays named {names}, got {got}. Write it with "
            "numpy.savez(path, NAME=array)."
        )

    if not zipfile.is_zipfile(file):
        raise wrong_file("a file of another kind" if file.exists() else "a path that does not exist")
    try:
        with np.load(file) as arrays:
            arrays_by_name = dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise wrong_file(str(error).partition("\n")[0].rstrip(".")) from error
    if unknown := arrays_by_name.keys() - places.keys():
        raise wrong_file(text.quoted(sorted(unknown)))
    inputs: dict[str, dict[str, np.ndarray]] = {}
    for array_name, array in arrays_by_name.items():
        name, key = places[array_name]
        inputs.setdefault(name, {})[key] = array
    return inputs


def _audit(options: argparse.Namespace) -> int:
    loaded = _load_with_signatures(options.path)
    signatures = loaded.signatures
    name = options.signature or ("serving_default" if "serving_default" in signatures else next(iter(signatures)))
    if name not in signatures:
        raise ValueError(
            f"audit: --signature must name a signature of '{options.path}', got '{name}'. It has "
            f"{text.quoted(sorted(signatures))}."
        )
    given = None
    if options.inputs:
        specs = {key: function.structured_input_signature[1] for key, function in signatures.items()}
        given = _read_inputs("audit", options.inputs, specs, name).get(name, {})
        if missing := specs[name].keys() - given:
            raise ValueError(f"audit: '{options.inputs}' must also have {text.quoted(sorted(missing))} of '{name}'.")
        given = _inputs.to_tensors("audit", name, given, specs[name])
    report = testing.audit(signatures[name], given, intended=options.intended, progress=_print_to_stderr)
    status = _print_output("audit", str(report), "nothing was changed")
    if options.html is not None:
        options.html.write_text(report.to_html(), encoding="utf-8")
    return status or int(bool(report.wrong or report.first_nonfinite))


def _load_with_signatures(path: pathlib.Path) -> Any:
    """Loads a SavedModel; ValueError if it has no signature. The signatures do not keep its variables alive."""
    loaded = tf.saved_model.load(str(path))
    if not loaded.signatures:
        raise ValueError(
            f"audit: '{path}' must have a signature, got none. Only Python can audit its functions, with "
            "tf_cg_ops.testing.audit."
        )
    return loaded


def _inspect(options: argparse.Namespace) -> int:
    found = saved_model.inspect(options.path)
    as_json = json.dumps([asdict(gradient) for gradient in found], indent=2)
    output = as_json if options.json else _gradient_table(found)
    return _print_output("inspect", output, "the model was not changed")


def _gradient_table(found: list[saved_model.EmbeddedGradient]) -> str:
    """A row for each gradient, and the errors below."""
    if not found:
        return "The model has no custom gradients."
    head = ("function", "operation", "kind", "of", "value", "gradients", "orders", "rule")
    rows = [head, *map(_table_row, found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    errors = [f"{gradient.node}: {gradient.error}" for gradient in found if gradient.error]
    return "\n".join([*lines, *(["", *errors] if errors else [])])


def _table_row(gradient: saved_model.EmbeddedGradient) -> tuple[str, ...]:
    def shape_text(shape: tuple[int | None, ...] | None) -> str:
        return "[...]" if shape is None else "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"

    values = zip(gradient.dtypes, gradient.shapes, strict=True)
    rule = "" if gradient.rule_ops is None else text.count(gradient.rule_ops, "operation")
    return (
        gradient.function or "(graph)",
        gradient.node,
        gradient.kind,
        gradient.user_function,
        ", ".join(dtype + shape_text(shape) for dtype, shape in values),
        str(gradient.inputs_with_gradients),
        "any" if gradient.orders is None else str(gradient.orders),
        "error, see below" if gradient.error else rule,
    )
