"""The build finds nvcc, or says where it looked. Scripts stand in for nvcc."""

import pytest

from build_ops import cuda

# What nvcc 13.0 lists, in its order, with the variants that run on one GPU only.
LISTED = "sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_90a sm_100 sm_110 sm_103 sm_120 sm_121"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    for name in ("CUDA_HOME", "TF_CG_OPS_CUDA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def make_nvcc(folder, version="13.0", listed=LISTED, runtime=True):
    """A script that answers like nvcc of that version."""
    script = folder / "bin" / "nvcc"
    script.parent.mkdir(parents=True)
    answers = {
        "--version": f"Cuda compilation tools, release {version}, V{version}.1",
        "--list-gpu-code": listed.replace(" ", "\\n"),
        "--dryrun": f'#$ LIBRARIES=  "-L{folder}/lib/stubs" "-L{folder}/lib"',
    }
    cases = "".join(f"{option}) printf '%b\\n' '{answer}';;\n" for option, answer in answers.items())
    script.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\n')
    script.chmod(0o755)
    (folder / "lib").mkdir()
    if runtime:
        (folder / "lib" / "libcudart_static.a").touch()
    return script


def line():
    return cuda.announcement(*cuda.find_toolkit())


def test_nvcc_in_cuda_home_precedes_the_path(monkeypatch, tmp_path):
    make_nvcc(tmp_path / "on_path", "12.4")
    monkeypatch.setenv("PATH", f"{tmp_path}/on_path/bin")
    assert cuda.find_toolkit()[1].startswith("nvcc 12.4 ")
    script = make_nvcc(tmp_path / "home")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    toolkit, _ = cuda.find_toolkit()
    assert toolkit.nvcc == str(script)
    assert toolkit.link_flags()[0] == str(tmp_path / "home" / "lib" / "libcudart_static.a")
    assert line() == (
        f"nvcc 13.0 ({script}), for sm_75, sm_80, sm_90, sm_100, sm_110, sm_120 and newer: building for GPUs, too"
    )


def test_each_generation_gets_code_and_the_newest_a_form_to_translate(monkeypatch, tmp_path):
    make_nvcc(tmp_path, listed="sm_50 sm_70 " + LISTED)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    command = cuda.find_toolkit()[0].compile_command(["-fstack-protector-strong"])
    assert [argument.removeprefix("-gencode=") for argument in command if argument.startswith("-gencode")] == [
        "arch=compute_75,code=sm_75",
        "arch=compute_80,code=sm_80",
        "arch=compute_90,code=sm_90",
        "arch=compute_100,code=sm_100",
        "arch=compute_110,code=sm_110",
        "arch=compute_120,code=sm_120",
        "arch=compute_120,code=compute_120",
    ]
    assert command[command.index("-fstack-protector-strong") - 1] == "-Xcompiler"
    assert "--compress-mode=size" in command  # Not before nvcc 13: older drivers cannot read it.


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, "no nvcc on PATH, and no CUDA_HOME"),
        ({"CUDA_HOME": "/nowhere"}, "no nvcc in CUDA_HOME=/nowhere"),
        ({"TF_CG_OPS_CUDA": "0"}, "TF_CG_OPS_CUDA=0"),
    ],
    ids=str,
)
def test_without_it_one_line_says_so(monkeypatch, settings, found):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert cuda.find_toolkit()[0] is None
    assert line() == f"{found}: building for the CPU; on GPUs the ops use TensorFlow's own kernels"


def test_one_that_is_too_old_is_not_used(monkeypatch, tmp_path):
    script = make_nvcc(tmp_path, "11.8")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert cuda.find_toolkit() == (None, f"an nvcc that is 11.8, older than 12.0 ({script})")


def test_cuda_that_is_asked_for_and_missing_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CG_OPS_CUDA", "1")
    message = r"^tf_cg_ops: TF_CG_OPS_CUDA=1 needs nvcc, but the build found no nvcc on PATH, and no CUDA_HOME\.$"
    with pytest.raises(SystemExit, match=message):
        cuda.find_toolkit()
    make_nvcc(tmp_path, runtime=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"has no libcudart_static\.a\. Install .* set TF_CG_OPS_CUDA=0"):
        cuda.find_toolkit()
