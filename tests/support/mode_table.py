"""Makes docs/modes.json and docs/modes.md from pytest's report of the tests that carry the mark `mode_table`.

The mark names the function and the mode of a test; the name of a parameter stands for its value. `make test-all` calls
this program with the report of all tests.
"""

import json
import sys
import xml.etree.ElementTree

import pytest

from .sources import ROOT

# The columns, and which of the functions under test belong to each.
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
    "override_gradients": [],
    "grad_pass_through": [],
    "numpy_function": ["numpy_function, vjp"],
    "implicit_root": [],
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
        "straight_through",
    ],
}
_COLUMN_OF = {function: column for column, functions in COLUMNS.items() for function in [column, *functions]}

# The rows, in this order.
ROWS = {
    "eager": "eager mode",
    "traced": "`tf.function`",
    "around_traced": "`tf.function`, tapes around it",
    "unknown_shape": "`tf.function`, sizes unknown while tracing",
    "nested_functions": "nested `tf.function`s",
    "autograph": "loops and conditionals by AutoGraph",
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
    "jacobians": "`tape.jacobian`, of first order, too",
    "forward_mode": "`ForwardAccumulator`, alone and over reverse, in `tf.function`",
    "forward_mode_eager": "the same in eager mode",
    "reloaded": "SavedModel in a fresh process, saved again",
    "v1_loader": "loader of TensorFlow 1, no Python gradient",
    "c_api": "C program",
    "mixed_precision": "mixed precision in Keras 3 and tf_keras",
    "keras_jit": "Keras 3 `fit` with XLA",
    "functional": "functional models of Keras 3 and tf_keras",
    "keras_files": "the same: `.keras` files and clones",
    "keras_fresh": "a `.keras` file in a fresh process",
    "keras_export": "`model.export` of Keras 3, in a fresh process",
    "op_free": "op-free export, without the library",
    "tflite": "op-free export, in TFLite: the values",
    "mirrored": "`MirroredStrategy`",
    "multi_worker": "`MultiWorkerMirroredStrategy`",
    "parameter_server": "`ParameterServerStrategy`",
}

_MARK = "mode_table"
# From the best to the worst.
_OUTCOMES = ("passed", "left out", "failed")


def fills(mode, *features):
    """Marks a test with cells of one row."""

    def mark(test):
        for feature in features:
            test = pytest.mark.mode_table(feature=feature, mode=mode)(test)
        return test

    return mark


def cells_of(item):
    """The cells that a test is about, as properties for pytest's report: the function, the mode and what passing means."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for mark in item.iter_markers(_MARK):
        given = {"outcome": "passed", **mark.kwargs}
        function, mode = (parameters.get(given[key], given[key]) for key in ("feature", "mode"))
        assert function in _COLUMN_OF, function
        assert mode in ROWS, mode
        yield _MARK, json.dumps([function, mode, given["outcome"]])


def read(report):
    """The worst outcome of each cell's tests, by mode; a skipped test has shown nothing, and counts as failed."""
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
        "Each cell counts the functions that tests compare with numbers by hand in that mode: values, first and second",
        "derivatives (first derivatives alone for `scan`, `numpy_function`, Keras models and layers; values in TFLite).",
        f"`docs/modes.json` names them; `make test-slow` has the other pairs. The tests ran on a CPU, with TensorFlow {version}, and wrote this table.",
        "",
        "- †: some functions are left out, since built-in ops do not work there either; a test shows that.",
        "- empty: no test.",
        "",
        "| mode | " + " | ".join(f"<code>{column.replace('_', '_<wbr>')}</code>" for column in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for mode, functions in cells.items():
        row = [_cell([o for f, o in functions.items() if _COLUMN_OF[f] == column]) for column in COLUMNS]
        lines.append(f"| {ROWS[mode]} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _cell(outcomes):
    if not outcomes:
        return ""
    passed, failed = outcomes.count("passed"), outcomes.count("failed")
    text = f"FAILS ({failed})" if failed else str(passed)
    return text + (" †" if len(outcomes) > passed + failed else "")


def main(report):
    """Writes both files, unless a cell that they have is missing: then some tests did not run."""
    from build_ops.tensorflow import minor_of, require_tensorflow  # Which tests run by Bazel do not have.

    cells = read(report)
    known = json.loads((ROOT / "docs" / "modes.json").read_text())["cells"]
    missing = [
        f"{f!r} in {mode!r}" for mode, functions in known.items() for f in functions if f not in cells.get(mode, {})
    ]
    if missing:
        sys.exit(
            f"mode_table: the report lacks cells; expected all that docs/modes.json has, got none for {', '.join(missing)}. "
            "Run all tests, or remove from docs/modes.json what is not tested any more."
        )
    write(minor_of(require_tensorflow().version), cells)


if __name__ == "__main__":
    main(*sys.argv[1:])
