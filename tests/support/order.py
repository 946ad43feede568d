"""The order in which files of tests run: the slowest first, so that no worker is left alone with one at the end."""

from .sources import ROOT

# By processor time. Other files are in the order of their names.
SLOWEST = (
    "qa/test_saved_model_mutants.py",
    "qa/test_raw_op_calls.py",
    "packaging/test_build.py",
    "docs/test_examples.py",
    "graph/test_modes.py",
    "packaging/test_build_library.py",
    "kernels/test_cuda_check.py",
    "saved_model/test_strip.py",
)


def slowest_first(items):
    """Sorts tests by their files; those of one file stay together and in their order."""
    ranks = {ROOT / "tests" / name: rank for rank, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
