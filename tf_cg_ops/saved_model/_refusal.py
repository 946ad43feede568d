"""What is raised for graphs that are broken, or need what is not there."""

import contextlib
import pathlib
from collections.abc import Iterator

import tensorflow as tf

# What TensorFlow raises where it looks at a graph; other errors say little without their type.
_OF_TENSORFLOW = (ValueError, RuntimeError, tf.errors.OpError)


@contextlib.contextmanager
def of_graphs(api: str, path: pathlib.Path) -> Iterator[None]:
    """Raises ValueError for whatever the graphs of a model bring up in the block.

    A file that somebody changed holds anything: nodes without attributes, types that are none, names of nothing.
    """
    try:
        yield
    except Exception as error:
        got = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        if not isinstance(error, _OF_TENSORFLOW):
            got = f"{type(error).__name__}: {got}"
        raise ValueError(
            f"{api}: TensorFlow cannot build the graphs in '{path}'; expected whole graphs of ops that are "
            f"registered, got: {got}. Import the packages first that bring the other ops, or, if the file was "
            "changed, save or copy the model again."
        ) from error
