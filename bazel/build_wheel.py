"""Builds a wheel from op libraries that are already built: build_wheel.py LIBRARY TARGET_FOLDER SOURCE...

The second library is in the folder of the first.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def main(library: str, target: str, *sources: str) -> None:
    """Runs setup.py in a copy of the sources, because pip and setuptools write into their folder."""
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            copy = pathlib.Path(folder, source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
        command += ["--no-build-isolation", "--no-deps", "-w", os.path.abspath(target), "."]
        environment = {**os.environ, "TF_CG_OPS_PREBUILT": os.path.dirname(os.path.abspath(library))}
        subprocess.run(command, cwd=folder, env=environment, check=True)


main(*sys.argv[1:])
