"""Draws the pictures of docs/gallery.md again: runs the examples and the demo, and copies what they draw.

python docs/figures/gallery.py
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
OUTPUT = ROOT / "build" / "figures"
# The programs that draw, and their arguments.
EXAMPLES = (
    "log1pexp",
    "binary_net",
    "spiking_cell",
    "domain_adversarial_digits",
    "fit_ode",
    "neural_ode",
    "convex_layer",
    "equilibrium_layer",
    "long_sequence",
    "saliency_maps",
    "adopt_model",
)
PROGRAMS = {name: [f"examples/{name}.py"] for name in EXAMPLES} | {"demo": ["-m", "tf_cg_ops", "demo"]}


def main() -> None:
    """Runs one program after the other."""
    for name, arguments in PROGRAMS.items():
        subprocess.run([sys.executable, *arguments, "--output", OUTPUT / name], cwd=ROOT, check=True)
        for picture in (OUTPUT / name).glob("*.png"):
            shutil.copy(picture, FIGURES)


if __name__ == "__main__":
    main()
