"""Checks that the op library can be built on this machine: TensorFlow must have wheels with headers for it."""

import os
import platform
import struct
import sys

from .tensorflow import SUPPORTED, find_tensorflow

NEWEST_PYTHON = (3, 14)


def check_machine() -> None:
    """Raises SystemExit, and says what to do, if the op library cannot be built here."""
    wrong = _wrong_machine() or _wrong_python()
    if wrong:
        raise SystemExit(f"tf_cg_ops: {wrong}")


def _wrong_machine() -> str | None:
    what = "the op library must be built on 64-bit Linux with glibc, got"
    stripped = "A model that `tf-cg-ops strip` has stripped runs everywhere, without this library."
    system = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    if system != "Linux":
        container = "in WSL 2 or a Linux container" if system == "Windows" else "in a Linux container"
        return f"{what} {system}. Install it {container}, for example Docker's image python:3.13. {stripped}"
    if struct.calcsize("P") != 8:
        return f"{what} a 32-bit Python ({sys.executable}). Use a 64-bit one. {stripped}"
    if not _has_glibc():
        return f"{what} another C library (musl, as in Alpine). Use an image of Debian, such as python:3.13. {stripped}"
    return None


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except ValueError:  # Another C library does not know this name.
        return False


def _wrong_python() -> str | None:
    """The error for a Python that TensorFlow is not published for, unless a TensorFlow is installed."""
    if sys.version_info[:2] <= NEWEST_PYTHON or find_tensorflow():
        return None
    newest = ".".join(map(str, NEWEST_PYTHON))
    return (
        f"Python must be 3.10 to {newest}, which TensorFlow {SUPPORTED[-1]} is published for, got "
        f"{platform.python_version()}. Make an environment with one of these: uv venv --python {newest}"
    )
