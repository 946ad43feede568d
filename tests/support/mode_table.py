"""Writes docs/modes.json and docs/modes.md from pytest's report of the tests with the mark `mode_table`.

The mark names the function and the mode of a test, or the test's parameters with these values. `make test-all` calls this
program with the report of all tests.
"""

import json
import sys
import xml.etree.ElementTree

import pytest

from .sources import ROOT

# The columns, and which of the functions under test belong to each, beside the one with the name of the column.
COLUMNS = {
    "embed_gradient": ["embed_gradient, unstopped", "embed_gradient, axis", "embed_gradient, lists"],
    "custom_gradient": [
        "plain",
        "with_variable",
        "keywords",
        "nested",
        "calling_function",
        "while_loop",
        "cond",
        "scan",
        "map_fn",
        "nested_functions",
        "vectorized",
        "custom_gradient, keywords",
        "custom_gradient, structures",
    ],
    "custom_vjp": [],
    "custom_jvp": [],
    "recompute_grad": [],
    # The functions of this library; "scan" and "while_loop" above are decorated functions in TensorFlow's loops.
    "scan": ["cg.scan", "cg.scan, checkpoint=None", "cg.scan, mapped xs"],
    "while_loop": ["cg.while_loop"],
    "override_gradients": [],
    "saved_model": ["strip", "adopt", "override"],
    "grad_pass_through": [],
    "numpy_function": ["numpy_function, vjp"],
    "implicit_root": [],
    "linear": ["cg", "gmres"],
    "compat": ["compat.bayesflow", "compat.tfp_math"],
    "layers": [
        "reversal",
        "reversal by default",
        "scale",
        "clip by value",
        "clip by norm",
        "clip by the norm of rows",
        "clip by global norm",
        "sign",
        "heaviside",
        "a function of TensorFlow",
        "watch",
        "functions of one's own",
        "a decorated function",
        "embedding, elements",
        "embedding, rows",
        "embedding, rows, as a list",
        "embedding, all",
    ],
    "ready-made": [
        "reverse_gradient",
        "reverse_gradient by a schedule",
        "scale_gradient",
        "clip_gradient",
        "watch_gradient",
        "fake_quant",
        "straight_through",
    ],
}
COLUMN_OF = dict(zip(COLUMNS, COLUMNS, strict=True)) | {f: column for column, fs in COLUMNS.items() for f in fs}

# The rows, in this order.
ROWS = {
    "eager": "eager mode",
    "traced": "`tf.function`",
    "around_traced": "`tf.function` inside the tape",
    "unknown_shape": "`tf.function`, unknown shapes",
    "nested_functions": "nested `tf.function`s",
    "autograph": "AutoGraph loops and conditionals",
    "tf1": "TensorFlow 1 graph and session",
    "jit": "XLA (`jit_compile=True`)",
    "while_loop": "`tf.while_loop`",
    "while_loop_under_xla": "`tf.while_loop` under XLA",
    "cond": "`tf.cond`",
    "switch_case": "`tf.switch_case`",
    "scan": "`tf.scan`",
    "map_fn": "`tf.map_fn`",
    "dataset_map": "`tf.data.Dataset.map`",
    "vectorized_map": "`tf.vectorized_map`, no fallback",
    "jacobians": "`tape.jacobian`",
    "forward_mode": "`ForwardAccumulator` in `tf.function`",
    "forward_mode_eager": "`ForwardAccumulator` in eager mode",
    "reloaded": "SavedModel in a fresh process",
    "v1_loader": "TensorFlow 1 loader, without Python gradients",
    "c_api": "C program",
    "mixed_precision": "Keras mixed precision",
    "keras_jit": "Keras 3 `fit` with XLA",
    "functional": "Keras functional models",
    "keras_files": "`.keras` files and clones of these",
    "keras_fresh": "a `.keras` file in a fresh process",
    "keras_export": "Keras 3 `model.export`",
    "op_free": "`saved_model.strip`, library not installed",
    "shipped": "`add_gradients`, then `strip`: without the library, and in C",
    "tflite": "`saved_model.strip`, then TFLite",
    "mirrored": "`MirroredStrategy`",
    "multi_worker": "`MultiWorkerMirroredStrategy`",
    "parameter_server": "`ParameterServerStrategy`",
}

# Pairs that make no sense: a functional model and XLA refuse what a later row would need, or the mode has no Python
# process; and the functions of `saved_model` work on files, not in Keras.
SENSELESS = {
    "scan": {"keras_files", "keras_fresh"},
    "while_loop": {"keras_files", "keras_fresh"},
    "saved_model": {"mixed_precision", "keras_jit", "functional", "keras_files", "keras_fresh"},
    "numpy_function": {"v1_loader", "c_api", "op_free", "shipped", "tflite"},
}

_MARK = "mode_table"
# From the best to the worst.
_OUTCOMES = ("passed", "unsupported", "failed")


def fills(mode, *features):
    """Marks a test with several cells of one row."""

    def mark(test):
        for feature in features:
            test = pytest.mark.mode_table(feature=feature, mode=mode)(test)
        return test

    return mark


