"""The house rules: what can be included and imported where, style, and what must not be in the repository."""

import pathlib
import re
import subprocess
import sys

import pytest

from build_ops import environments, matrix, sources
from build_ops.tensorflow import SUPPORTED
from tf_cg_ops._src.core import library

from ..conftest import SLOWEST
from ..support.sources import ROOT, source_files

CPP = [str(path) for kind in ("cc", "cu", "cuh", "h", "c") for path in source_files(f"**/*.{kind}")]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("ruff", ["check"]),
        ("ruff", ["format", "--check"]),
        ("mypy", []),
        ("clang-format", ["--dry-run", "-Werror", *CPP]),
    ],
    ids=["ruff check", "ruff format", "mypy", "clang-format"],
)
def test_a_tool_finds_nothing(tool, arguments):
    subprocess.run([pathlib.Path(sys.executable).with_name(tool), *arguments], cwd=ROOT, check=True)


# A folder, and what its files can include in addition to the standard library and their own folder.
MAY_INCLUDE = {
    "cc/lib": r"cc/lib/",
    "cc/functions": r"tensorflow/core/framework/function\.h",
    "cc/gradients": r"cc/functions/|cc/lib/|tensorflow/core/framework/",
    "cc/graph_gradients": r"cc/lib/|tensorflow/(cc|core)/(framework|graph)/",
    "cc/ops": r"cc/lib/|cc/versions/shape_inference\.h|tensorflow/core/framework/(op|shape_inference)\.h",
    "cc/xla": r"cc/lib/|cc/kernels/kernel_shapes\.h|cc/versions/xla\.h",
    "cc/versions": r"absl/(base/config|log/internal/log_message)\.h|tensorflow/compiler/tf2xla/|"
    r"tensorflow/core/(framework/shape_inference|public/version)\.h|"
    r"xla/(client|hlo/builder)/|xla/stream_executor/stream\.h",
    "cc/passes": r"cc/lib/|"
    r"tensorflow/core/(common_runtime/(optimization_registry|function_body|function_def_utils)\.h|framework/|graph/|"
    r"platform/logging\.h|public/session_options\.h|util/env_var\.h)",
    "cc/kernels": r"cc/(functions|lib)/|cc/versions/stream_executor\.h|cuda/contraction\.h|"
    r"tensorflow/core/(framework/|platform/logging\.h|util/work_sharder\.h|"
    r"common_runtime/input_colocation_exemption_registry\.h)",
    # nvcc never parses TensorFlow.
    "cuda": r"cc/lib/",
    "cuda/check": r"cc/lib/|cuda/contraction\.h",
}


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_includes_keep_to_the_layers(folder):
    allowed = re.compile(f"{folder}/|{MAY_INCLUDE[folder]}")
    for path in source_files(f"{folder}/*"):
        for included in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE):
            assert allowed.match(included), f"{path} includes {included}"


def test_every_source_is_built():
    listed = [*sources.SOURCES, *sources.SOURCES_WITH_CC, *sources.CUDA_SOURCES, *sources.WITHOUT_CUDA]
    files = source_files("cc/**/*.cc", "cuda/*.cc", "cuda/*.cu")
    assert sorted(set(listed)) == sorted(str(path.relative_to(ROOT)) for path in files)


def test_everything_knows_the_same_versions_of_tensorflow():
    assert f"{SUPPORTED[0]} to {SUPPORTED[-1]}" == library.SUPPORTED_TENSORFLOW
    assert tuple(matrix.NEWEST_PYTHON) == SUPPORTED


@pytest.mark.parametrize(
    "names", [SLOWEST, environments.CORE_TESTS, matrix.MORE_TESTS], ids=["slowest", "core", "more"]
)
def test_the_test_files_that_programs_name_exist(names):
    assert [name for name in names if not (ROOT / "tests" / name).is_file()] == []


