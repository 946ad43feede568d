"""Compiles the op library against the installed TensorFlow and packages it; everything static is in pyproject.toml."""

import gzip
import os
import pathlib
import runpy
import shutil
import sys
import tarfile
import time

import setuptools

# Without build isolation, pip does not check the requirement in pyproject.toml, and an older setuptools would fail in
# an import below.
if int(setuptools.__version__.split(".")[0]) < 77:
    raise SystemExit(
        f"tf_cg_ops: the build needs setuptools 77 or newer, got {setuptools.__version__}. Install it into this Python "
        f"with: {sys.executable} -m pip install 'setuptools>=77' wheel"
    )

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from build_ops.compiler import build_libraries  # noqa: E402
from build_ops.readme import long_description  # noqa: E402
from build_ops.sources import SOURCES, SOURCES_WITH_CC  # noqa: E402
from build_ops.tensorflow import build_info, find_tensorflow, minor_of, tensorflow_requirement  # noqa: E402


class BuildOpLibrary(build_ext):
    """Builds a library for all Python versions."""

    def get_ext_filename(self, fullname: str) -> str:
        """The library's name, without the tag of a Python version."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Builds both libraries at once, and writes the module that says what they were built for."""
        library = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve()
        library.parent.mkdir(parents=True, exist_ok=True)
        prebuilt = os.environ.get("TF_CG_OPS_PREBUILT")
        if prebuilt:
            shutil.copyfile(pathlib.Path(prebuilt, library.name), library)  # By Bazel, which has compiled it.
        elif ext is self.extensions[0]:
            build_libraries(library.parent)
        (library.parent / "_build_info.py").write_text(build_info())

    def copy_extensions_to_source(self) -> None:
        """For editable installs, which use the package in the source tree."""
        super().copy_extensions_to_source()
        (ROOT / "tf_cg_ops" / "_build_info.py").write_text(build_info())


class AnyPythonWheel(bdist_wheel):
    """Tags the wheel for one TensorFlow, one platform and every Python 3: the op library does not use Python's ABI."""

    def initialize_options(self) -> None:
        """Sets the build number to TensorFlow's version: tf_cg_ops-0.1.0-2.21-py3-none-linux_x86_64.whl."""
        super().initialize_options()
        tensorflow = find_tensorflow()
        self.build_number = minor_of(tensorflow.version) if tensorflow else None

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's Python, ABI and platform tags."""
        return "py3", "none", super().get_tag()[2]


class ReproducibleSdist(sdist):
    """Archives that differ only if the files do; setuptools notes down when and by whom each was made."""

    def make_archive(self, base_name: str, *_: object, base_dir: str, **__: object) -> str:
        """Packs a folder, with SOURCE_DATE_EPOCH as its time if that is set."""
        now = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.mtime, entry.mode = now, 0o755 if entry.mode & 0o100 else 0o644
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            return entry

        path = f"{base_name}.tar.gz"
        with gzip.GzipFile(path, "wb", mtime=now) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(base_dir, filter=anonymous)
        return path


# A source distribution must not depend on where it is made.
TENSORFLOW = tensorflow_requirement(None if "sdist" in sys.argv else find_tensorflow())
VERSION = runpy.run_path(str(ROOT / "tf_cg_ops" / "_version.py"))["__version__"]

setup(
    long_description=long_description(ROOT / "README.md", VERSION),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension("tf_cg_ops._ops", sources=list(SOURCES)),
        Extension("tf_cg_ops._ops_with_cc", sources=list(SOURCES_WITH_CC)),
    ],
    cmdclass={"build_ext": BuildOpLibrary, "bdist_wheel": AnyPythonWheel, "sdist": ReproducibleSdist},
    install_requires=[TENSORFLOW, "numpy>=1.26"],
)
