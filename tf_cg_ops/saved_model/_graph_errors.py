"""The error for graphs that TensorFlow cannot build: malformed ones, and ones with ops that are not registered."""

import contextlib
import pathlib
from collections.abc import Iterator

import tensorflow as tf

# TensorFlow's errors about a graph. Others, of Python, say little without their type.
_TENSORFLOW_ERRORS = (ValueError, RuntimeError, tf.errors.OpError)


@contextlib.contextmanager
def raised_as_value_error(api: str, path: pathlib.Path) -> Iterator[None]:
    """Raises ValueError for any exception of the block, which works on the graphs of the model at `path`.

    A malformed file may hold nodes without attributes, types that are none, names of nothing.
    """
    try:
        yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        if not isinstance(error, _TENSORFLOW_ERRORS):
            reason = f"{type(error).__name__}: {reason}"
        raise ValueError(
            f"{api}: TensorFlow cannot build the graphs in '{path}': {reason}. First import the packages that register "
            "missing ops; if the file was changed, save or copy the model again."
        ) from error
