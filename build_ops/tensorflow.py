"""Finds the TensorFlow to compile against, without importing it into the build's process."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

# The minor versions that the sources compile against; `make matrix` tests them all.
SUPPORTED = ("2.19", "2.20", "2.21", "2.22")

NEWEST_RELEASE = "2.21"


def newest_of(minor: str) -> str:
    """The requirement that gets the newest TensorFlow of a minor version, also a release candidate if that is all."""
    # pip only considers release candidates if a requirement names one.
    return f"=={minor}.*" + (f",>={minor}.0rc0" if SUPPORTED.index(minor) > SUPPORTED.index(NEWEST_RELEASE) else "")


# Without a TensorFlow, the build installs this one. For Python 3.14 there is only a release candidate so far, of 2.22.
DEFAULT_REQUIREMENT = f"tensorflow{newest_of(NEWEST_RELEASE if sys.version_info < (3, 14) else '2.22')}"

# Many distributions contain TensorFlow: tensorflow, tensorflow-cpu, tf-nightly, AMD's, conda's.
_LIST_DISTRIBUTIONS = """
import importlib.metadata as metadata, importlib.util, json
there = importlib.util.find_spec("tensorflow") is not None
names = metadata.packages_distributions().get("tensorflow", []) if there else []
print(json.dumps({metadata.metadata(name)["Name"]: metadata.version(name) for name in names}))
"""
_PRINT_FLAGS = """
import json, tensorflow as tf
print(json.dumps([tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()]))
"""


@dataclasses.dataclass(frozen=True)
class Environment:
    """A Python in which the build looks for packages, and whether to look past pip's build isolation."""

    python: str
    without_isolation: bool = False

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs a script, which prints JSON in its last line."""
        variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if self.without_isolation:
            for name in ("PYTHONPATH", "PYTHONNOUSERSITE"):  # pip isolates a build by these.
                variables.pop(name, None)
        return subprocess.run([self.python, "-c", script], env=variables, capture_output=True, text=True, check=False)


@dataclasses.dataclass(frozen=True)
class TensorFlow:
    """A TensorFlow that the op library can be compiled against."""

    distribution: str
    version: str
    environment: Environment

    def requirement(self) -> str:
        """The requirement of a package that was compiled against it."""
        if not re.fullmatch(r"[\d.]+(\.post\d+|\+.*)?", self.version):  # A prerelease or nightly build: no other fits.
            return f"{self.distribution}=={self.version}"
        return f"{self.distribution}{_same_minor(self.version)}"


@functools.cache
def find_tensorflow() -> TensorFlow | None:
    """The TensorFlow to compile against, if there is one; SystemExit if its version is not supported."""
    for environment in _environments():
        listed = environment.run(_LIST_DISTRIBUTIONS)
        # A Python that is too old for the script is too old for the library.
        versions = json.loads(listed.stdout.splitlines()[-1]) if listed.returncode == 0 else {}
        found = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in versions.items()}
        if found:
            # If several are installed, they share one folder. Other packages mostly require the first of these.
            distribution = min(found, key=lambda name: (name != "tensorflow", name != "tensorflow-cpu", name))
            return TensorFlow(distribution, _supported(distribution, found[distribution]), environment)
    return None


def _environments() -> Iterator[Environment]:
    """Where to look: this Python, and where pip installs, or the activated environment."""
    yield Environment(sys.executable)
    if "build_ops.backend" not in sys.modules:  # Such as Bazel, which says in which Python to look.
        return
    if "PIP_BUILD_TRACKER" in os.environ:  # pip, which runs the Python that it installs into.
        yield Environment(sys.executable, without_isolation=True)
        return
    # uv and build run the Python of a folder that they delete afterwards, which is first on PATH.
    for folder in map(pathlib.Path, os.get_exec_path()):
        if folder.parent != pathlib.Path(sys.prefix) and os.access(folder / "python3", os.X_OK):
            yield Environment(str(folder / "python3"), without_isolation=True)
            return


def _supported(distribution: str, version: str) -> str:
    if minor_of(version) not in SUPPORTED:
        raise SystemExit(
            f"tf_cg_ops: the TensorFlow to compile against must be {SUPPORTED[0]} to {SUPPORTED[-1]}, got "
            f"{distribution} {version}. Install one of those (pip install '{distribution}=={NEWEST_RELEASE}.*')."
        )
    return version


def require_tensorflow() -> TensorFlow:
    """The TensorFlow to compile against; SystemExit if there is none."""
    tensorflow = find_tensorflow()
    if tensorflow is None:
        raise SystemExit(
            f"tf_cg_ops: found no TensorFlow to compile against in {sys.executable}. Build with `pip install .`, which "
            f"gets one, or install it first: pip install '{DEFAULT_REQUIREMENT}'"
        )
    return tensorflow


def minor_of(version: str) -> str:
    """The minor version of a version."""
    return ".".join(version.split(".")[:2])


def _same_minor(version: str) -> str:
    major, minor = (int(part) for part in version.split(".")[:2])
    return f">={major}.{minor},<{major}.{minor + 1}"


def tensorflow_requirement(tensorflow: TensorFlow | None) -> str:
    """The requirement of a package that was compiled against this one, or would be against the default."""
    return tensorflow.requirement() if tensorflow else f"tensorflow{_same_minor(NEWEST_RELEASE)}"


def build_info() -> str:
    """The text of _build_info.py: what the op library was compiled against, for the check at import."""
    tensorflow = require_tensorflow()
    return (
        '"""The TensorFlow that the op library beside this file was compiled against; written by the build."""\n\n'
        f'TENSORFLOW_DISTRIBUTION = "{tensorflow.distribution}"\n'
        f'TENSORFLOW_VERSION = "{tensorflow.version}"\n'
    )


@functools.cache
def tensorflow_flags() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """TensorFlow's own compile and link flags, asked in a process of its own."""
    tensorflow = require_tensorflow()
    answer = tensorflow.environment.run(_PRINT_FLAGS)
    if answer.returncode != 0:
        raise SystemExit(
            f"tf_cg_ops: {tensorflow.distribution} {tensorflow.version} cannot be imported in "
            f"{tensorflow.environment.python}:\n{answer.stderr}"
        )
    compile_flags, link_flags = json.loads(answer.stdout.splitlines()[-1])
    # Headers that tf2xla includes and the wheel keeps in folders of its own.
    includes = [flag[2:] for flag in compile_flags if flag.startswith("-I")]
    externals = ("external/highwayhash", "external/farmhash_archive/src")
    compile_flags += [f"-I{include}/{external}" for include in includes for external in externals]
    # Warnings are for this library's sources; TensorFlow's headers have their own.
    return tuple("-isystem" + flag[2:] if flag.startswith("-I") else flag for flag in compile_flags), tuple(link_flags)
