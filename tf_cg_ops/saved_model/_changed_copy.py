"""Compares a changed copy of a SavedModel with its source, and writes it completely or not at all."""

import functools
import os
import pathlib
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tf_cg_ops._src.core import convert, tf_internal

from ._compare import DIFFERENT, VALUES, Comparison, compare_results, run_model
from ._folder import GRAPH_FILES, read_saved_model, to_path
from ._graphs import check_graph, outside_of_functions, raised_as_value_error, update_op_list

_FINGERPRINT = "fingerprint.pb"
_SHARD = re.compile(r"variables\.data-\d{5}-of-(\d{5})")
_VARIABLE_OPS = ("VarHandleOp", "Variable", "VariableV2")


@dataclass(frozen=True)
class Copied:
    """What all reports about a changed copy have."""

    source: str
    target: str
    comparisons: list[Comparison] | None

    def _text(self, done: Sequence[tuple[str, object]], found: Sequence[tuple[str, object]] = ()) -> str:
        """The report in lines, with labels in a column: what was done and compared, and what else was found."""
        reason = "the check was turned off" if self.comparisons is None else "there was nothing to compare"
        nothing = f"nothing: {reason}"
        compared = [("compared", str(each)) for each in self.comparisons or ()] or [("compared", nothing)]
        lines = [*done, *compared, *found, ("written", self.target)]
        width = max(len(label) for label, _ in lines)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)


def write_changed_copy(
    api: str,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    change: Callable[[Any, pathlib.Path], bool],
    check: bool,
    gradients: bool = False,
    complete: Callable[[pathlib.Path], None] = lambda _: None,
) -> tuple[str, str, list[Comparison] | None]:
    """Applies `change` to the SavedModel, and writes the copy if its values are the same.

    `change` gets the meta graphs and the source, and returns whether it changed anything. `complete` gets the folder of
    a changed copy, to change other files. If one fails, nothing is written.
    Returns what Copied holds: both paths, and the comparisons of values and perhaps of gradients.
    """
    source, target = to_path(api, "source", source), to_path(api, "target", target)
    check = convert.to_bool(api, "check", check)
    with outside_of_functions() as tapes_record:
        proto = read_saved_model(api, source)
        _check_target(api, source, target)
        _check_variables(api, source, proto)
        for meta_graph in proto.meta_graphs:
            with raised_as_value_error(api, source):
                check_graph(meta_graph.graph_def)
        is_changed = change(proto.meta_graphs, source)
        for meta_graph in proto.meta_graphs if is_changed else ():
            _check_new_graph(api, meta_graph)
            update_op_list(meta_graph)
        # Next to the target, where renaming is atomic. If anything fails, the folder is removed.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            staged = pathlib.Path(folder) / target.name
            _copy(api, source, staged, proto if is_changed else None, complete)
            comparisons: list[Comparison] | None = [] if check else None
            if check and is_changed:
                comparisons = _checked(api, source, staged, proto.meta_graphs, gradients and tapes_record)
            staged.rename(target)
    return str(source), str(target), comparisons


def _check_new_graph(api: str, meta_graph: Any) -> None:
    """Raises RuntimeError if the new graph would make TensorFlow end the process that runs it."""
    try:
        check_graph(meta_graph.graph_def)
    except ValueError as error:
        raise RuntimeError(
            f"{api}: the new model must be one that TensorFlow can run, got {error}. Nothing was written. Please "
            "report this, and attach the model."
        ) from error


def _checked(
    api: str, source: pathlib.Path, staged: pathlib.Path, meta_graphs: Any, gradients: bool
) -> list[Comparison]:
    """Compares the new model with its source; raises RuntimeError if its values differ."""
    run = functools.partial(run_model, api, meta_graphs=meta_graphs, inputs={}, gradients=gradients)
    first = run(source)
    try:
        second = run(staged)
    except ValueError as error:
        raise RuntimeError(
            f"{api}: the new model must load like the source, got an error. Please report this, with the model."
        ) from error
    comparisons = compare_results(first, second, lambda: run(source))
    wrong = next((found for found in comparisons if (found.what, found.verdict) == (VALUES, DIFFERENT)), None)
    if wrong is not None:
        raise RuntimeError(
            f"{api}: the new model must have the same values, got {wrong}. Nothing was written. Please report this, "
            "and attach the model."
        )
    return comparisons


def _check_target(api: str, source: pathlib.Path, target: pathlib.Path) -> None:
    """Raises an OSError or ValueError if the target cannot be a new folder."""
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{api}: the target '{target}' exists already. Name another path, or remove it first.")
    if source.resolve() in target.resolve().parents:
        raise ValueError(f"{api}: the target '{target}' lies inside the source. Name a path outside of it.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{api}: '{target.parent}', the parent of the target, is not a folder. Make it first.")


def _check_variables(api: str, path: pathlib.Path, proto: Any) -> None:
    """Raises FileNotFoundError if the model has variables, but files with their values are missing."""
    folder = path / "variables"
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    # The name of each shard tells their number.
    total = next((match[1] for match in map(_SHARD.fullmatch, names) if match), "00001")
    expected = ["variables.index", *(f"variables.data-{i:05}-of-{total}" for i in range(int(total)))]
    missing = next((name for name in expected if name not in names), None)
    if missing and any(map(_has_variables, proto.meta_graphs)):
        raise FileNotFoundError(
            f"{api}: '{folder}' must contain the values of the variables, but {missing} is missing. Copy the whole "
            "folder of the SavedModel."
        )


def _has_variables(meta_graph: Any) -> bool:
    in_objects = any(node.WhichOneof("kind") == "variable" for node in meta_graph.object_graph_def.nodes)
    return in_objects or any(node.op in _VARIABLE_OPS for node in meta_graph.graph_def.node)


def _copy(
    api: str, source: pathlib.Path, target: pathlib.Path, proto: Any, complete: Callable[[pathlib.Path], None]
) -> None:
    """Copies all files, with the graphs of `proto` unless it is None. Links become copies."""
    replaced = {*GRAPH_FILES, _FINGERPRINT} if proto else set()

    # Only files are skipped. Copying a pipe of such a name fails; to load it later might never end.
    def skip(folder: str, names: list[str]) -> set[str]:
        path = pathlib.Path(folder)
        for link in (path / name for name in names if (path / name).is_symlink()):
            if path.resolve().is_relative_to(link.resolve()):
                raise ValueError(f"{api}: '{link}' must not link to a folder that contains it. Remove the link.")
        return {name for name in replaced.intersection(names) if (path / name).is_file()} if path == source else set()

    shutil.copytree(source, target, ignore=skip)
    # The copy of a read-only folder is read-only, and could not be renamed.
    target.chmod(target.stat().st_mode | stat.S_IRWXU)
    if proto is None:
        return
    (target / GRAPH_FILES[0]).write_bytes(proto.SerializeToString(deterministic=True))
    complete(target)
    if (source / _FINGERPRINT).exists():
        try:
            tf_internal.write_fingerprint(str(target))
        except ValueError as error:
            reason = str(error).strip().splitlines()[-1].rstrip(".")  # Earlier lines name the file.
            raise ValueError(
                f"{api}: '{source}' must have function names that TensorFlow can make a fingerprint of, got {reason}. "
                "The file was changed: save or copy the model again."
            ) from error
