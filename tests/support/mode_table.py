"""Makes docs/modes.json and docs/modes.md from the tests that carry the mark `mode_table`.

The mark names the function and the mode of a test; the name of a parameter stands for its value. Both files are written
at the end of a run of all these tests (`pytest -m mode_table`, `make test-all`), and of no other.
"""

import json

import pytest
import tensorflow as tf

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
_SOURCE = pytest.Config.ArgsSource


def fills(mode, *features):
    """Marks a test with cells of one row."""

    def mark(test):
        for feature in features:
            test = pytest.mark.mode_table(feature=feature, mode=mode)(test)
        return test

    return mark


class ModeTable:
    """The plugin: it collects the outcome of every marked test.

    Under pytest-xdist each worker collects all tests and runs a part of them. The process that distributes them
    collects none, but gets all reports, and what the workers collected when they end: it writes the files.
    """

    def __init__(self, config):
        self._config = config
        self._outcomes = {}  # For each mode and function, one for each test.
        self._collected = set()  # The marked tests.
        self._reported = set()  # Those that have been run.
        self._all_are_collected = True

    def pytest_collectreport(self, report):
        """A file that cannot be imported, or is skipped, may hold marked tests."""
        if not report.passed:
            self._all_are_collected = False

    def pytest_collection_finish(self, session):
        """Notes which tests have to run."""
        self._collected.update(item.nodeid for item in session.items if item.get_closest_marker(_MARK))

    def pytest_deselected(self, items):
        """By -k, -m, --deselect or --lf."""
        if any(item.get_closest_marker(_MARK) for item in items):
            self._all_are_collected = False

    def pytest_runtest_logreport(self, report):
        """One report for each phase of a test; a failure in any phase is one of the test."""
        for name, function, mode, outcome in report.user_properties:
            if name == _MARK and (report.when == "call" or not report.passed):
                result = outcome if report.passed else "failed"
                self._outcomes.setdefault(mode, {}).setdefault(function, []).append(result)
                self._reported.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """A worker has ended; one that crashed says nothing, and the tests that it left go to another one."""
        if _MARK in (output := getattr(node, "workeroutput", {})):
            self._collected.update(output[_MARK]["collected"])
            self._all_are_collected &= output[_MARK]["all"]

    def pytest_sessionfinish(self):
        """Writes the two files if every marked test ran; a worker cannot know that."""
        if hasattr(self._config, "workeroutput"):
            said = {"collected": sorted(self._collected), "all": self._all_are_collected}
            self._config.workeroutput[_MARK] = said
        elif self._all_are_asked() and self._all_are_run():
            write({mode: {f: worst(o) for f, o in cells.items()} for mode, cells in self._outcomes.items()})

    def _all_are_run(self):
        return self._all_are_collected and bool(self._collected) and self._collected <= self._reported

    def _all_are_asked(self):
        """Whether the command line asks for all tests; the workers' has the same options, but names the folders."""
        options = self._config.option
        by_itself = self._config.args_source in (_SOURCE.TESTPATHS, _SOURCE.INVOCATION_DIR)
        return by_itself and not options.ignore and not options.ignore_glob


def worst(outcomes):
    """The outcome of all tests of one cell; a skipped test has shown nothing, and counts as failed."""
    return next((outcome for outcome in ("failed", "left out") if outcome in outcomes), "passed")


def cells_of(item):
    """The cells that a test is about: the property's name, function, mode, and what passing means."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for mark in item.iter_markers(_MARK):
        given = {"outcome": "passed", **mark.kwargs}
        function, mode = (parameters.get(given[key], given[key]) for key in ("feature", "mode"))
        assert function in _COLUMN_OF, function
        assert mode in ROWS, mode
        yield _MARK, function, mode, given["outcome"]


def write(cells):
    """The machine-readable file and the page."""
    version = ".".join(tf.__version__.split(".")[:2])
    ordered = {mode: dict(sorted(cells[mode].items())) for mode in ROWS if mode in cells}
    result = {"tensorflow": version, "cells": ordered}
    (ROOT / "docs" / "modes.json").write_text(json.dumps(result, indent=1) + "\n")
    (ROOT / "docs" / "modes.md").write_text(page(result))


def page(result):
    """The table as Markdown."""
    lines = [
        "# Support matrix",
        "",
        "Each cell counts the functions that tests compare with numbers by hand in that mode: values, first and second",
        "derivatives (first derivatives alone for `scan`, `numpy_function`, Keras models and layers; values in TFLite).",
        f"`docs/modes.json` names them. The tests ran on a CPU, with TensorFlow {result['tensorflow']}, and wrote this table.",
        "",
        "- †: some functions are left out, since built-in ops do not work there either; a test shows that.",
        "- empty: no test.",
        "",
        "| mode | " + " | ".join(f"<code>{column.replace('_', '_<wbr>')}</code>" for column in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for mode, functions in result["cells"].items():
        row = [_cell([r for f, r in functions.items() if _COLUMN_OF[f] == column]) for column in COLUMNS]
        lines.append(f"| {ROWS[mode]} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _cell(results):
    if not results:
        return ""
    passed, failed = results.count("passed"), results.count("failed")
    text = f"FAILS ({failed})" if failed else str(passed)
    return text + (" †" if len(results) > passed + failed else "")