def cells_of(item):
    """The cells that a test fills, as properties for pytest's report: the function, the mode and what it means to pass."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for mark in item.iter_markers(_MARK):
        given = {"outcome": "passed", **mark.kwargs}
        function, mode = (parameters.get(given[key], given[key]) for key in ("feature", "mode"))
        assert function in COLUMN_OF, function
        assert mode in ROWS, mode
        yield _MARK, json.dumps([function, mode, given["outcome"]])


def read(report):
    """The worst outcome of each cell's tests, by mode. A skipped test counts as failed, because it has shown nothing."""
    cells = {mode: {} for mode in ROWS}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        has_passed = not any(child.tag in ("failure", "error", "skipped") for child in case)
        for one in case.iterfind(f"properties/property[@name='{_MARK}']"):
            function, mode, outcome = json.loads(one.get("value"))
            outcomes = [outcome if has_passed else "failed", cells[mode].get(function, "passed")]
            cells[mode][function] = max(outcomes, key=_OUTCOMES.index)
    return {mode: dict(sorted(functions.items())) for mode, functions in cells.items() if functions}


def write(version, cells):
    """The machine-readable file, with a line for each mode, and the page."""
    lines = ",\n".join(f"{json.dumps(mode)}: {json.dumps(functions)}" for mode, functions in cells.items())
    text = f'{{\n"tensorflow": {json.dumps(version)},\n"cells": {{\n{lines}\n}}\n}}\n'
    (ROOT / "docs" / "modes.json").write_text(text)
    (ROOT / "docs" / "modes.md").write_text(page(version, cells))


def page(version, cells):
    """The table as Markdown."""
    lines = [
        "# Support matrix",
        "",
        "What works where. The rows are ways to run TensorFlow, the columns are functions of this library.",
        "",
        "- **yes**: tests compare values and derivatives with formulas or with plain TensorFlow.",
        "- **partly**: some uses pass these tests; for the others, a test shows that they fail.",
        "- **no**: a test shows that it fails, with an error.",
        "- **kernels**: only the CUDA kernels were checked, on one H100, by a program without TensorFlow. The ops have not run",
        "  on a GPU in TensorFlow ([GPUs](gpu.md)).",
        "- **n/a**: the pair makes no sense. A function that needs Python cannot run in a C program, for example.",
        "- empty: not tested.",
        "",
        "[Known limitations](limits.md) has the reasons. Tests check first derivatives in each mode; values only for `strip`",
        "alone and TFLite. Second derivatives are checked in each mode for `embed_gradient`, `custom_gradient`, `compat`,",
        "`implicit_root` and straight-through gradients, and in eager mode and `tf.function` for the other decorators but",
        "`numpy_function`.",
        "",
        "The last column, `ready-made`, has the gradients that you need not write yourself: `reverse_gradient`,",
        "`scale_gradient`, `clip_gradient`, `watch_gradient`, `fake_quant` and `straight_through`. `saved_model` stands for `strip`, `adopt` and",
        "`override`, and `implicit_root` also for its two relatives.",
        "",
        f"The test suite wrote this table on a CPU, with TensorFlow {version};",
        "[modes.json](https://github.com/tf-cg-ops/tf_cg_ops/blob/main/docs/modes.json) has the outcome for each function.",
        "",
        "| mode | " + " | ".join(f"<code>{column.replace('_', '_<wbr>')}</code>" for column in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for mode, functions in cells.items():
        row = [_cell(column, mode, [o for f, o in functions.items() if COLUMN_OF[f] == column]) for column in COLUMNS]
        lines.append(f"| {ROWS[mode]} | " + " | ".join(row) + " |")
    # Tests that run here cannot fill this row: cuda/check, which did, is a program of its own.
    lines.append("| GPU | " + " | ".join("kernels" if column == "embed_gradient" else "" for column in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def _cell(column, mode, outcomes):
    if mode in SENSELESS.get(column, ()):
        assert not outcomes, (column, mode)
        return "n/a"
    if not outcomes:
        return ""
    if "failed" in outcomes:
        return "FAILS"
    if "unsupported" not in outcomes:
        return "yes"
    return "partly" if "passed" in outcomes else "no"


def main(report):
    """Writes both files, unless the report lacks a cell that they have: then some tests did not run."""
    from build_ops.tensorflow import minor_of, require_tensorflow  # Which tests run by Bazel do not have.

    cells = read(report)
    known = json.loads((ROOT / "docs" / "modes.json").read_text())["cells"]
    missing = [
        f"{f!r} in {mode!r}" for mode, functions in known.items() for f in functions if f not in cells.get(mode, {})
    ]
    if missing:
        sys.exit(
            f"mode_table: the report must have all cells of docs/modes.json, got none for {', '.join(missing)}. "
            "Run all tests, or remove cells that are no longer tested from docs/modes.json."
        )
    write(minor_of(require_tensorflow().version), cells)


if __name__ == "__main__":
    main(*sys.argv[1:])
