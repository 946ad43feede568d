"""What wrong calls raise, as text: the engine behind messages.txt."""

import contextlib
import functools
import pathlib
import re
import shutil
import tempfile
import warnings

import tensorflow as tf

import tf_cg_ops  # noqa: F401 Before the first op runs, after which XLA takes no kernels.

FILE = pathlib.Path(__file__).with_name("messages.txt")
ROOT = FILE.parents[2]
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="messages-"))
X, Y = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
INTEGERS, M = tf.constant([1, 2]), tf.ones([2, 3])

_HEAD = """\
Every message that a wrong call brings, by public function. Read them as a user would.

`python -m tests.messages.write` writes this file anew: review its diff. A line has the rows of the tables beside this file
that bring the message, then the error as Python prints it. If the modes differ, it says which one it is: eager mode, a
tf.function ("traced"), a tf.function for Tensors of unknown shapes ("unknown"), or XLA ("jit"). Two errors with a comma:
TensorFlow raises the first with the text of the second, which Python code in a graph has raised.
"""
_shapes_are_known = True


class Row:
    """A wrong call that is tried in other modes than most."""

    def __init__(self, call, *modes):
        self.call, self.modes = call, modes


def eager(call):
    return Row(call, "eager")


def options(call, /, **values):
    """A row for each value of each argument: a list of them, or a dict if they need names."""
    return {
        f"{name}={label if isinstance(of_name, dict) else show(value)}": functools.partial(call, **{name: value})
        for name, of_name in values.items()
        for label, value in (of_name.items() if isinstance(of_name, dict) else enumerate(of_name))
    }


def show(value):
    if isinstance(value, tf.Tensor):
        return f"Tensor({value.dtype.name}, {value.shape})"
    return re.sub(r"<function (\S+) at 0x\w+>", r"\1", getattr(value, "__name__", None) or repr(value))


def ones(*shape):
    """A Tensor whose shape is not known while tracing in the mode "unknown"."""
    tensor = tf.ones(shape)
    return tensor if _shapes_are_known else tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=None)


def derive(function, *args, dy=None):
    args = args or (X,)
    with tf.GradientTape() as tape:
        tape.watch(args)
        y = function(*args)
    return tape.gradient(y, args, output_gradients=dy)


def tangents_of(function, *args):
    args = args or (X,)
    with tf.autodiff.ForwardAccumulator(args, args) as accumulator:
        y = function(*args)
    return accumulator.jvp(y)


def in_tensorflow_1(function, *args):
    """The same in a graph of TensorFlow 1."""
    with tf.Graph().as_default():
        x = [tf.compat.v1.placeholder(arg.dtype, arg.shape) for arg in args or (X,)]
        tf.gradients(function(*x), x)


def _run(call, mode):
    global _shapes_are_known
    _shapes_are_known = mode != "unknown"
    if mode == "eager":
        return call()
    # AutoGraph would add text of its own, and a graph keeps only what its function returns.
    traced = lambda: [t for t in tf.nest.flatten(call()) if tf.is_tensor(t)]  # noqa: E731
    return tf.function(traced, autograph=False, jit_compile=mode == "jit" or None)()


def _outcome(call, mode):
    """The error of a call, or its warnings, as a name and a text; and the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            _run(call, mode)
        except Exception as error:
            text = _without_noise("\n".join([str(error), *getattr(error, "__notes__", [])]))
            if in_python := re.match(r"(\w+Error): ", text):  # TensorFlow's error for Python code in a graph.
                return f"{type(error).__name__}, {in_python[1]}", text[in_python.end() :], error
            return type(error).__name__, text, error
    texts = [_without_noise(str(warning.message)) for warning in caught if issubclass(warning.category, UserWarning)]
    return ("UserWarning", "\n".join(texts), None) if texts else ("nothing is raised", "", None)


# What TensorFlow adds around a message in a graph, and what differs from run to run.
_NOISE = [
    (rf"{re.escape(str(FOLDER))}", "FOLDER"),
    (r"\x1b\[[0-9;]*m", ""),
    (r"(?s)^Graph execution error:\n\nDetected at node.*?\n\n(?=\S)", ""),
    (r"\{\{function_node .*?\}\} ?", ""),
    (r"(?s)^(\w+Error: .*?)\nTraceback \(most recent call last\):\n.*", r"\1"),
    (r"(?s) for '\{\{node .*", ""),
    (r"(?s)\n[^\n]*is out of scope.*|( is out of scope) and cannot be used here.*", r"\1"),
    (r"\s*\t \[\[.*?\]\]|\s*\[Op:[^\]]+\]( name: \S*)?", ""),
    (r"(?s)\n\n?(Stack trace for op definition|The op is created at): .*|\n\ttf2xla conversion failed.*", ""),
    (r"\[_XlaMustCompile[^\]]*\]", ""),
    (r"0x[0-9a-f]+", "0x..."),
    (r"\b_Mkl(?=MatMul\b)", ""),  # With oneDNN.
    (r"(?<=[a-z>]_)\d+(?=[/'\" (:])", "N"),
]


def _without_noise(text):
    for pattern, replacement in _NOISE:
        text = re.sub(pattern, replacement, text)
    # TensorFlow prints all digits, and the last ones depend on the processor.
    return re.sub(r"\[(\d+\.\d{4,}(?:e[-+]\d+)?)\]", lambda number: f"[{float(number[1]):.3g}]", text).strip()


def lines_of(rows):
    """A group of rows as lines of messages.txt, and the errors."""
    calls_of, errors = {}, []
    for name, row in rows.items():
        row = row if isinstance(row, Row) else Row(row, "eager", "traced")
        modes_of = {}
        for mode in row.modes:
            kind, text, error = _outcome(row.call, mode)
            modes_of.setdefault(text, {}).setdefault(kind, []).append(mode)
            errors += [error] * (error is not None)
        for text, kinds in modes_of.items():
            kind = " or ".join(k if len(kinds) == 1 else f"{k} ({', '.join(modes)})" for k, modes in kinds.items())
            modes = (
                "" if len(modes_of) == 1 else f" ({', '.join(mode for of_kind in kinds.values() for mode in of_kind)})"
            )
            calls_of.setdefault((kind, text), []).append(name + modes)
    lines = [f"{' | '.join(calls)} -> {kind}: {text}".strip() for (kind, text), calls in calls_of.items()]
    return [line.replace("\n", "\n    ") for line in lines], errors


def sections():
    """The lines of messages.txt, by group."""
    parts = re.split(r"(?m)^# (.*)\n", FILE.read_text())
    return {name: re.split(r"\n(?! )", body.strip("\n")) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def write(groups):
    FILE.write_text(_HEAD + "".join(f"\n# {name}\n" + "\n".join(lines) + "\n" for name, lines in groups.items()))


@contextlib.contextmanager
def nothing_is_written():
    """Checks that a failed call leaves the folder of all models as it was."""

    def files():
        paths = sorted(FOLDER.rglob("*"))
        return [(path, path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths]

    before = files()
    try:
        yield
    finally:
        if files() != before:
            raise RuntimeError("The call has changed files.")


def clean_up():
    shutil.rmtree(FOLDER, ignore_errors=True)
