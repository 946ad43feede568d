"""The build backend: where it looks for TensorFlow, what it requires, and what it says if it cannot build."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
import setuptools

from build_ops import machine
from build_ops.readme import long_description
from build_ops.tensorflow import DEFAULT_REQUIREMENT

from ..support.sources import ROOT, copy_sources

# Prints what the build finds if a front end runs it.
ASK = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
import build_ops.machine, build_ops.tensorflow as t
if "backend" in sys.argv: sys.modules["build_ops.backend"] = t
found = t.find_tensorflow()
print(json.dumps([found and [found.distribution, found.version, found.environment.python], t.tensorflow_requirement(found)]))
"""


def make_environment(folder, *distributions):
    """The Python of an environment with empty packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    for name, version in (distribution.split("==") for distribution in distributions):
        (packages / "tensorflow").mkdir(exist_ok=True)
        (packages / "tensorflow" / "__init__.py").touch()
        metadata = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "top_level.txt").write_text("tensorflow\n")
    return folder / "bin" / "python"


def run(python, *arguments, check=True, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_BUILD"))}
    environment = {**kept, "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(
        [python, "-c", ASK, *arguments], env=environment, capture_output=True, text=True, check=check, cwd="/"
    )


def find(python, *arguments, **variables):
    return json.loads(run(python, *arguments, **variables).stdout)


@pytest.mark.parametrize(
    ("distribution", "requirement"),
    [
        ("tensorflow==2.21.0", "tensorflow>=2.21,<2.22"),
        ("tensorflow-cpu==2.18.1", "tensorflow-cpu>=2.18,<2.19"),
        ("tensorflow_gpu==2.20.0.post1", "tensorflow-gpu>=2.20,<2.21"),
        ("tensorflow-rocm==2.19.0", "tensorflow-rocm>=2.19,<2.20"),
        ("tensorflow-base==2.19.1", "tensorflow-base>=2.19,<2.20"),
        ("tf-nightly==2.21.0.dev20260101", "tf-nightly==2.21.0.dev20260101"),
        ("tensorflow==2.21.0rc1", "tensorflow==2.21.0rc1"),
    ],
)
def test_any_distribution_with_tensorflow_is_found_and_required(distribution, requirement, tmp_path):
    python = make_environment(tmp_path, distribution)
    name, version = distribution.replace("_", "-").split("==")
    assert find(python) == [[name, version, str(python)], requirement]


def test_of_several_distributions_in_one_folder_the_commonest_is_required(tmp_path):
    python = make_environment(tmp_path, "tf-other==2.21.0", "tensorflow-cpu==2.21.0", "tensorflow==2.21.0")
    assert find(python)[1] == "tensorflow>=2.21,<2.22"


@pytest.mark.parametrize("version", ["2.17.1", "2.22.0", "2.2.1"])
def test_a_version_that_the_sources_do_not_know_is_refused(version, tmp_path):
    result = run(make_environment(tmp_path, f"tensorflow-cpu=={version}"), check=False)
    assert result.returncode == 1
    assert result.stderr == (
        f"tf_cg_ops: the TensorFlow to compile against must be 2.18 to 2.21, got tensorflow-cpu {version}. Install one of "
        "those (pip install 'tensorflow-cpu==2.21.*').\n"
    )


@pytest.fixture
def isolation(tmp_path):
    """What pip adds to the environment of a build: a module that hides the installed packages."""
    (tmp_path / "isolation").mkdir()
    hide = "import sys\nsys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
    (tmp_path / "isolation" / "sitecustomize.py").write_text(hide)
    return {"PYTHONPATH": str(tmp_path / "isolation"), "PYTHONNOUSERSITE": "1", "PIP_BUILD_TRACKER": str(tmp_path)}


def test_a_build_that_pip_isolates_finds_the_environment_that_pip_installs_into(isolation, tmp_path):
    python = make_environment(tmp_path / "target", "tensorflow==2.20.0")
    assert find(python, **isolation) == [None, "tensorflow>=2.21,<2.22"]
    assert find(python, "backend", **isolation) == [["tensorflow", "2.20.0", str(python)], "tensorflow>=2.20,<2.21"]


def test_if_that_has_none_no_other_environment_counts(isolation, tmp_path):
    other = make_environment(tmp_path / "other", "tensorflow==2.20.0")
    python = make_environment(tmp_path / "target")
    assert find(python, "backend", **isolation, PATH=f"{other.parent}:/usr/bin")[0] is None


def test_a_build_in_a_folder_that_uv_deletes_afterwards_finds_the_activated_environment(tmp_path):
    activated = make_environment(tmp_path / "activated", "tensorflow-cpu==2.19.1")
    throwaway = make_environment(tmp_path / "throwaway")
    path = f"{throwaway.parent}:{activated.parent}:/usr/bin"
    assert find(throwaway, "backend", PATH=path)[0][:2] == ["tensorflow-cpu", "2.19.1"]
    assert find(throwaway, PATH=path)[0] is None  # Bazel and setup.py use this Python.
    fetched = make_environment(tmp_path / "fetched", "tensorflow==2.21.0")
    assert find(fetched, "backend", PATH=path)[0][:2] == ["tensorflow", "2.21.0"]


HOOK = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from build_ops import backend
print(json.dumps(getattr(backend, sys.argv[1])(*map(json.loads, sys.argv[2:]))))
"""


