"""Importing the package: the version check, its registrations, its public names."""

import importlib.metadata
import pathlib
import re
import shutil

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry, ops  # Only a test may look inside.

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

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
        f"tf_cg_ops: the op library does not fit this TensorFlow; expected TensorFlow {minor} (it was compiled against "
        f"{distribution} {full}), got TensorFlow 2.99.1. Install {distribution} {minor}, or rebuild tf_cg_ops in its "
        "source folder against another of 2.18 to 2.21 with: pip install --no-build-isolation --force-reinstall "
        "--no-deps .\n"
    )


def test_another_patch_version_of_tensorflow_is_accepted(tmp_path):
    minor = ".".join(tf.__version__.split(".")[:2])
    code = f"import tensorflow as tf; tf.__version__ = '{minor}.77'; import tf_cg_ops; print(tf_cg_ops.__version__)"
    assert run_python(code, cwd=tmp_path).stdout == cg.__version__ + "\n"


def message_of_importing_an_unbuilt_package(folder):
    package = pathlib.Path(cg.__file__).parent
    shutil.copytree(package, folder / "tf_cg_ops", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    code = "import sys; sys.path.insert(0, '.')\ntry:\n import tf_cg_ops\nexcept ImportError as error:\n print(error)"
    return run_python(code, cwd=folder).stdout


def test_a_package_that_is_not_built_says_how_to_build_it(tmp_path):
    assert message_of_importing_an_unbuilt_package(tmp_path) == (
        f"tf_cg_ops: the op library is missing: there is no {tmp_path / 'tf_cg_ops' / '_ops.so'}. Build it against the "
        "installed TensorFlow with: pip install --no-build-isolation .\n"
    )


def test_a_source_folder_that_hides_the_installed_package_says_so(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert message_of_importing_an_unbuilt_package(tmp_path) == (
        "tf_cg_ops: Python imports the source folder, which hides the installed package and is not built: there is no "
        f"{tmp_path / 'tf_cg_ops' / '_ops.so'}. Run Python from another folder, or build in place with: pip install "
        "--no-build-isolation -e .\n"
    )


def test_the_version_is_that_of_the_distribution():
    assert cg.__version__ == importlib.metadata.version("tf_cg_ops")
    assert re.fullmatch(r"\d+\.\d+\.\d+", cg.__version__)


def test_get_lib_is_the_path_of_the_library_that_is_open():
    path = pathlib.Path(cg.sysconfig.get_lib())
    assert path.is_absolute()
    assert path.is_file()
    assert str(path.resolve()) in pathlib.Path("/proc/self/maps").read_text()


def test_the_public_names_are_these_and_no_others():
    assert sorted(cg.__all__) == [
        "__version__",
        "checkpoint_name",
        "clip_gradient",
        "compat",
        "custom_gradient",
        "custom_jvp",
        "custom_vjp",
        "embed_gradient",
        "grad_pass_through",
        "implicit_fixed_point",
        "implicit_minimum",
        "implicit_root",
        "layers",
        "linear",
        "numpy_function",
        "override_gradients",
        "recompute_grad",
        "reverse_gradient",
        "rules",
        "saved_model",
        "scale_gradient",
        "scan",
        "straight_through",
        "sysconfig",
        "testing",
        "watch_gradient",
        "while_loop",
    ]
    assert {name for name in dir(cg) if not name.startswith("_")} == set(cg.__all__) - {"__version__"}
    assert sorted(cg.compat.__all__) == ["bayesflow", "tfp_math"]
    assert sorted(cg.saved_model.__all__) == [
        "AdoptReport",
        "AdoptedGradient",
        "Comparison",
        "EmbeddedGradient",
        "OverrideReport",
        "StripReport",
        "adopt",
        "inspect",
        "override",
        "strip",
    ]


@pytest.mark.parametrize(
    "name", ["CustomGradientEmbed", "CustomGradientEmbedGrad", "CustomGradientRule", "CustomGradientBarrier"]
)
def test_every_op_has_a_gradient_and_a_documentation(name):
    assert ops.gradient_registry.lookup(name).__module__.startswith("tf_cg_ops._src.ops.")
    documentation = getattr(library, op_name_in_python(name)).__doc__
    for argument in op_def_registry.get(name).input_arg:
        assert f"{argument.name}: " in documentation


def op_name_in_python(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


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
    result = run_python(
        "import warnings; warnings.simplefilter('error'); import tensorflow; import tf_cg_ops", cwd=tmp_path
    )
    assert result.stdout == ""
