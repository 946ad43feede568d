"""The build with a setuptools that is too old for it: a message that says what to install."""

import shutil
import subprocess
import sys

import pytest

from ..support.sources import ROOT


@pytest.mark.parametrize("version", ["65.5.0", "76.1.0", "59.6.0.post1"])
def test_an_old_setuptools_is_named_with_what_to_install(version, tmp_path):
    """A copy of setup.py, beside a setuptools that has nothing but its version."""
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "setuptools.py").write_text(f"__version__ = {version!r}\n")
    command = [sys.executable, "setup.py", "--version"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (
        1,
        "",
        f"tf_cg_ops: the build needs a newer setuptools; expected 77 or newer, got {version}. Install it into this Python "
        f"with: {sys.executable} -m pip install 'setuptools>=77' wheel\n",
    )
