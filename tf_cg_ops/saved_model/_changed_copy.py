"""Writes a changed copy of a SavedModel, as a whole or not at all, after a comparison with the source."""

import pathlib
from collections.abc import Callable
from typing import Any

from . import _compare_models, _folder, _inputs


def write_changed_copy(
    api: str,
    source: pathlib.Path,
    target: pathlib.Path,
    change: Callable[[Any], bool],
    check: bool,
    inputs: _compare_models.Inputs,
    progress: Callable[[str], None],
) -> tuple[Any, list[_compare_models.Comparison] | None]:
    """Applies `change` to the SavedModel, and writes the copy if values stay the same.

    `change` returns whether it changed anything; if it fails, nothing is written. Returns the changed proto, and the
    comparisons, which are None without the check.
    """
    progress(f"reading {source}")
    proto = _folder.read_saved_model(api, source)
    _folder.check_target(api, source, target)
    _folder.check_variables(api, source, proto)
    _inputs.check_names(api, proto, inputs)
    is_changed = change(proto)
    comparisons = None
    with _folder.staging_folder(target) as staged:
        progress(f"writing {target}")
        if is_changed:
            _folder.copy_with_graphs(api, source, staged, proto)
        else:
            _folder.copy(source, staged)
        if check and not is_changed:
            comparisons = [_compare_models.Comparison("all", _compare_models.NOT_COMPARED, "nothing was changed")]
        elif check:
            comparisons = []
            for meta_graph in proto.meta_graphs:
                tags = f" of {', '.join(meta_graph.meta_info_def.tags)}" if len(proto.meta_graphs) > 1 else ""
                comparisons += _compare_models.compare_models(api, source, staged, meta_graph, tags, inputs, progress)
    return proto, comparisons
