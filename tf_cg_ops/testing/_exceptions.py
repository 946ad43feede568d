"""Shortens the messages of TensorFlow's exceptions, which contain their traces."""

import re

_MAX_LENGTH = 400
# Lines before the message in the errors of graphs that ran.
_GRAPH_NOISE = ("Graph execution error:", "Detected at node", "<stack traces unavailable>", "File ")


def in_one_line(error: Exception) -> str:
    """The type of an error and the line with its message, without the final period."""
    text = str(error)
    if text.startswith("in user code:"):  # AutoGraph indents: files by 4, their lines by 8, the message by 4 again.
        lines = [re.sub(r"^\s+(\w+(Error|Exception): )?", "", s) for s in text.splitlines() if re.match(r" {4}\S", s)]
    else:
        lines = [line for line in text.splitlines() if re.match(r"\S", line)]
    line = next((line for line in lines if not line.startswith(_GRAPH_NOISE)), "")
    line = re.sub(r"\s*\[Op:\w+\].*$", "", line)
    shortened = line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]} [...]"
    return f"{type(error).__name__}: {shortened}".rstrip(" .:")


def is_mix_of_precisions(error: Exception) -> bool:
    """Whether the message names two dtypes that differ only in precision, by any of TensorFlow's names for them."""
    text = str(error)
    return any(
        re.search(rf"\b({narrow})\b", text) and re.search(rf"\b({double})\b", text)
        for narrow, double in (("float|float32|half|float16|bfloat16", "double|float64"), ("complex64", "complex128"))
    )
