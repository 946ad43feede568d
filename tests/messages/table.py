"""Reads and runs the calls of messages.txt, and tells what they raise, as text."""

import pathlib
import re
import shutil
import tempfile
import warnings

import tensorflow as tf

import tf_cg_ops  # noqa: F401 Before the first op runs, after which XLA takes no kernels.

FILE = pathlib.Path(__file__).with_name("messages.txt")
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="messages-"))
MODES = ("eager", "traced", "jit")
_HEAD, *_PARTS = re.split(r"(?m)^# (.*?)(?: \((eager)\))?\n", FILE.read_text())


def sections():
    """The lines of each group, and whether it has other modes than most."""
    groups = zip(_PARTS[::3], _PARTS[1::3], _PARTS[2::3], strict=True)
    return {name: (re.split(r"\n(?! )", body.strip("\n")), only) for name, only, body in groups}


def write(lines_of_group):
    """Writes messages.txt anew, with other lines for some groups."""
    groups = {name: (lines_of_group.get(name, lines), only) for name, (lines, only) in sections().items()}
    titles = {name: f"# {name} ({only})" if only else f"# {name}" for name, (_, only) in groups.items()}
    FILE.write_text(_HEAD + "\n".join("\n".join([titles[name], *groups[name][0], ""]) for name in groups))


def _run(call, mode):
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
    # What differs between versions: Keras 3.16 numbers other scopes, Python 3.12 says more, converters align otherwise.
    (r"'last_N', |(?<=\btwice)_N(?=/)|(?<=/shared)_N(?=/)", ""),
    (r"(?<=a required )keyword-only (?=argument)", ""),
    (r"(?<=at least )\d+(?= bytes for unpacking)|(?<=4 bytes at offset )\d+", "N"),
]


def _without_noise(text):
    for pattern, replacement in _NOISE:
        text = re.sub(pattern, replacement, text)
    # TensorFlow prints all digits, and the last ones depend on the processor.
    return re.sub(r"\[(\d+\.\d{4,}(?:e[-+]\d+)?)\]", lambda number: f"[{float(number[1]):.3g}]", text).strip()


def lines_of(lines, only, names):
    """The lines of a group with what their calls raise now, and the errors. `names` is what the calls can use."""
    usual, modes_of = [only] if only else ["eager", "traced"], {}
    for line in lines:
        modes, call = re.match(rf"(?:((?:(?:{'|'.join(MODES)}),? ?)+): )?(.*?)(?: -> |$)", line).groups()
        modes_of.setdefault(call, set()).update(modes.split(", ") if modes else usual)
    found, errors = [], []
    for call, modes in modes_of.items():
        code, kinds_of = compile(call, FILE.name, "eval"), {}
        for mode in filter(modes.__contains__, MODES):
            kind, text, error = _outcome(lambda code=code: eval(code, names), mode)
            kinds_of.setdefault(text, {}).setdefault(kind, []).append(mode)
            errors += [error] * (error is not None)
        for text, kinds in kinds_of.items():
            kind = " or ".join(k if len(kinds) == 1 else f"{k} ({', '.join(modes)})" for k, modes in kinds.items())
            modes = [mode for of_kind in kinds.values() for mode in of_kind]
            found.append(f"{'' if modes == usual else ', '.join(modes) + ': '}{call} -> {kind}: {text}".strip())
    return [line.replace("\n", "\n    ") for line in found], errors


def clean_up():
    shutil.rmtree(FOLDER, ignore_errors=True)