@pytest.fixture(scope="module")
def without_tensorflow(tmp_path_factory):
    """An environment with only setuptools."""
    folder = tmp_path_factory.mktemp("environment")
    python = make_environment(folder)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    installed = pathlib.Path(setuptools.__file__).parents[1]
    for path in (*installed.glob("setuptools*"), installed / "_distutils_hack"):
        (packages / path.name).symlink_to(path)
    return python


def call_hook(python, *arguments, folder=None):
    command = [python, "-c", HOOK, *arguments]
    environment = {"PATH": "/usr/bin:/bin"}
    result = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_without_tensorflow_a_build_asks_for_one(kind, without_tensorflow):
    hook = f"get_requires_for_build_{kind}"
    assert call_hook(without_tensorflow, hook) == [DEFAULT_REQUIREMENT] == ["tensorflow==2.21.*"]
    chosen = '{"tensorflow": "tensorflow-cpu==2.20.*"}'
    assert call_hook(without_tensorflow, hook, chosen) == ["tensorflow-cpu==2.20.*"]


@pytest.fixture(scope="module")
def copy_of_sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    copy_sources(folder, "**/*")
    return folder


def test_source_distributions_and_metadata_need_no_tensorflow(copy_of_sources, without_tensorflow, tmp_path):
    assert call_hook(without_tensorflow, "get_requires_for_build_sdist") == []
    name = call_hook(without_tensorflow, "build_sdist", json.dumps(str(tmp_path)), folder=copy_of_sources)
    assert (tmp_path / name).stat().st_size > 100_000
    folder = call_hook(
        without_tensorflow, "prepare_metadata_for_build_wheel", json.dumps(str(tmp_path)), folder=copy_of_sources
    )
    assert "Requires-Dist: tensorflow<2.22,>=2.21" in (tmp_path / folder / "METADATA").read_text()


@pytest.mark.parametrize(
    ("name", "value", "got", "instead"),
    [
        ("platform", {"system": lambda: "Darwin"}, "macOS", "Install it in a Linux container, for example Docker's"),
        ("platform", {"system": lambda: "Windows"}, "Windows", "Install it in WSL 2 or a Linux container, for"),
        ("struct", {"calcsize": lambda _: 4}, f"a 32-bit Python ({sys.executable})", "Use a 64-bit one. A model that"),
        (
            "os",
            {"confstr": lambda _: None},
            "another C library (musl, as in Alpine)",
            "Use an image of Debian, such as",
        ),
    ],
    ids=["macOS", "Windows", "32-bit", "musl"],
)
def test_other_systems_get_a_sentence_and_a_way_out(name, value, got, instead, monkeypatch):
    machine.check_machine()
    monkeypatch.setattr(machine, name, types.SimpleNamespace(**{**vars(getattr(machine, name)), **value}))
    with pytest.raises(SystemExit) as error:
        machine.check_machine()
    start = "tf_cg_ops: the op library must be built on 64-bit Linux with glibc, got"
    assert str(error.value).startswith(f"{start} {got}. {instead} ")
    assert str(error.value).endswith(
        " A model that `tf-cg-ops strip` has stripped runs everywhere, without this library."
    )


def test_a_newer_python_is_refused_unless_it_has_a_tensorflow(monkeypatch):
    newer = types.SimpleNamespace(version_info=(3, 14, 0), executable=sys.executable)
    monkeypatch.setattr(machine, "sys", newer)
    machine.check_machine()
    monkeypatch.setattr(machine, "find_tensorflow", lambda: None)
    monkeypatch.setattr(
        machine, "platform", types.SimpleNamespace(system=lambda: "Linux", python_version=lambda: "3.14.0")
    )
    with pytest.raises(SystemExit) as error:
        machine.check_machine()
    assert str(error.value) == (
        "tf_cg_ops: Python must be 3.10 to 3.13, which tensorflow==2.21.* is published for, got 3.14.0. Make an environment "
        "with one of these: uv venv --python 3.13"
    )


def test_the_description_on_a_package_index_has_whole_addresses(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("See [a](docs/a.md#b), [x](https://x.org), [up](#top).\n![A picture](docs/figures/p.png)")
    home = "tf-cg-ops/tf_cg_ops"
    assert long_description(readme, "1.2.3") == (
        f"See [a](https://github.com/{home}/blob/v1.2.3/docs/a.md#b), [x](https://x.org), [up](#top).\n"
        f"![A picture](https://raw.githubusercontent.com/{home}/v1.2.3/docs/figures/p.png)"
    )
    assert f'Homepage = "https://github.com/{home}"' in (ROOT / "pyproject.toml").read_text()
