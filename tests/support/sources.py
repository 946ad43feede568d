"""The files of the project, without what tools and builds leave beside them. It needs no git."""

import pathlib
import shutil

ROOT = pathlib.Path(__file__).parents[2]

_NOT_OURS = {".git", ".venv", ".hypothesis", "build", "dist", "demo_output", "__pycache__"}


def is_ours(path):
    parts = path.relative_to(ROOT).parts
    hidden_cache = any(part.endswith(("_cache", ".egg-info")) for part in parts)
    return (
        not _NOT_OURS.intersection(parts)
        and not parts[0].startswith("bazel-")
        and not hidden_cache
        and path.suffix != ".so"
        and path.name != "_build_info.py"
    )


def source_files(*patterns):
    """All files that match one of the glob patterns, relative to the project's folder."""
    files = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file() and is_ours(path)})
    assert files, patterns
    return files


def copy_sources(folder, *patterns):
    """Copies these files into a folder, and nothing that tools and builds left beside them."""
    for path in source_files(*patterns):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
