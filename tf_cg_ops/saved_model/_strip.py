"""`strip`: a SavedModel without the ops of this library."""

import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _compare, _folder, _meta_graph

_API = "saved_model.strip"


@dataclass(frozen=True)
class StripReport:
    """What `strip` did.

    `replaced` counts the replaced operations by their op; `host_functions` names the operations that call back into the
    Python process in which the model was made; `comparisons` is None where the check was turned off.
    """

    source: str
    target: str
    replaced: dict[str, int]
    nodes_dropped: int
    functions_dropped: int
    host_functions: list[str]
    comparisons: list[_compare.Comparison] | None


def strip(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    check: bool = True,
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> StripReport:
    """Writes a SavedModel to `target` that computes what the one at `source` computes, without ops of this library.

    Todo:

    Args:
      source: x
    """
    source, target = pathlib.Path(source), pathlib.Path(target)
    tell = progress or (lambda _: None)
    tell(f"reading {source}")
    proto = _folder.read(_API, source)
    _folder.check_target(_API, source, target)
    _folder.check_variables(_API, source, proto)
    changes = _meta_graph.Changes()
    for meta_graph in proto.meta_graphs:
        _meta_graph.strip(meta_graph, changes, tell)
    comparisons = None
    with _folder.becoming(target) as unfinished:
        tell(f"writing {target}")
        if changes.replaced:
            _folder.copy_with(source, unfinished, proto)
        else:
            _folder.copy(source, unfinished)
        if check:
            comparisons = []
            for meta_graph in proto.meta_graphs:
                tags = meta_graph.meta_info_def.tags
                comparisons += _compare.compare(_API, source, unfinished, tags, inputs or {}, tell)
    hosts = [name for meta_graph in proto.meta_graphs for name in _meta_graph.host_functions(meta_graph)]
    return StripReport(
        source=str(source),
        target=str(target),
        replaced=dict(sorted(changes.replaced.items())),
        nodes_dropped=changes.nodes_dropped,
        functions_dropped=changes.functions_dropped,
        host_functions=hosts,
        comparisons=comparisons,
    )
