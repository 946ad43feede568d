"""Reads the folder of a SavedModel, and writes another one that is there whole or not at all."""

import contextlib
import pathlib
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

from tf_cg_ops._src.core import tf_internal

from . import _errors

_GRAPHS = ("saved_model.pb", "saved_model.pbtxt")
_MAX_SIZE = 2**31 - 1
_FINGERPRINT = "fingerprint.pb"
_SHARD = re.compile(r"variables\.data-\d{5}-of-(\d{5})")
_VARIABLE_OPS = ("VarHandleOp", "Variable", "VariableV2")


def read(api: str, path: pathlib.Path) -> Any:
    """The SavedModel proto in a folder."""
    if not path.exists():
        raise FileNotFoundError(_errors.SAVED_MODEL_MISSING.format(api=api, path=path, got="nothing there"))
    if not path.is_dir():
        raise NotADirectoryError(_errors.SAVED_MODEL_MISSING.format(api=api, path=path, got="a file"))
    file = next((path / name for name in _GRAPHS if (path / name).is_file()), None)
    if file is None:
        got = f"a folder without {_GRAPHS[0]}"
        raise FileNotFoundError(_errors.SAVED_MODEL_MISSING.format(api=api, path=path, got=got))
    if file.stat().st_size > _MAX_SIZE:  # TensorFlow would end the process where it finds no memory for the file.
        got = f"a file of {file.stat().st_size} bytes, more than a message of protobuf may have"
        raise ValueError(_errors.SAVED_MODEL_UNREADABLE.format(api=api, path=file, got=got))
    try:
        proto = tf_internal.parse_saved_model(str(path))
    except (OSError, UnicodeDecodeError) as error:
        got = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(_errors.SAVED_MODEL_UNREADABLE.format(api=api, path=file, got=got)) from error
    if not proto.meta_graphs:
        raise ValueError(_errors.SAVED_MODEL_UNREADABLE.format(api=api, path=file, got="none"))
    return proto


def check_variables(api: str, path: pathlib.Path, proto: Any) -> None:
    """Raises FileNotFoundError if the model has variables and the folder has not all of their files."""
    folder = path / "variables"
    missing = _missing_file([file.name for file in folder.iterdir()] if folder.is_dir() else [])
    if missing and any(map(_has_variables, proto.meta_graphs)):
        raise FileNotFoundError(
            f"{api}: the values of the variables are missing; expected the file {missing} in '{folder}', got "
            "none. Copy the whole folder of the SavedModel."
        )


def _missing_file(names: list[str]) -> str | None:
    """The first file of a checkpoint that is not among these; each of its shards says how many there are."""
    numbers = [match[1] for match in map(_SHARD.fullmatch, names) if match]
    total = numbers[0] if numbers else "00001"
    shards = [f"variables.data-{i:05}-of-{total}" for i in range(int(total))]
    return next((name for name in ["variables.index", *shards] if name not in names), None)


def _has_variables(meta_graph: Any) -> bool:
    in_objects = any(node.WhichOneof("kind") == "variable" for node in meta_graph.object_graph_def.nodes)
    return in_objects or any(node.op in _VARIABLE_OPS for node in meta_graph.graph_def.node)


def check_target(api: str, source: pathlib.Path, target: pathlib.Path) -> None:
    """Raises an OSError or ValueError if the target cannot become a folder of its own."""
    if target.exists() or target.is_symlink():
        raise FileExistsError(
            f"{api}: the target is there already; expected a path that does not exist, got '{target}'. Name "
            "another one, or remove it first."
        )
    if source.resolve() in target.resolve().parents:
        raise ValueError(
            f"{api}: the target lies inside of the source; expected a path outside of it, got '{target}'. Name "
            "another one."
        )
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{api}: the target has no folder to lie in; expected that '{target.parent}' is a folder, got none. "
            "Make it first."
        )


@contextlib.contextmanager
def becoming(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives the path for a folder that takes the target's place if the block ends well, and is removed if not."""
    # Beside the target, so that renaming it is one step.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        unfinished = pathlib.Path(folder) / target.name
        yield unfinished
        unfinished.rename(target)


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies all files; what the source links to, too."""
    shutil.copytree(source, target)
    _let_owner_write(target)


def copy_with(api: str, source: pathlib.Path, target: pathlib.Path, proto: Any) -> None:
    """Copies all files but the graphs, which are those of `proto`."""
    others = {*_GRAPHS, _FINGERPRINT}

    # What is no file, such as a pipe, is not passed over: to read it, as loading does, may have no end.
    def skip(folder: str, names: list[str]) -> set[str]:
        path = pathlib.Path(folder)
        return {name for name in others.intersection(names) if (path / name).is_file()} if path == source else set()

    shutil.copytree(source, target, ignore=skip)
    _let_owner_write(target)
    (target / _GRAPHS[0]).write_bytes(proto.SerializeToString(deterministic=True))
    if (source / _FINGERPRINT).exists():
        _write_fingerprint(api, source, target)


def _write_fingerprint(api: str, source: pathlib.Path, target: pathlib.Path) -> None:
    try:
        tf_internal.write_fingerprint(str(target))
    except ValueError as error:
        reason = str(error).strip().splitlines()[-1].rstrip(".")  # Before it stands where the file was to be.
        raise ValueError(
            f"{api}: TensorFlow makes no fingerprint of the graphs in '{source}'; expected names of functions as "
            f"tf.saved_model.save gives them, got: {reason}. The file was changed: save or copy the model again."
        ) from error


def _let_owner_write(folder: pathlib.Path) -> None:
    """The source may be read-only, and such a folder cannot be moved."""
    folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
