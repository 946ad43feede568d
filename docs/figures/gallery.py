"""Draws the pictures of the README, docs/audit.md and docs/gallery.md again, the last with the examples and the demo.

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
    drawing = [path for path in sorted((ROOT / "examples").glob("*.py")) if f"{path.stem}.png" in path.read_text()]
    for name, arguments in {path.stem: [path] for path in drawing} | {"demo": ["-m", "tf_cg_ops", "demo"]}.items():
        subprocess.run([sys.executable, *arguments, "--output", OUTPUT / name], cwd=ROOT, check=True)
        for picture in (OUTPUT / name).glob("*.png"):
            shutil.copy(picture, FIGURES)


if __name__ == "__main__":
    main()
