"""The files of the project, without files that tools and builds add. Does not need git."""

import os
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).parents[2]

_NOT_OURS = {".git", ".venv", ".hypothesis", "build", "dist", "demo_output", "__pycache__", "_build_info.py"}


def _is_ours(name, is_at_the_top):
    is_left_behind = name.endswith(("_cache", ".egg-info", ".so")) or (is_at_the_top and name.startswith("bazel-"))
    return name not in _NOT_OURS and not is_left_behind


def _regex(pattern):
    """For a glob pattern."""
    return re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")


def source_files(*patterns):
    """All files that match one of the glob patterns, relative to the project's folder."""
    matches = re.compile("|".join(map(_regex, patterns))).fullmatch
    files = []
    for folder, folders, names in os.walk(ROOT):
        path = pathlib.Path(folder)
        folders[:] = [name for name in folders if _is_ours(name, path == ROOT)]
        ours = [path / name for name in names if _is_ours(name, path == ROOT)]
        files += [file for file in ours if matches(str(file.relative_to(ROOT)))]
    assert files, patterns
    return sorted(files)


def copy_sources(folder, *patterns):
    """Copies the project's own files into a folder."""
    for path in source_files(*patterns):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
