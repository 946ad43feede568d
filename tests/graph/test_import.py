"""Importing the package: the version check, its registrations, its public names."""

import importlib.metadata
import pathlib
import shutil

import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

pytestmark = pytest.mark.core

IMPORT_UNDER_ANOTHER_VERSION = """
import sys
import tensorflow as tf
opened = []
tf.load_op_library = opened.append
tf.__version__ = "2.99.1"
# Nor need there be what the package uses of TensorFlow.
sys.modules["tensorflow.python.eager.record"] = None
try:
    import tf_cg_ops
except ImportError as error:
    print(error)
assert not opened, "the library was opened"
"""


def test_another_minor_version_of_tensorflow_is_refused_before_the_library_is_opened(tmp_path):
    from tf_cg_ops import _build_info

    minor = ".".join(tf.__version__.split(".")[:2])
    distribution, full = _build_info.TENSORFLOW_DISTRIBUTION, _build_info.TENSORFLOW_VERSION
    assert run_python(IMPORT_UNDER_ANOTHER_VERSION, cwd=tmp_path).stdout == (
        f"tf_cg_ops: the op library needs TensorFlow {minor} (it was compiled against {distribution} {full}), got "
        f"TensorFlow 2.99.1. Install {distribution} {minor}, or rebuild tf_cg_ops against another version from 2.19 to "
        "2.22, in its source folder, with: pip install --force-reinstall --no-deps .\n"
    )


NOT_BUILT = {
    "a package": "tf_cg_ops: the op library is missing ({}). Build it against the installed TensorFlow with: pip install .\n",
    "a source folder": "tf_cg_ops: Python imports the source folder, which is not built ({} is missing), instead of the "
    "installed package. Run Python from another folder, or build in place with: pip install -e .\n",
}


@pytest.mark.parametrize("what", NOT_BUILT)
def test_a_package_that_is_not_built_says_how_to_build_it(what, tmp_path):
    package = pathlib.Path(cg.__file__).parent
    shutil.copytree(package, tmp_path / "tf_cg_ops", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if what == "a source folder":
        (tmp_path / "pyproject.toml").touch()
    code = "import sys; sys.path.insert(0, '.')\ntry:\n import tf_cg_ops\nexcept ImportError as error:\n print(error)"
    found = run_python(code, cwd=tmp_path).stdout
    assert found == NOT_BUILT[what].format(tmp_path / "tf_cg_ops" / "_ops.so")


def test_get_lib_is_the_path_of_the_library_that_is_open():
    path = pathlib.Path(cg.sysconfig.get_library())
    assert path.is_absolute()
    assert path.is_file()
    assert str(path.resolve()) in pathlib.Path("/proc/self/maps").read_text()


LAZY_SUBPACKAGES = """
import sys
import tensorflow
import tf_cg_ops as cg
for name in ("layers", "saved_model", "testing"):
    assert f"tf_cg_ops.{name}" not in sys.modules, name
    assert name in dir(cg)
    assert getattr(cg, name) is sys.modules[f"tf_cg_ops.{name}"]
    assert vars(cg)[name] is getattr(cg, name), "found without a call from now on"
try:
    cg.tests
except AttributeError as error:
    print(error)
"""


def test_subpackages_are_imported_at_their_first_use(tmp_path):
    result = run_python(LAZY_SUBPACKAGES, cwd=tmp_path)
    assert result.stdout.strip() == "module 'tf_cg_ops' has no attribute 'tests'"


def test_importing_is_silent(tmp_path):
    """Also under another patch version of TensorFlow."""
    minor = ".".join(tf.__version__.split(".")[:2])
    code = "import warnings; warnings.simplefilter('error'); import tensorflow as tf\n"
    code += f"tf.__version__ = '{minor}.77'; import tf_cg_ops; print(tf_cg_ops.__version__)"
    assert run_python(code, cwd=tmp_path).stdout == importlib.metadata.version("tf_cg_ops") + "\n"
