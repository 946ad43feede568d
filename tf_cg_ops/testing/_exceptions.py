"""What is essential of TensorFlow's exceptions, which carry their traces in their messages."""

import re

_MOST = 400
# What comes before the message in the errors of graphs that ran.
_OF_GRAPHS = ("Graph execution error:", "Detected at node", "<stack traces unavailable>", "File ")


def in_one_line(error: Exception) -> str:
    """The type and the line that says what is wrong, without the end of a sentence."""
    text = str(error)
    if text.startswith("in user code:"):  # AutoGraph indents: files by 4, their lines by 8, the message by 4 again.
        lines = [re.sub(r"^\s+(\w+(Error|Exception): )?", "", s) for s in text.splitlines() if re.match(r" {4}\S", s)]
    else:
        lines = [line for line in text.splitlines() if re.match(r"\S", line)]
    line = next((line for line in lines if not line.startswith(_OF_GRAPHS)), "")
    line = re.sub(r"\s*\[Op:\w+\].*$", "", line)
    shortened = line if len(line) <= _MOST else f"{line[:_MOST]} [...]"
    return f"{type(error).__name__}: {shortened}".rstrip(" .:")


def mixes_precisions(error: Exception) -> bool:
    """Do two dtypes not fit that differ in their precision only? TensorFlow has several words for it."""
    text = str(error)
    return any(
        re.search(rf"\b({narrow})\b", text) and re.search(rf"\b({double})\b", text)
        for narrow, double in (("float|float32|half|float16|bfloat16", "double|float64"), ("complex64", "complex128"))
    )
