"""Reads the folder of a SavedModel, and writes another one as a whole or not at all."""

import contextlib
import pathlib
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

from tf_cg_ops._src.core import tf_internal

_GRAPH_FILES = ("saved_model.pb", "saved_model.pbtxt")
_MAX_SIZE = 2**31 - 1
_FINGERPRINT = "fingerprint.pb"
_SHARD = re.compile(r"variables\.data-\d{5}-of-(\d{5})")
_VARIABLE_OPS = ("VarHandleOp", "Variable", "VariableV2")


def read_saved_model(api: str, path: pathlib.Path) -> Any:
    """The SavedModel proto in a folder."""
    if not path.exists():
        raise FileNotFoundError(_no_saved_model(api, path, "nothing there"))
    if not path.is_dir():
        raise NotADirectoryError(_no_saved_model(api, path, "a file"))
    file = next((path / name for name in _GRAPH_FILES if (path / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(_no_saved_model(api, path, f"a folder without {_GRAPH_FILES[0]}"))
    if file.stat().st_size > _MAX_SIZE:  # TensorFlow would run out of memory and end the process.
        raise _unreadable(api, file, f"a file of {file.stat().st_size} bytes, more than a message of protobuf may have")
    try:
        proto = tf_internal.parse_saved_model(str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(api, file, str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")) from error
    if not proto.meta_graphs:
        raise _unreadable(api, file, "none")
    return proto


def _no_saved_model(api: str, path: pathlib.Path, got: str) -> str:
    return (
        f"{api}: there is no SavedModel at '{path}'; expected a folder with saved_model.pb, got {got}. Pass the folder "
        "that tf.saved_model.save wrote."
    )


def _unreadable(api: str, file: pathlib.Path, got: str) -> ValueError:
    return ValueError(
        f"{api}: '{file}' cannot be read; expected a SavedModel with its graphs, got {got}. It may be cut off: save or "
        "copy the model again."
    )


def check_variables(api: str, path: pathlib.Path, proto: Any) -> None:
    """Raises FileNotFoundError if the model has variables and files of their values are missing."""
    folder = path / "variables"
    missing = _missing_file([file.name for file in folder.iterdir()] if folder.is_dir() else [])
    if missing and any(map(_has_variables, proto.meta_graphs)):
        raise FileNotFoundError(
            f"{api}: values of variables are missing: there is no file {missing} in '{folder}'. Copy the whole folder "
            "of the SavedModel."
        )


def _missing_file(names: list[str]) -> str | None:
    """The first file of a checkpoint that is missing among these; the name of each shard tells their number."""
    numbers = [match[1] for match in map(_SHARD.fullmatch, names) if match]
    total = numbers[0] if numbers else "00001"
    shards = [f"variables.data-{i:05}-of-{total}" for i in range(int(total))]
    return next((name for name in ["variables.index", *shards] if name not in names), None)


def _has_variables(meta_graph: Any) -> bool:
    in_objects = any(node.WhichOneof("kind") == "variable" for node in meta_graph.object_graph_def.nodes)
    return in_objects or any(node.op in _VARIABLE_OPS for node in meta_graph.graph_def.node)


def check_target(api: str, source: pathlib.Path, target: pathlib.Path) -> None:
    """Raises an OSError or ValueError if the target cannot become a new folder."""
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{api}: the target '{target}' exists already. Name another path, or remove it first.")
    if source.resolve() in target.resolve().parents:
        raise ValueError(f"{api}: the target '{target}' lies inside the source. Name a path outside of it.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{api}: '{target.parent}', the parent of the target, is not a folder. Make it first.")


@contextlib.contextmanager
def staging_folder(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a path to write to. If the block succeeds, it is renamed to the target; if not, it is removed."""
    # Beside the target: there, renaming is atomic.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        staged = pathlib.Path(folder) / target.name
        yield staged
        staged.rename(target)


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies all files; links become copies."""
    shutil.copytree(source, target)
    _let_owner_write(target)


def copy_with_graphs(api: str, source: pathlib.Path, target: pathlib.Path, proto: Any) -> None:
    """Copies all files but the graphs, and writes the graphs of `proto`."""
    replaced = {*_GRAPH_FILES, _FINGERPRINT}

    # Only files are skipped: copying a pipe of such a name fails, and loading it later might never end.
    def skip(folder: str, names: list[str]) -> set[str]:
        path = pathlib.Path(folder)
        return {name for name in replaced.intersection(names) if (path / name).is_file()} if path == source else set()

    shutil.copytree(source, target, ignore=skip)
    _let_owner_write(target)
    (target / _GRAPH_FILES[0]).write_bytes(proto.SerializeToString(deterministic=True))
    if (source / _FINGERPRINT).exists():
        _write_fingerprint(api, source, target)


def _write_fingerprint(api: str, source: pathlib.Path, target: pathlib.Path) -> None:
    try:
        tf_internal.write_fingerprint(str(target))
    except ValueError as error:
        reason = str(error).strip().splitlines()[-1].rstrip(".")  # Earlier lines name the file.
        raise ValueError(
            f"{api}: TensorFlow cannot make a fingerprint of the graphs in '{source}'; expected names of functions as "
            f"tf.saved_model.save gives them, got: {reason}. The file was changed: save or copy the model again."
        ) from error


def _let_owner_write(folder: pathlib.Path) -> None:
    """A read-only folder, copied from a read-only source, could not be renamed."""
    folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
