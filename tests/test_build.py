"""The wheel: its tag, its requirement, what is in it, and that it works from another folder than the source tree."""

import email
import subprocess
import sys
import zipfile

import pytest
import tensorflow as tf

from .support.processes import run_python
from .support.sources import ROOT, source_files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built as the README says, from a copy that holds the sources alone."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in source_files("**/*"):
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(target), "."]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    (path,) = target.glob("*.whl")
    return path


def test_the_wheel_is_for_every_python_and_one_platform(wheel):
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert "linux" in wheel.name


def test_it_requires_the_minor_version_and_the_distribution_it_was_compiled_against(wheel):
    from tf_cg_ops import _build_info

    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        requirements = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist")
    major, minor = (int(part) for part in tf.__version__.split(".")[:2])
    always = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert sorted(always) == [
        "numpy>=1.26",
        f"{_build_info.TENSORFLOW_DISTRIBUTION}<{major}.{minor + 1},>={major}.{minor}",
    ]


def test_it_holds_the_package_the_library_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    files = ("_ops.so", "_build_info.py", "compat/bayesflow.py", "layers/__init__.py", "_keras/layers.py")
    assert {f"tf_cg_ops/{file}" for file in files} <= set(names)
    others = [name for name in names if not name.startswith("tf_cg_ops/") or not name.endswith((".py", ".so"))]
    # By which type checkers know that the package has type hints.
    assert others == ["tf_cg_ops/py.typed"]


def test_it_works_from_another_folder(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = """
import tensorflow as tf, tf_cg_ops as cg
x = tf.constant([1.0, 2.0, 3.0])
with tf.GradientTape() as tape:
    tape.watch(x)
    h = cg.embed_gradient(x**2, 2 * x, x)
print(tape.gradient(h, x, tf.constant([1.0, 10.0, 100.0])).numpy().tolist(), cg.sysconfig.get_lib())
"""
    result = run_python(code, cwd=tmp_path, environment={"PYTHONPATH": str(tmp_path / "installed")})
    assert result.stdout == f"[2.0, 40.0, 600.0] {tmp_path / 'installed' / 'tf_cg_ops' / '_ops.so'}\n"


def test_without_tensorflow_the_build_says_what_to_do(tmp_path):
    """setup.py in a Python that sees no TensorFlow."""
    code = """
import importlib.metadata, runpy, sys
def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = missing
sys.argv = ["setup.py", "--version"]
runpy.run_path("setup.py")
"""
    result = run_python(code, cwd=ROOT, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(
        "tf_cg_ops: the build found no TensorFlow; expected one of tensorflow, "
    )


def test_the_library_resolves_every_symbol_in_tensorflow_and_the_standard_libraries(wheel, tmp_path):
    """No rpath and no other library: the one that TensorFlow has loaded already is found by its name."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extract("tf_cg_ops/_ops.so", tmp_path)
    library = tmp_path / "tf_cg_ops" / "_ops.so"
    needed = subprocess.run(["objdump", "-p", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    libraries = {line.split()[1] for line in needed.splitlines() if "NEEDED" in line}
    # The loader has what thread-local variables in TensorFlow's headers need; its name is that of the machine.
    assert {library for library in libraries if not library.startswith("ld-linux")} <= {
        "libtensorflow_framework.so.2",
        "libtensorflow_cc.so.2",
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "libc.so.6",
        "libm.so.6",
    }
    assert "RPATH" not in needed
    assert "RUNPATH" not in needed
