"""Reads the proto of a SavedModel."""

import os
import pathlib
from typing import Any

from tf_cg_ops._src.core import text, tf_internal

GRAPH_FILES = ("saved_model.pb", "saved_model.pbtxt")
_MAX_SIZE = 2**31 - 1


def to_path(api: str, name: str, value: Any) -> pathlib.Path:
    """The argument of this name as a Path. Raises TypeError if it is not a path."""
    if not isinstance(value, (str, os.PathLike)):
        is_model = callable(value) or hasattr(value, "signatures")
        got, remedy = text.describe(value), "Pass a str or a Path."
        if is_model:
            got, remedy = text.describe_type(value), "Save the model with tf.saved_model.save, and pass its folder."
        raise TypeError(f"{api}: {name} must be the path of a folder, got {got}. {remedy}")
    return pathlib.Path(value)


def read_saved_model(api: str, path: pathlib.Path) -> Any:
    """The SavedModel proto in a folder."""
    if not path.exists():
        raise FileNotFoundError(_no_saved_model(api, path, "a path that does not exist"))
    if not path.is_dir():
        raise NotADirectoryError(_no_saved_model(api, path, "a file"))
    file = next((path / name for name in GRAPH_FILES if (path / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(_no_saved_model(api, path, f"a folder without {GRAPH_FILES[0]}"))
    if file.stat().st_size > _MAX_SIZE:  # TensorFlow would run out of memory and end the process.
        raise _unreadable(api, file, f"{file.stat().st_size} bytes, which is more than protobuf can read")
    try:
        proto = tf_internal.parse_saved_model(str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(api, file, str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")) from error
    if not proto.meta_graphs:
        raise _unreadable(api, file, "one without graphs")
    return proto


def _no_saved_model(api: str, path: pathlib.Path, got: str) -> str:
    advice = "Pass the folder that tf.saved_model.save wrote."
    if path.suffix in (".keras", ".h5"):
        advice = "For a file of Keras, load the model, write model.export('folder'), and pass that folder."
    if path.name in GRAPH_FILES:
        advice = f"Pass its folder, '{path.parent}'."
    return f"{api}: '{path}' must be a folder with saved_model.pb, got {got}. {advice}"


def _unreadable(api: str, file: pathlib.Path, got: str) -> ValueError:
    return ValueError(
        f"{api}: '{file}' must be a complete SavedModel, got {got}. Perhaps it is damaged: save or copy the model "
        "again."
    )
