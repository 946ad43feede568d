"""Draws the pictures of the README, docs/audit.md and docs/gallery.md again, the last with the examples.

python docs/figures/gallery.py
"""

import pathlib
import shutil
import subprocess
import sys

FIGURES = pathlib.Path(__file__).parent
ROOT = FIGURES.parents[1]
OUTPUT = ROOT / "build" / "figures"


def main() -> None:
    """Runs one program after the other."""
    for name in ("readme.py", "audit.py"):
        subprocess.run([sys.executable, FIGURES / name], check=True)
    for path in sorted((ROOT / "examples").glob("*.py")):
        if '.png"' not in path.read_text():
            continue
        subprocess.run([sys.executable, path, "--output", OUTPUT / path.stem], cwd=ROOT, check=True)
        for picture in (OUTPUT / path.stem).glob("*.png"):
            shutil.copy(picture, FIGURES)


if __name__ == "__main__":
    main()
