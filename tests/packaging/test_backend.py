"""The build backend: where it looks for TensorFlow, what it requires, and what it says if it cannot build."""

import json
import os
import pathlib
import runpy
import subprocess
import sys
import types
import venv

import pytest
import setuptools

from build_ops import machine
from build_ops.readme import long_description
from build_ops.tensorflow import DEFAULT_REQUIREMENT

from ..support.sources import ROOT, copy_sources

PROGRAM = pathlib.Path(__file__).with_name("ask_the_build.py")


def make_environment(folder, *distributions):
    """The Python of an environment with empty packages."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    for name, version in (distribution.split("==") for distribution in distributions):
        (packages / "tensorflow").mkdir(exist_ok=True)
        (packages / "tensorflow" / "__init__.py").touch()
        metadata = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "top_level.txt").write_text("tensorflow\n")
    return folder / "bin" / "python"


def ask(python, *arguments, check=True, folder="/", **variables):
    """What `ask_the_build.py` prints, or the text of its error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_BUILD"))}
    environment = {**kept, "PATH": "/usr/bin:/bin", **variables}
    command = [python, PROGRAM, ROOT, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    assert result.returncode == (0 if check else 1), result.stderr
    return json.loads(result.stdout.splitlines()[-1]) if check else result.stderr


@pytest.mark.parametrize(
    ("distributions", "requirement"),
    [
        (["tensorflow==2.21.0"], "tensorflow>=2.21,<2.22"),
        (["tensorflow-cpu==2.19.1"], "tensorflow-cpu>=2.19,<2.20"),
        (["tensorflow_gpu==2.20.0.post1"], "tensorflow-gpu>=2.20,<2.21"),
        (["tensorflow==2.22.0rc0"], "tensorflow==2.22.0rc0"),
        # Of several in one folder the commonest counts.
        (["tensorflow==2.21.0", "tensorflow-cpu==2.21.0", "tf-other==2.21.0"], "tensorflow>=2.21,<2.22"),
    ],
)
def test_any_distribution_with_tensorflow_is_found_and_required(distributions, requirement, tmp_path):
    python = make_environment(tmp_path, *distributions)
    name, version = distributions[0].replace("_", "-").split("==")
    assert ask(python, "tensorflow") == [[name, version, str(python)], requirement]


@pytest.mark.parametrize("version", ["2.18.1", "2.23.0"])
def test_a_version_that_the_sources_do_not_know_is_refused(version, tmp_path):
    assert ask(make_environment(tmp_path, f"tensorflow-cpu=={version}"), "tensorflow", check=False) == (
        f"tf_cg_ops: the TensorFlow to compile against must be 2.19 to 2.22, got tensorflow-cpu {version}. Install one of "
        "those (pip install 'tensorflow-cpu==2.21.*').\n"
    )


def test_a_build_that_pip_isolates_finds_the_environment_that_pip_installs_into_and_no_other(tmp_path):
    """pip adds a module that hides the installed packages."""
    (tmp_path / "isolation").mkdir()
    hide = "import sys\nsys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
    (tmp_path / "isolation" / "sitecustomize.py").write_text(hide)
    isolation = {"PYTHONPATH": f"{tmp_path}/isolation", "PYTHONNOUSERSITE": "1", "PIP_BUILD_TRACKER": str(tmp_path)}
    python = make_environment(tmp_path / "target", "tensorflow==2.20.0")
    assert ask(python, "tensorflow", **isolation) == [None, "tensorflow>=2.21,<2.22"]
    assert ask(python, "backend", **isolation) == [["tensorflow", "2.20.0", str(python)], "tensorflow>=2.20,<2.21"]
    empty = make_environment(tmp_path / "empty")
    assert ask(empty, "backend", **isolation, PATH=f"{python.parent}:/usr/bin")[0] is None


def test_a_build_in_a_folder_that_uv_deletes_afterwards_finds_the_activated_environment(tmp_path):
    activated = make_environment(tmp_path / "activated", "tensorflow-cpu==2.19.1")
    throwaway = make_environment(tmp_path / "throwaway")
    path = f"{throwaway.parent}:{activated.parent}:/usr/bin"
    assert ask(throwaway, "backend", PATH=path)[0][:2] == ["tensorflow-cpu", "2.19.1"]
    assert ask(throwaway, "tensorflow", PATH=path)[0] is None  # Bazel and setup.py use this Python.
    fetched = make_environment(tmp_path / "fetched", "tensorflow==2.21.0")
    assert ask(fetched, "backend", PATH=path)[0][:2] == ["tensorflow", "2.21.0"]


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


@pytest.mark.parametrize(
    ("python", "requirement"), [((3, 13), "tensorflow==2.21.*"), ((3, 14), "tensorflow==2.22.*,>=2.22.0rc0")]
)
def test_the_default_is_the_newest_tensorflow_that_is_released_for_this_python(python, requirement, monkeypatch):
    monkeypatch.setattr(sys, "version_info", python)
    assert runpy.run_path(str(ROOT / "build_ops" / "tensorflow.py"))["DEFAULT_REQUIREMENT"] == requirement


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_without_tensorflow_a_build_asks_for_one(kind, without_tensorflow):
    hook = f"get_requires_for_build_{kind}"
    assert ask(without_tensorflow, hook) == [DEFAULT_REQUIREMENT]
    assert ask(without_tensorflow, hook, '{"tensorflow": "tensorflow-cpu==2.20.*"}') == ["tensorflow-cpu==2.20.*"]


def test_source_distributions_and_metadata_need_no_tensorflow(without_tensorflow, tmp_path):
    (tmp_path / "made").mkdir()
    copy_sources(tmp_path / "sources", "**/*")
    assert ask(without_tensorflow, "get_requires_for_build_sdist") == []
    made = (json.dumps(f"{tmp_path}/made"),)
    name = ask(without_tensorflow, "build_sdist", *made, folder=tmp_path / "sources")
    assert (tmp_path / "made" / name).stat().st_size > 100_000
    folder = ask(without_tensorflow, "prepare_metadata_for_build_wheel", *made, folder=tmp_path / "sources")
    assert "Requires-Dist: tensorflow<2.22,>=2.21" in (tmp_path / "made" / folder / "METADATA").read_text()


BUILT_ON = "the op library must be built on 64-bit Linux with glibc, got"
STRIPPED = " A model that `tf-cg-ops strip` has stripped runs everywhere, without this library."


@pytest.mark.parametrize(
    ("fakes", "start", "end"),
    [
        (
            {"platform": {"system": lambda: "Darwin"}},
            f"{BUILT_ON} macOS. Install it in a Linux container, for ",
            STRIPPED,
        ),
        ({"struct": {"calcsize": lambda _: 4}}, f"{BUILT_ON} a 32-bit Python ({sys.executable}). Use a 64-", STRIPPED),
        ({"os": {"confstr": lambda _: None}}, f"{BUILT_ON} another C library (musl, as in Alpine). Use an ", STRIPPED),
        (
            {
                "sys": {"version_info": (3, 15, 0)},
                "platform": {"python_version": lambda: "3.15.0"},
                "find_tensorflow": lambda: None,
            },
            "Python must be 3.10 to 3.14, which TensorFlow 2.22 is published for, got 3.15.0. Make an environment with ",
            "one of these: uv venv --python 3.14",
        ),
    ],
    ids=["macOS", "32-bit", "musl", "a newer Python without TensorFlow"],
)
def test_other_systems_get_a_sentence_and_a_way_out(fakes, start, end, monkeypatch):
    machine.check_machine()
    for name, fake in fakes.items():
        if isinstance(fake, dict):
            fake = types.SimpleNamespace(**{**vars(getattr(machine, name)), **fake})
        monkeypatch.setattr(machine, name, fake)
    with pytest.raises(SystemExit) as error:
        machine.check_machine()
    assert str(error.value).startswith(f"tf_cg_ops: {start}")
    assert str(error.value).endswith(end)


def test_a_newer_python_may_have_a_tensorflow(monkeypatch):
    monkeypatch.setattr(machine, "sys", types.SimpleNamespace(version_info=(3, 14, 0), executable=sys.executable))
    machine.check_machine()


def test_the_description_on_a_package_index_has_whole_addresses(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("See [a](docs/a.md#b), [x](https://x.org), [up](#top).\n![A picture](docs/figures/p.png)")
    home = "tf-cg-ops/tf_cg_ops"
    assert long_description(readme, "1.2.3") == (
        f"See [a](https://github.com/{home}/blob/v1.2.3/docs/a.md#b), [x](https://x.org), [up](#top).\n"
        f"![A picture](https://raw.githubusercontent.com/{home}/v1.2.3/docs/figures/p.png)"
    )
    assert f'Homepage = "https://github.com/{home}"' in (ROOT / "pyproject.toml").read_text()