PACKAGE = "tf_cg_ops/**/*.py"
KEPT_IN_KERAS = r"keras\.src|\b_(keras_mask|keras_history|flatten_layers|clear_losses|is_default|call_context_args)\b"
# What is asked for, where, and the only files that may: relative to their folder, those of one folder, or none.
IN_ONE_PLACE = {
    "what differs between versions, in C++": (
        r"TF_(MAJOR|MINOR|PATCH)_VERSION|TF_GRAPH_DEF_VERSION|__has_include",
        ("cc/**/*", "cuda/**/*"),
        "versions/",
    ),
    # The check at import compares the version; the differences are in the module of private names.
    "the version": (r"tf\.(__version__|version)\b", (PACKAGE,), "core/(library|tf_internal).py"),
    "private names of TensorFlow": (r"tensorflow\.python|tf\.__internal__|graph\._", (PACKAGE,), "core/tf_internal.py"),
    "private names of Keras": (KEPT_IN_KERAS, (PACKAGE,), "keras_internal.py"),
    "the library": ("load_op_library", (PACKAGE,), "core/library.py"),
}


@pytest.mark.parametrize("what", IN_ONE_PLACE)
def test_only_one_place_asks_for(what):
    asks, patterns, place = IN_ONE_PLACE[what]
    found = [str(path) for path in source_files(*patterns) if re.search(asks, path.read_text())]
    assert found
    assert [path for path in found if not re.search(f"/{place}", path)] == []


# Optional packages, which are imported only where they are used.
EXTRAS = {
    "keras3.py": {"keras"},
    "keras2.py": {"tf_keras"},
    "_modes.py": {"keras"},
    "__main__.py": {"tf_cg_ops_cli"},
    "implicit_root.py": {"typing_extensions"},  # For type checkers alone, which all have it.
}


def test_the_package_needs_only_tensorflow_and_numpy():
    allowed = set(sys.stdlib_module_names) | {"tensorflow", "numpy", "tf_cg_ops"}
    for path in source_files("tf_cg_ops/**/*.py"):
        for module in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE):
            assert module in allowed | EXTRAS.get(path.name, set()), f"{path} imports {module}"


def test_no_path_of_a_machine_is_in_the_repository():
    path_of_machine = re.compile(rf"(?<![\w.])/({'|'.join(('home', 'root', 'work', 'tmp'))})/")
    kinds = ("py", "cc", "cu", "cuh", "h", "c", "md", "toml")
    for path in source_files(*(f"**/*.{kind}" for kind in kinds), "Makefile", ".ci/run"):
        assert not path_of_machine.search(path.read_text()), path


# The folders of the package, each with the folders that it can import from.
LAYERS = {
    "core": (),
    "keras": ("core",),
    "embed_gradient": ("core", "keras"),
    "graphs": ("core",),
    "custom_gradient": ("core", "keras", "graphs"),
    "ops": ("core", "embed_gradient", "custom_gradient"),
    "ready_made": ("core", "keras", "embed_gradient", "custom_gradient", "linear", "rewrite"),
    "rewrite": ("core", "keras", "graphs", "custom_gradient"),
    "memory": ("core", "keras", "graphs", "embed_gradient", "custom_gradient", "rewrite"),
    "linear": ("core", "graphs", "custom_gradient", "memory", "rewrite"),
    "external": ("core", "embed_gradient", "custom_gradient"),
    "layers": ("core", "keras", "embed_gradient", "custom_gradient", "ready_made", "memory"),
}


@pytest.mark.parametrize("folder", LAYERS)
def test_imports_go_one_way(folder):
    for path in source_files(f"tf_cg_ops/_src/{folder}/*.py"):
        imported = re.findall(r"^\s*from tf_cg_ops\._src\.(\w+)[. ]", path.read_text(), re.MULTILINE)
        assert set(imported) <= {folder, *LAYERS[folder]}, path
        assert not re.search(
            r"^\s*(from tf_cg_ops import (?!_build_info)|import tf_cg_ops\b)", path.read_text(), re.M
        ), path


def test_each_folder_of_the_package_has_its_place_among_the_layers():
    assert {path.parent.name for path in source_files("tf_cg_ops/_src/*/*.py")} == set(LAYERS)


def test_a_private_module_has_one_underscore_in_its_path():
    for path in source_files("tf_cg_ops/**/*.py"):
        private = [part for part in path.relative_to(ROOT).parts if re.match("_(?!_)", part)]
        assert len(private) <= 1, f"{path} is marked as private twice: under _src, names are plain"
